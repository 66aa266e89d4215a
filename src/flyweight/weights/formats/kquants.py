"""ggml's super-blocks of 256 to `GroupedWeight`: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K (layouts of ggml's
block_* structures).

Invariant: as in blocks.py: equal to ggml's definition bit for bit, no value rounded. Whole-number
scales of groups are stored with a float16 scale of the super-block.
"""

import numpy as np
from numpy.typing import NDArray

from flyweight.ops.grouped import GroupedWeight
from flyweight.weights.formats.values import lift, split_planes, to_halves
from flyweight.wire import U8


def parse_q2_k(raw: U8, shape: tuple[int, ...]) -> GroupedWeight:
    """84 bytes a block: 16 bytes, each the scale (low half) and the minimum of a group of 16; two
    runs of 32 bytes of four codes; float16 scale and minimum.
    """
    n, k = shape
    blocks = raw.reshape(n, k // 256, 84)
    groups = blocks[:, :, :16].reshape(n, k // 16)
    return GroupedWeight(
        (n, k),
        2,
        16,
        split_planes(blocks[:, :, 16:80].reshape(n, k // 128, 32), 2).reshape(n, k),
        groups & np.uint8(15),
        super_group=256,
        super_scales=to_halves(blocks[:, :, 80:82]),
        mins=groups >> np.uint8(4),
        super_mins=to_halves(blocks[:, :, 82:]),
    )


def parse_q3_k(raw: U8, shape: tuple[int, ...]) -> GroupedWeight:
    """110 bytes a block: 32 bytes of top bits, eight elements a byte; low two bits as Q2_K's; 12
    bytes of 6-bit scales, 32 too high; float16 scale.
    """
    n, k = shape
    blocks = raw.reshape(n, k // 256, 110)
    codes = split_planes(blocks[:, :, 32:96].reshape(n, k // 128, 32), 2).reshape(n, k)
    return GroupedWeight(
        (n, k),
        3,
        16,
        lift(codes, split_planes(blocks[:, :, :32], 1), 2),
        _join_signed_scales(blocks[:, :, 96:108]),
        zero=4,
        super_group=256,
        super_scales=to_halves(blocks[:, :, 108:]),
    )


def parse_q4_k(raw: U8, shape: tuple[int, ...]) -> GroupedWeight:
    """144 bytes a block: float16 scale and minimum, 12 bytes of 6-bit scales and minima for 8
    groups of 32, then four runs of 32 bytes, each the low halves of one group and the high halves
    of the next.
    """
    n, k = shape
    blocks = raw.reshape(n, k // 256, 144)
    codes = split_planes(blocks[:, :, 16:].reshape(n, k // 64, 32), 4).reshape(n, k)
    return _make_with_minima((n, k), 4, blocks, codes)


def parse_q5_k(raw: U8, shape: tuple[int, ...]) -> GroupedWeight:
    """176 bytes a block: as Q4_K, with 32 bytes of top bits, one a group, before the low bits."""
    n, k = shape
    blocks = raw.reshape(n, k // 256, 176)
    codes = split_planes(blocks[:, :, 48:].reshape(n, k // 64, 32), 4).reshape(n, k)
    return _make_with_minima(
        (n, k), 5, blocks, lift(codes, split_planes(blocks[:, :, 16:48], 1), 4)
    )


def parse_q6_k(raw: U8, shape: tuple[int, ...]) -> GroupedWeight:
    """210 bytes a block: 128 bytes of low 4 bits, 64 of high 2 bits, 16 int8 scales (groups of 16),
    float16 scale. Each half block of 128 elements holds four runs of 32: low bits in bytes 0-63,
    low halves then high halves; high bits in 32 bytes, two bits a run.
    """
    n, k = shape
    blocks = raw.reshape(n, k // 256, 210)
    codes = split_planes(blocks[:, :, :128].reshape(n, k // 128, 64), 4).reshape(n, k)
    high = split_planes(blocks[:, :, 128:192].reshape(n, k // 128, 32), 2)
    return GroupedWeight(
        (n, k),
        6,
        16,
        lift(codes, high, 4),
        np.ascontiguousarray(blocks[:, :, 192:208]).view(np.int8).reshape(n, k // 16),
        zero=32,
        super_group=256,
        super_scales=to_halves(blocks[:, :, 208:]),
    )


def _make_with_minima(shape: tuple[int, int], bits: int, blocks: U8, codes: U8) -> GroupedWeight:
    """Q4_K and Q5_K: the head of a block is the same."""
    scales, mins = _split_six_bits(blocks[:, :, 4:16])
    return GroupedWeight(
        shape,
        bits,
        32,
        codes,
        scales,
        super_group=256,
        super_scales=to_halves(blocks[:, :, :2]),
        mins=mins,
        super_mins=to_halves(blocks[:, :, 2:4]),
    )


def _split_six_bits(raw: U8) -> tuple[U8, U8]:
    """[N, blocks, 12] -> scales, minima uint8 [N, blocks * 8]: groups 0-3 in the low six bits of
    bytes 0-3 and 4-7; groups 4-7 have their low four bits in bytes 8-11 and their top two above
    those of groups 0-3.
    """
    n, count, _ = raw.shape
    first, second, rest = raw[:, :, :4], raw[:, :, 4:8], raw[:, :, 8:]
    scales = np.concatenate((first & 63, (rest & 15) | (first >> 6 << 4)), axis=2)
    mins = np.concatenate((second & 63, (rest >> 4) | (second >> 6 << 4)), axis=2)
    return scales.reshape(n, count * 8), mins.reshape(n, count * 8)


def _join_signed_scales(raw: U8) -> NDArray[np.int8]:
    """[N, blocks, 12] -> int8 [N, blocks * 16]: low four bits in the low, then the high halves of
    bytes 0-7; top two in bytes 8-11, four scales to a pair of bits.
    """
    n, count, _ = raw.shape
    low = split_planes(raw[:, :, :8], 4).reshape(n, count, 16)
    top = np.stack([raw[:, :, 8:] >> np.uint8(2 * i) & np.uint8(3) for i in range(4)], axis=2)
    return (lift(low, top, 4).view(np.int8) - np.int8(32)).reshape(n, count * 16)
