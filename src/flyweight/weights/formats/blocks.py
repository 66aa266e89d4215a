"""ggml's blocks of 32 with float16 scales to `GroupedWeight`: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 (layouts
of ggml's block_* structures).

Invariant: dequantising the result equals ggml's published definition bit for bit; no value is
rounded here. Each parser takes the bytes of whole rows and the shape [N, K]; K is a whole number of
blocks (the readers checked).
"""

import numpy as np

from flyweight.ops.grouped import GroupedWeight
from flyweight.weights.formats.planes import lift, split_planes, to_halves
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
