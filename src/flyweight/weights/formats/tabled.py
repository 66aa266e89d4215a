"""ggml's 4-bit codes that stand for values of a table: IQ4_NL, IQ4_XS, MXFP4, NVFP4 (layouts of
ggml's block_* structures).

Invariant: as in blocks.py: equal to ggml's definition bit for bit, no value rounded. Codes stay
codes; the table goes with them.
"""

import numpy as np

from flyweight.ops.grouped import E2M1, NON_LINEAR, GroupedWeight
from flyweight.weights.formats.planes import lift, split_nibbles, split_planes, to_halves
from flyweight.wire import U8


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
    doubled, so 128 stands for 1.
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
