"""Float rows to the bytes of GGUF's types: the inverse of `weights.formats`.

Invariant: what `FORMATS[kind].parse` makes of the bytes is near the rows, and a row's bytes depend
on that row and on the importance of its columns only, bit for bit the same on every machine.  The
quantised types are searched natively (native/encode_blocks.cpp): scales and minima by weighted
least squares over several roundings.  Does not know tensors' names or files.
"""

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flyweight import _native
from flyweight.errors import ConfigError
from flyweight.ops.base import from_bf16_bits, to_bf16_bits
from flyweight.weights.formats import FORMATS
from flyweight.wire import F32, U8

BLOCKS = (
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "q8_0",
    "iq4_nl",
    "q2_k",
    "q3_k",
    "q4_k",
    "q5_k",
    "q6_k",
    "iq4_xs",
)
ENCODABLE = ("f32", "f16", "bf16", *BLOCKS)
LARGEST = 65504.0  # of float16, which holds the scales
FLOOR = 1e-6  # the least importance of a column, in means: none may vanish
FloatRows = NDArray[Any]  # float32, float16, or uint16 holding bfloat16 bits


class BlockEncoder:
    """Encodes on `threads` threads, 0 for all the process may use; safe to share."""

    def __init__(self, threads: int = 0) -> None:
        self._pool = _native.Pool(threads or len(os.sched_getaffinity(0)))

    def encode(self, kind: str, rows: FloatRows, importance: F32 | None = None) -> U8:
        """Rows [N, K] as uint8 [N, bytes] of `kind`, a member of `ENCODABLE`.

        Rows are float32, float16, or uint16 holding bfloat16 bits.  `importance` [K], zero or
        more, weighs the squared error of each column; dense types have no use for it.  Raises
        `ConfigError` for values that the type cannot hold, such as NaN.
        """
        form = FORMATS[kind]
        if kind not in ENCODABLE or rows.shape[1] % form.block:
            raise ValueError(f"no {kind} of rows of {rows.shape[1]} elements")
        _check_values(kind, rows)
        if kind not in BLOCKS:
            return _encode_dense(kind, rows)
        weights = None if importance is None else _level(importance)
        whole: Any = rows.astype(np.float32) if rows.dtype == np.float16 else rows
        return _native.encode_blocks(self._pool, kind, np.ascontiguousarray(whole), weights)


def _check_values(kind: str, rows: FloatRows) -> None:
    """Refuses values that are not finite, or too large for the type."""
    if rows.size == 0:
        return
    largest = np.float32(np.inf)
    if rows.dtype == np.uint16:
        top = np.array([(rows & 0x7FFF).max()], np.uint16)  # NaN is above every number
        largest = from_bf16_bits(top)[0]
    else:
        largest = np.maximum(rows.max(), -rows.min()).astype(np.float32)
    if not np.isfinite(largest):
        raise ConfigError("weights with a value that is not finite cannot be quantised")
    if largest > LARGEST and kind not in ("f32", "bf16"):
        raise ConfigError(
            f"weights of up to {largest:g} do not fit {kind.upper()}, whose scales are float16; "
            f"largest: {LARGEST:g}; take F32 or BF16 for this tensor"
        )


def _encode_dense(kind: str, rows: FloatRows) -> U8:
    if rows.dtype == np.uint16 and kind == "bf16":
        return np.ascontiguousarray(rows).view(np.uint8)
    wide = from_bf16_bits(rows) if rows.dtype == np.uint16 else rows.astype(np.float32)
    if kind == "f32":
        return np.ascontiguousarray(wide).view(np.uint8)
    if kind == "f16":
        return np.ascontiguousarray(wide.astype(np.float16)).view(np.uint8)
    return to_bf16_bits(np.ascontiguousarray(wide)).view(np.uint8)


def _level(importance: F32) -> F32 | None:
    """Importance in means, so that sums stay in float32's range, with a floor; None for none."""
    mean = float(importance.mean(dtype=np.float64))
    if not np.isfinite(mean) or importance.min() < 0:
        raise ValueError("importance must be finite, zero or more")
    if mean == 0:
        return None
    found: F32 = np.maximum(importance / np.float32(mean), np.float32(FLOOR)).astype(np.float32)
    return found
