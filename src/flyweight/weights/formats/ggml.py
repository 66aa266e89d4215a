"""ggml's block formats to `GroupedWeight`: Q8_0, Q4_0, Q4_K, Q6_K (layouts of ggml's block_*
structures).

Invariant: dequantising the result equals ggml's published definition bit for bit; no value is
rounded here. Each parser takes the bytes of whole rows and the shape [N, K]; K is a whole number of
blocks (the readers checked).
"""

import numpy as np
from numpy.typing import NDArray

from flyweight.ops.grouped import GroupedWeight
from flyweight.wire import U8

WORD = "<u8"  # eight codes at once
FOUR = np.uint64(4)
LOW_HALVES = np.uint64(0x0F0F0F0F0F0F0F0F)
LOW_PAIRS = np.uint64(0x0303030303030303)


def parse_q8_0(raw: U8, shape: tuple[int, ...]) -> GroupedWeight:
    """34 bytes a block of 32: float16 scale, 32 int8."""
    n, k = shape
    blocks = raw.reshape(n, k // 32, 34)
    codes = blocks[:, :, 2:].view("V32")[:, :, 0].copy().view(np.int8).reshape(n, k)
    return GroupedWeight((n, k), 8, 32, codes, _halves(blocks[:, :, :2]))


def parse_q4_0(raw: U8, shape: tuple[int, ...]) -> GroupedWeight:
    """18 bytes a block of 32: float16 scale, 16 bytes of two codes; element i is byte i's low half,
    i + 16 its high.
    """
    n, k = shape
    blocks = raw.reshape(n, k // 32, 18)
    codes = np.empty((n, k // 32, 2, 16), np.uint8)
    _split_halves(blocks[:, :, 2:], codes)
    return GroupedWeight((n, k), 4, 32, codes.reshape(n, k), _halves(blocks[:, :, :2]), zero=8)


def parse_q4_k(raw: U8, shape: tuple[int, ...]) -> GroupedWeight:
    """144 bytes a block of 256: float16 scale and minimum, 12 bytes of 6-bit scales and minima for
    8 groups of 32, then four runs of 32 bytes, each the low halves of one group and the high halves
    of the next.
    """
    n, k = shape
    blocks = raw.reshape(n, k // 256, 144)
    scales, mins = _six_bit(blocks[:, :, 4:16])
    codes = np.empty((n, k // 64, 2, 32), np.uint8)
    _split_halves(blocks[:, :, 16:].reshape(n, k // 64, 32), codes)
    return GroupedWeight(
        (n, k),
        4,
        32,
        codes.reshape(n, k),
        scales,
        super_group=256,
        super_scales=_halves(blocks[:, :, :2]),
        mins=mins,
        super_mins=_halves(blocks[:, :, 2:4]),
    )


def parse_q6_k(raw: U8, shape: tuple[int, ...]) -> GroupedWeight:
    """210 bytes a block of 256: 128 bytes of low 4 bits, 64 of high 2 bits, 16 int8 scales (groups
    of 16), float16 scale. Each half block of 128 elements holds four runs of 32: low bits in bytes
    0-31 and 32-63, low halves then high halves; high bits in 32 bytes, two bits a run.
    """
    n, k = shape
    blocks = raw.reshape(n, k // 256, 210)
    low = blocks[:, :, :128].reshape(n, k // 128, 2, 32)
    high = blocks[:, :, 128:192].reshape(n, k // 128, 32).view(WORD)
    codes = np.empty((n, k // 128, 4, 32), np.uint8)
    for half in range(2):
        _split_halves(low[:, :, half], codes[:, :, half::2])
    out = codes.view(WORD)
    for run, i in np.ndindex(4, 4):
        top = (high[:, :, i] >> np.uint64(2 * run)) & LOW_PAIRS  # [N, half blocks]
        out[:, :, run, i] |= top << FOUR
    scales = np.ascontiguousarray(blocks[:, :, 192:208]).view(np.int8).reshape(n, k // 16)
    return GroupedWeight(
        (n, k),
        6,
        16,
        codes.reshape(n, k),
        scales,
        zero=32,
        super_group=256,
        super_scales=_halves(blocks[:, :, 208:]),
    )


def _halves(raw: U8) -> NDArray[np.float16]:
    """[N, blocks, 2] bytes -> float16 [N, blocks]."""
    return raw.view("<f2")[:, :, 0].astype(np.float16, copy=True)


def _split_halves(packed: U8, codes: U8) -> None:
    """[N, runs, B] bytes -> codes [N, runs, 2, B]: low halves, then high halves.

    Eight bytes at a time: over short rows of bytes NumPy's loops cost three times as much.
    """
    words, out = packed.view(WORD), codes.view(WORD)
    for i in range(words.shape[2]):
        word = words[:, :, i].copy()  # [N, runs]
        np.bitwise_and(word, LOW_HALVES, out=out[:, :, 0, i])
        word >>= FOUR
        np.bitwise_and(word, LOW_HALVES, out=out[:, :, 1, i])


def _six_bit(raw: U8) -> tuple[U8, U8]:
    """[N, blocks, 12] -> scales, minima uint8 [N, blocks * 8]: groups 0-3 in the low six bits of
    bytes 0-3 and 4-7; groups 4-7 have their low four bits in bytes 8-11 and their top two above
    those of groups 0-3.
    """
    n, count, _ = raw.shape
    first, second, rest = raw[:, :, :4], raw[:, :, 4:8], raw[:, :, 8:]
    scales = np.concatenate((first & 63, (rest & 15) | (first >> 6 << 4)), axis=2)
    mins = np.concatenate((second & 63, (rest >> 4) | (second >> 6 << 4)), axis=2)
    return scales.reshape(n, count * 8), mins.reshape(n, count * 8)
