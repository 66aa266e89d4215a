"""What K and V become in the cache, in NumPy: floats of 16 or 32 bits, or codes with a scale.

Invariant: a position's numbers depend on its own K or V alone.  Codes are made in float32, one
operation after the other as docs/ops.md says, so that backends store the same ones.  Knows no
batch.
"""

import numpy as np

from flyweight.ops.base import Array, from_bf16_bits, to_bf16_bits
from flyweight.spec import KV_TYPES, KVGroup
from flyweight.wire import F32, F64

# The largest number of a type's codes; mantissa bits and exponent bias of its floats.
TOPS = {"int8": 127.0, "int4": 15.0, "fp8_e4m3": 448.0, "fp8_e5m2": 57344.0}
FLOATS = {"fp8_e4m3": (3, 7), "fp8_e5m2": (2, 15)}


def count_turned(group: KVGroup, dtype: str) -> int:
    """Elements of a head of K that are rotated together: the largest power of two that divides the
    head; 1 where K is stored as it is.
    """
    return group.k_dim & -group.k_dim if KV_TYPES[dtype].coded and not group.v_in_k else 1


def turn(x: F32, block: int) -> F32:
    """[...,D]: every `block` elements times the Hadamard matrix of that size, not normalised;
    pairs 1 apart first, then those 2, 4, ... apart.
    """
    out = np.ascontiguousarray(x, np.float32)
    step = 1
    while step < block:
        pairs = out.reshape(*x.shape[:-1], -1, 2, step)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        out = np.stack([a + b, a - b], axis=-2).reshape(x.shape)
        step *= 2
    return out


def encode(x: F32, dtype: str) -> tuple[F64, F32]:
    """[...,D] -> the numbers that codes represent [...,D], scales [...,1]; x ~ number * scale.  A
    row that is not finite has the scale NaN and numbers of its own.
    """
    top = np.float32(TOPS[dtype])
    amax = np.abs(x).max(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        factor = top / amax
    usable = np.isfinite(factor) & (factor > 0)  # else all zero, beyond float32, or not finite
    scaled = np.where(usable, x, np.float32(0)) * np.where(usable, factor, np.float32(0))
    scale = np.where(usable, amax / top, np.float32(0))
    scale = np.where(np.isfinite(amax), scale, np.float32(np.nan))
    return _round_to_codes(scaled, dtype), scale.astype(np.float32)


def _round_to_codes(y: F32, dtype: str) -> F64:
    if dtype == "int8":
        return np.rint(y).astype(np.float64)
    if dtype == "int4":
        codes = np.rint(y * np.float32(0.5) + np.float32(7.5))
        odd: F64 = 2 * np.clip(codes, 0, 15).astype(np.float64) - 15
        return odd
    mantissa, bias = FLOATS[dtype]
    part, exponent = np.frexp(np.abs(y).astype(np.float64))
    rounded = np.ldexp(np.rint(part * 2 ** (mantissa + 1)) / 2 ** (mantissa + 1), exponent)
    least = 2.0 ** (1 - bias)  # without subnormals
    small = np.where(np.abs(y) < least / 2, 0.0, least)
    signed: F64 = np.copysign(np.where(np.abs(y) < least, small, rounded), y)
    return signed


def store(x: F32, dtype: str, block: int = 1) -> Array:
    """[...,D] as the cache has it; of codes what they represent, in float64.  `block` elements are
    rotated together.
    """
    if KV_TYPES[dtype].coded:
        numbers, scale = encode(turn(x, block), dtype)
        return numbers * scale.astype(np.float64) / block
    if dtype == "bf16":
        return to_bf16_bits(x)
    return x.astype(np.float16 if dtype == "f16" else np.float32)


def load(stored: Array) -> F64:
    return (from_bf16_bits(stored) if stored.dtype == np.uint16 else stored).astype(np.float64)
