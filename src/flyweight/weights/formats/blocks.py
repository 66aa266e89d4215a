"""ggml's blocks with float16 scales to `GroupedWeight`: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, and 4-bit
codes that represent values of a table, IQ4_NL, IQ4_XS, MXFP4, NVFP4 (layouts of ggml's block_*
structures).

Invariant: dequantising the result equals ggml's published definition bit for bit; no value is
rounded here. Codes stay codes; a table goes with them. Each parser takes the bytes of whole rows
and the shape [N, K]; K is a whole number of blocks (the readers checked).
"""

import numpy as np

from flyweight.ops.grouped import E2M1, NON_LINEAR, GroupedWeight
from flyweight.weights.formats.values import lift, split_nibbles, split_planes, to_halves
from flyweight.wire import U8


def parse_q8_0(raw: U8, shape: tuple[int, ...]) -> GroupedWeight:
    """34 bytes a block: float16 scale, 32 int8."""
    n, k = shape
    blocks = raw.reshape(n, k // 32, 34)
    codes = blocks[:, :, 2:].view("V32")[:, :, 0].copy().view(np.int8).reshape(n, k)
    return GroupedWeight((n, k), 8, 32, codes, to_halves(blocks[:, :, :2]))


def parse_q4_0(raw: U8, shape: tuple[int, ...]) -> GroupedWeight:
    """18 bytes a block: float16 scale, 16 bytes of two codes; element i is byte i's low half, i +
    16 its high.
    """
    n, k = shape
    blocks = raw.reshape(n, k // 32, 18)
    codes = split_planes(blocks[:, :, 2:], 4).reshape(n, k)
    return GroupedWeight((n, k), 4, 32, codes, to_halves(blocks[:, :, :2]), zero=8)


def parse_q4_1(raw: U8, shape: tuple[int, ...]) -> GroupedWeight:
    """20 bytes a block: float16 scale and minimum, codes as Q4_0's. The minimum is added; ours is
    taken away.
    """
    n, k = shape
    blocks = raw.reshape(n, k // 32, 20)
    codes = split_planes(blocks[:, :, 4:], 4).reshape(n, k)
    scales, low = to_halves(blocks[:, :, :2]), -to_halves(blocks[:, :, 2:4])
    return GroupedWeight((n, k), 4, 32, codes, scales, mins=low)


def parse_q5_0(raw: U8, shape: tuple[int, ...]) -> GroupedWeight:
    """22 bytes a block: float16 scale, 32 top bits, low bits as Q4_0's."""
    n, k = shape
    blocks = raw.reshape(n, k // 32, 22)
    codes = _join_five_bits(blocks[:, :, 6:], blocks[:, :, 2:6])
    return GroupedWeight((n, k), 5, 32, codes, to_halves(blocks[:, :, :2]), zero=16)


def parse_q5_1(raw: U8, shape: tuple[int, ...]) -> GroupedWeight:
    """24 bytes a block: float16 scale and minimum, then as Q5_0."""
    n, k = shape
    blocks = raw.reshape(n, k // 32, 24)
    codes = _join_five_bits(blocks[:, :, 8:], blocks[:, :, 4:8])
    scales, low = to_halves(blocks[:, :, :2]), -to_halves(blocks[:, :, 2:4])
    return GroupedWeight((n, k), 5, 32, codes, scales, mins=low)


def _join_five_bits(low: U8, high: U8) -> U8:
    """[N, blocks, 16] halves and [N, blocks, 4] bits -> codes [N, blocks * 32]; bit i is element
    i's.
    """
    codes = split_planes(low, 4).reshape(len(low), low.shape[1] * 32)
    return lift(codes, np.unpackbits(high, axis=2, bitorder="little"), 4)


def parse_iq4_nl(raw: U8, shape: tuple[int, ...]) -> GroupedWeight:
    """18 bytes a block of 32: as Q4_0."""
    n, k = shape
    blocks = raw.reshape(n, k // 32, 18)
    codes = split_planes(blocks[:, :, 2:], 4).reshape(n, k)
    return GroupedWeight((n, k), 4, 32, codes, to_halves(blocks[:, :, :2]), values=NON_LINEAR)


def parse_iq4_xs(raw: U8, shape: tuple[int, ...]) -> GroupedWeight:
    """136 bytes a block of 256: float16 scale; top two bits of 8 scales in 16 bits, low four in 4
    bytes, 32 too high; 16 bytes of two codes for each group of 32.
    """
    n, k = shape
    blocks = raw.reshape(n, k // 256, 136)
    top = np.unpackbits(blocks[:, :, 2:4], axis=2, bitorder="little").reshape(n, k // 32, 2)
    scales = lift(split_nibbles(blocks[:, :, 4:8]), top[:, :, 0] | top[:, :, 1] << np.uint8(1), 4)
    return GroupedWeight(
        (n, k),
        4,
        32,
        split_planes(blocks[:, :, 8:].reshape(n, k // 32, 16), 4).reshape(n, k),
        scales.view(np.int8) - np.int8(32),
        super_group=256,
        super_scales=to_halves(blocks[:, :, :2]),
        values=NON_LINEAR,
    )


def parse_mxfp4(raw: U8, shape: tuple[int, ...]) -> GroupedWeight:
    """17 bytes a block of 32: the scale's exponent, 127 for 1; codes as Q4_0's. The table is
    doubled, so 128 means 1.
    """
    n, k = shape
    blocks = raw.reshape(n, k // 32, 17)
    codes = split_planes(blocks[:, :, 1:], 4).reshape(n, k)
    return GroupedWeight((n, k), 4, 32, codes, blocks[:, :, 0].copy(), values=E2M1)


def parse_nvfp4(raw: U8, shape: tuple[int, ...]) -> GroupedWeight:
    """36 bytes a block of 64: 4 scales in E4M3 without sign; for each group of 16 elements 8 bytes
    of two codes, low halves first. 127 is not a number in E4M3, and means 0 here.
    """
    n, k = shape
    blocks = raw.reshape(n, k // 64, 36)
    bits = blocks[:, :, :4].reshape(n, k // 16)
    # As a float16 with its three bits of mantissa on top, an E4M3 is 2^-8 of itself; half for the
    # table, which is doubled.
    small = ((bits & np.uint16(127)) << np.uint16(7)).view(np.float16)
    scales = np.where(bits == 127, np.float16(0), small * np.float16(128))
    codes = split_planes(blocks[:, :, 4:].reshape(n, k // 16, 8), 4).reshape(n, k)
    return GroupedWeight((n, k), 4, 16, codes, scales, values=E2M1)
