"""Values out of bytes: unquantised tensors, and several small whole numbers out of one byte.

Invariant: values are copied bit for bit, nothing is rounded; bfloat16 stays as its uint16 bits, for
NumPy has no such type. Does not know what the numbers mean.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flyweight.ops.base import from_bf16_bits
from flyweight.wire import F32, U8


def parse_f32(raw: U8, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """`raw` may start at any address."""
    return raw.view("<f4").reshape(shape).astype(np.float32, copy=True)


def parse_f16(raw: U8, shape: tuple[int, ...]) -> NDArray[np.float16]:
    return raw.view("<f2").reshape(shape).astype(np.float16, copy=True)


def parse_bf16(raw: U8, shape: tuple[int, ...]) -> NDArray[np.uint16]:
    return raw.view("<u2").reshape(shape).astype(np.uint16, copy=True)


def to_f32(values: NDArray[Any]) -> F32:
    """Any dense canonical array to float32, exactly."""
    if values.dtype == np.uint16:
        return from_bf16_bits(values)
    return values.astype(np.float32)


WORD = "<u8"  # eight bytes at once


def to_halves(raw: U8) -> NDArray[np.float16]:
    """[N, blocks, 2] bytes -> float16 [N, blocks]."""
    return raw.view("<f2")[:, :, 0].astype(np.float16, copy=True)


def split_planes(packed: U8, width: int) -> U8:
    """[N, runs, B] bytes -> [N, runs, 8 / width, B]: plane i holds the `width` bits of each byte
    from i * width up. B is a multiple of 8.

    Eight bytes at a time: over short rows of bytes NumPy's loops cost three times as much.
    """
    n, runs, size = packed.shape
    out = np.empty((n, runs, 8 // width, size), np.uint8)
    words, to = packed.view(WORD), out.view(WORD)
    mask, shift = np.uint64(0x0101010101010101 * ((1 << width) - 1)), np.uint64(width)
    for i in range(words.shape[2]):
        word = words[:, :, i].copy()  # [N, runs]
        for plane in range(8 // width):
            np.bitwise_and(word, mask, out=to[:, :, plane, i])
            word >>= shift
    return out


def lift(codes: U8, high: U8, by: int) -> U8:
    """`codes` with `high` above their lowest `by` bits, in place."""
    high <<= np.uint8(by)
    codes |= high.reshape(codes.shape)
    return codes


def split_nibbles(packed: U8) -> U8:
    """[N, runs, B] bytes -> [N, runs * 2 B]: low half, then high half, byte by byte."""
    n, runs, size = packed.shape
    return np.stack((packed & 15, packed >> 4), axis=3).reshape(n, runs * size * 2)
