"""ggml's types below three bits to `GroupedWeight`: IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS,
IQ3_S, whose codes are rows of a codebook, and TQ1_0, TQ2_0, of three values (layouts of ggml's
block_* structures).

Invariant: as in blocks.py: equal to ggml's definition bit for bit. All become the structure
"int8_k": values as int8, whole-number scales per 16, a float32 super-scale per 256; what the
formats halve or divide by eight is divided out of the super-scale, which is exact.
"""

import numpy as np
from numpy.typing import NDArray

from flyweight.ops.grouped import GroupedWeight
from flyweight.weights.formats import codebooks
from flyweight.weights.formats.values import split_nibbles, split_planes, to_halves
from flyweight.wire import U8

Codes = NDArray[np.int8]
SEVEN = np.array([0, 7, 14, 21], np.uint32)  # bits of the indices of four rows of signs
THREE = np.array([0, 3, 6, 9], np.uint16)


def parse_iq2_xxs(raw: U8, shape: tuple[int, ...]) -> GroupedWeight:
    """66 bytes a block of 256: float16 scale; for each group of 32, four indices of a byte and a
    word of four 7-bit indices of signs and a 4-bit scale, s + 1/2 quarters.
    """
    blocks = raw.reshape(shape[0], shape[1] // 256, 66)
    groups = blocks[:, :, 2:].reshape(shape[0], shape[1] // 32, 8)
    signs, scales = _split_signs_and_scale(groups[:, :, 4:])
    codes = codebooks.IQ2_XXS[groups[:, :, :4]] * signs
    return _make_int8(shape, codes, scales, to_halves(blocks[:, :, :2]), 8)


def parse_iq2_xs(raw: U8, shape: tuple[int, ...]) -> GroupedWeight:
    """74 bytes a block of 256: float16 scale, 32 words of a 9-bit index and a 7-bit one of signs, 8
    bytes of two scales.
    """
    blocks = raw.reshape(shape[0], shape[1] // 256, 74)
    words = blocks[:, :, 2:66].view("<u2")
    codes = codebooks.IQ2_XS[words & 511] * codebooks.EVEN_SIGNS[words >> 9]
    return _make_int8(
        shape, codes, 2 * split_nibbles(blocks[:, :, 66:]) + 1, to_halves(blocks[:, :, :2]), 8
    )


def parse_iq2_s(raw: U8, shape: tuple[int, ...]) -> GroupedWeight:
    """82 bytes a block of 256: float16 scale, 32 low bytes of indices, 32 bytes of signs, 8 bytes
    of four tops of indices, 8 bytes of two scales.
    """
    blocks = raw.reshape(shape[0], shape[1] // 256, 82)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)
    top = (blocks[:, :, 66:74, None] >> shifts & np.uint8(3)).reshape(*blocks.shape[:2], 32)
    index = blocks[:, :, 2:34] | top.astype(np.uint16) << np.uint16(8)
    codes = codebooks.IQ2_S[index] * codebooks.SIGNS[blocks[:, :, 34:66]]
    return _make_int8(
        shape, codes, 2 * split_nibbles(blocks[:, :, 74:]) + 1, to_halves(blocks[:, :, :2]), 8
    )


def parse_iq3_xxs(raw: U8, shape: tuple[int, ...]) -> GroupedWeight:
    """98 bytes a block of 256: float16 scale, 64 indices of a byte, 8 words of signs and scale as
    IQ2_XXS's, s + 1/2 halves.
    """
    n, k = shape
    blocks = raw.reshape(n, k // 256, 98)
    signs, scales = _split_signs_and_scale(blocks[:, :, 66:].reshape(n, k // 32, 4))
    codes = codebooks.IQ3_XXS[blocks[:, :, 2:66]].reshape(signs.shape) * signs
    return _make_int8(shape, codes, scales, to_halves(blocks[:, :, :2]), 4)


def parse_iq3_s(raw: U8, shape: tuple[int, ...]) -> GroupedWeight:
    """110 bytes a block of 256: float16 scale, 64 low bytes of indices, 8 bytes of their top bits,
    32 bytes of signs, 4 bytes of two scales, 2 s + 1 each.
    """
    blocks = raw.reshape(shape[0], shape[1] // 256, 110)
    top = np.unpackbits(blocks[:, :, 66:74], axis=2, bitorder="little")
    index = blocks[:, :, 2:66] | top.astype(np.uint16) << np.uint16(8)
    signs = codebooks.SIGNS[blocks[:, :, 74:106]]
    codes = codebooks.IQ3_S[index].reshape(signs.shape) * signs
    scales = np.repeat(2 * split_nibbles(blocks[:, :, 106:]) + 1, 2, axis=1)
    return _make_int8(shape, codes, scales, to_halves(blocks[:, :, :2]), 1)


def parse_iq1_s(raw: U8, shape: tuple[int, ...]) -> GroupedWeight:
    """50 bytes a block of 256: float16 scale, 32 low bytes of indices; for each group of 32 a word
    of four 3-bit tops of indices, a 3-bit scale s of 2 s + 1, and whether all values are 1/8 lower
    or higher.
    """
    n, k = shape
    blocks = raw.reshape(n, k // 256, 50)
    words = blocks[:, :, 34:].view("<u2")
    top = (words[:, :, :, None] >> THREE & np.uint16(7)).reshape(n, k // 256, 32)
    index = blocks[:, :, 2:34] | top << np.uint16(8)
    shift = np.where(words >> 15, -1, 1).astype(np.int8)
    codes = _to_eighths(index, shift.repeat(4, axis=2))
    scales = np.repeat((words >> 12 & 7).astype(np.int8) * 2 + 1, 2, axis=2)
    return _make_int8(shape, codes, scales, to_halves(blocks[:, :, :2]), 8)


def parse_iq1_m(raw: U8, shape: tuple[int, ...]) -> GroupedWeight:
    """56 bytes a block of 256: 32 low bytes of indices; 16 bytes of two 3-bit tops with, above
    each, whether its 8 values are 1/8 lower or higher; four words of four 3-bit scales s of
    2 s + 1, whose top four bits together are the float16 scale.
    """
    n, k = shape
    blocks = raw.reshape(n, k // 256, 56)
    tops = split_nibbles(blocks[:, :, 32:48]).reshape(n, k // 256, 32)
    index = blocks[:, :, :32] | (tops & np.uint16(7)) << np.uint16(8)
    words = blocks[:, :, 48:].view("<u2").astype(np.uint16)
    quarters = words >> 12 << np.array([0, 4, 8, 12], np.uint16)
    whole = np.bitwise_or.reduce(quarters, axis=2).view(np.float16)
    scales = (words[:, :, :, None] >> THREE & np.uint16(7)).astype(np.int8) * 2 + 1
    return _make_int8(shape, _to_eighths(index, np.where(tops & 8, -1, 1)), scales, whole, 8)


def parse_tq1_0(raw: U8, shape: tuple[int, ...]) -> GroupedWeight:
    """54 bytes a block of 256: bytes of five values of three, as base-3 fractions: 32, then 16 of
    five and 4 of four; float16 scale. Value i of a byte is the whole part of 3^(i + 1) times it.
    """
    n, k = shape
    blocks = raw.reshape(n, k // 256, 54)
    runs = ((0, 32, 5), (32, 48, 5), (48, 52, 4))
    powers = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]
    digits = [
        (blocks[:, :, None, a:b] * powers[:count]).reshape(n, k // 256, (b - a) * count)
        for a, b, count in runs
    ]
    thirds = np.concatenate(digits, axis=2) * np.uint16(3) >> np.uint16(8)
    return _make_ternary(shape, thirds, to_halves(blocks[:, :, 52:]))


def parse_tq2_0(raw: U8, shape: tuple[int, ...]) -> GroupedWeight:
    """66 bytes a block of 256: two runs of 32 bytes of four codes, float16 scale."""
    n, k = shape
    blocks = raw.reshape(n, k // 256, 66)
    codes = split_planes(blocks[:, :, :64].reshape(n, k // 128, 32), 2)
    return _make_ternary(shape, codes, to_halves(blocks[:, :, 64:]))


def _split_signs_and_scale(words: U8) -> tuple[Codes, Codes]:
    """[N, groups, 4] bytes -> signs [N, groups, 4, 8], scales [N, 2 * groups], one per 16."""
    word = words.view("<u4")[:, :, 0]
    signs = codebooks.EVEN_SIGNS[word[:, :, None] >> SEVEN & np.uint32(127)]
    return signs, np.repeat((word >> 28).astype(np.int8) * 2 + 1, 2, axis=1)


def _to_eighths(index: NDArray[np.uint16], shift: NDArray[np.signedinteger]) -> Codes:
    """Rows of IQ1's codebook, -1, 0 or 1, and one shift of an eighth for each: in eighths."""
    return codebooks.IQ1[index] * np.int8(8) + shift.astype(np.int8)[..., None]


def _make_ternary(
    shape: tuple[int, ...], codes: U8 | NDArray[np.uint16], scale: NDArray[np.float16]
) -> GroupedWeight:
    ones = np.ones((shape[0], shape[1] // 16), np.int8)
    return _make_int8(shape, codes.astype(np.int8) - np.int8(1), ones, scale, 1)


def _make_int8(
    shape: tuple[int, ...], codes: Codes, scales: U8 | Codes, scale: NDArray[np.float16], parts: int
) -> GroupedWeight:
    """The structure all of these share; `scale` is of `parts` parts of a value."""
    n, k = shape
    with np.errstate(invalid="ignore"):  # a NaN stays one, whichever its bits
        super_scales = scale.astype(np.float32) / np.float32(parts)
    return GroupedWeight(
        (n, k),
        8,
        16,
        codes.reshape(n, k),
        scales.reshape(n, k // 16).view(np.int8),
        super_group=256,
        super_scales=super_scales,
    )
