"""Unquantised tensors: little-endian float32, float16 and bfloat16 as they lie on disk.

Invariant: values are copied bit for bit; bfloat16 stays as its uint16 bits, for NumPy has no such
type.
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
