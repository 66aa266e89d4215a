"""Blocks of GGUF's types with GPTQ's error feedback (Frantar et al., 2023): the error of a column
is made good by the columns after it.

Invariant: a block's scales and minima are those that the plain encoder fits to its weights as they
are when the sweep reaches it; each code is the nearest of that grid to its corrected weight.  Does
not know where the factor comes from.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flyweight.ops.grouped import GroupedWeight
from flyweight.quantize.ggml.encode import BlockEncoder
from flyweight.quantize.ggml.pack import pack
from flyweight.weights.formats import FORMATS
from flyweight.wire import F32, U8

ROWS = 1024  # swept at once
RUN = 32  # columns whose errors reach later runs in one product
Codes = NDArray[Any]  # of the type that the format's parser gives


@dataclass(frozen=True, slots=True)
class ColumnWeights:
    """Of K columns: `importance` [K] weighs their errors in a block's fit, `factor` [K, K] is the
    upper Cholesky factor of the inverse Hessian.
    """

    importance: F32
    factor: F32


def encode_with_feedback(encoder: BlockEncoder, kind: str, rows: F32, columns: ColumnWeights) -> U8:
    """Rows [N, K] as uint8 [N, bytes] of `kind`, a member of `encode.BLOCKS`."""
    parts = [
        _sweep(encoder, kind, rows[first : first + ROWS], columns)
        for first in range(0, len(rows), ROWS)
    ]
    return np.concatenate(parts)


def _sweep(encoder: BlockEncoder, kind: str, rows: F32, columns: ColumnWeights) -> U8:
    """Rows that are few; columns are the first axis here, so that a column is a run of memory."""
    form, k = FORMATS[kind], rows.shape[1]
    left = np.ascontiguousarray(rows.T)
    parts = []
    for first in range(0, k, form.block):
        own = slice(first, first + form.block)
        raw = encoder.encode(kind, np.ascontiguousarray(left[own].T), columns.importance[own])
        fitted = form.parse(raw, (len(rows), form.block))
        assert isinstance(fitted, GroupedWeight)
        codes: Codes = np.empty((form.block, len(rows)), fitted.codes.dtype)
        rounding = make_rounding(fitted)
        for start in range(0, form.block, RUN):
            at = first + start
            rounded = (rounding(start + i, left[at + i]) for i in range(RUN))
            codes[start : start + RUN] = _sweep_run(left[at:], columns.factor[at:, at:], rounded)
        parts.append(pack(replace(fitted, codes=np.ascontiguousarray(codes.T))))
    return np.concatenate(parts, axis=1)


def _sweep_run(left: F32, factor: F32, rounded: Iterator[tuple[Codes, F32]]) -> Codes:
    """The codes [RUN, N] of the first columns of `left` [K, N], which `rounded` rounds one by one
    as they are then; the others are corrected.
    """
    errors = np.empty((RUN, left.shape[1]), np.float32)
    found = []
    for i, (codes, kept) in enumerate(rounded):
        errors[i] = (left[i] - kept) / factor[i, i]
        left[i + 1 : RUN] -= factor[i, i + 1 : RUN, None] * errors[i]
        found.append(codes)
    left[RUN:] -= factor[:RUN, RUN:].T @ errors
    return np.stack(found)


def make_rounding(fitted: GroupedWeight) -> Callable[[int, F32], tuple[Codes, F32]]:
    """The codes of values [N] of a column that are nearest to its grid, and what they represent.
    In a grid of scale 0 all codes are the same.
    """
    scales = _spread(fitted, fitted.scales, fitted.super_scales)
    lows = np.zeros_like(scales)
    if fitted.mins is not None:
        lows = _spread(fitted, fitted.mins, fitted.super_mins)
    steps = np.where(scales == 0, np.float32(np.inf), scales)
    table = np.array(fitted.values, np.float32)
    middles = (table[1:] + table[:-1]) / 2
    least = -(1 << (fitted.bits - 1)) if fitted.codes.dtype == np.int8 else 0
    most = least + (1 << fitted.bits) - 1

    def round_column(column: int, x: F32) -> tuple[Codes, F32]:
        scale, step, low = (each[column // fitted.group] for each in (scales, steps, lows))
        y = (x + low) / step
        if len(table):
            codes = np.searchsorted(middles, y)
            return codes, scale * table[codes] - low
        zero = np.float32(fitted.zero)
        found = np.clip(np.rint(y) + zero, np.float32(least), np.float32(most))
        return found, scale * (found - zero) - low

    return round_column


def _spread(fitted: GroupedWeight, each: Any, supers: Any) -> F32:
    """[groups, N] float32: multiplied by those of the super-groups, if there are any."""
    wide = each.astype(np.float32)
    if supers is not None:
        count = fitted.super_group // fitted.group
        wide = np.repeat(supers.astype(np.float32), count, axis=1) * wide
    return np.ascontiguousarray(wide.T)
