"""HQQ, half-quadratic quantisation (Badri and Shaji, 2023): floats as zero points, found without
calibration so that the weights' errors are sparse.

A group's scale spans its range.  Each of a few steps shrinks the errors by the proximal operator of
the norm |e|^p, p < 1, and takes the zero point that fits the weights less the shrunk errors best.

Invariant: a group keeps the zero point whose mean |error| was the smallest, so it is never worse
than the one it began with.  Groups do not depend on each other.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flyweight.ops.base import to_bf16_bits
from flyweight.ops.grouped import GroupedWeight, widen
from flyweight.quantize.grouping import split_groups
from flyweight.wire import F32, U8

STEPS = 20
NORM = 0.7  # p
BETA, KAPPA = 10.0, 1.01  # how little errors are shrunk at first, and its growth by step
CHUNK = 1 << 20  # elements worked on at once, which stay in cache

Floats = NDArray[np.float16] | NDArray[np.uint16] | F32


@dataclass(frozen=True, slots=True)
class _Grid:
    """Groups [R, g] with scales and zero points [R, 1], of codes 0...most."""

    cells: F32
    scales: F32
    most: np.float32

    def round(self, zeros: F32) -> F32:
        """The nearest codes, in floats."""
        codes = self.cells / self.scales
        codes += zeros
        np.rint(codes, out=codes)
        np.clip(codes, 0, self.most, out=codes)
        return codes

    def measure(self, codes: F32, zeros: F32) -> F32:
        """The errors [R, g] of codes."""
        values = codes - zeros
        values *= self.scales
        found: F32 = np.subtract(self.cells, values, out=values)
        return found


def round_half_quadratic(
    rows: F32, bits: int, group: int = 64, stored: str = "float16", steps: int = STEPS
) -> GroupedWeight:
    """Rows [N, K] in groups along K (HQQ's axis 1), scales and zero points stored as "float16",
    "float32" or "uint16" (bfloat16 bits); codes are chosen for the stored ones.  Raises
    `ConfigError` where groups do not divide K.
    """
    cells = split_groups(rows, group)
    n, count = cells.shape[:2]
    codes = np.empty((n * count, group), np.uint8)
    scales, zeros = np.empty(n * count, np.float32), np.empty(n * count, np.float32)
    flat, at = cells.reshape(-1, group), max(1, CHUNK // group)
    for first in range(0, len(flat), at):
        part = slice(first, first + at)
        codes[part], scales[part], zeros[part] = _fit(flat[part], bits, stored, steps)
    return GroupedWeight(
        rows.shape,
        bits,
        group,
        codes.reshape(rows.shape),
        _store(scales, stored).reshape(n, count),
        zeros=_store(zeros, stored).reshape(n, count),
    )


def _fit(cells: F32, bits: int, stored: str, steps: int) -> tuple[U8, F32, F32]:
    """The codes, scales and zero points of groups [R, g]."""
    most = np.float32((1 << bits) - 1)
    low, high = cells.min(axis=1, keepdims=True), cells.max(axis=1, keepdims=True)
    scales = widen(_store((high - low) / most, stored))
    flat = scales == 0  # all elements alike: code 1 less a zero point is the element
    scales[flat] = 1
    grid = _Grid(cells, scales, most)
    zeros = -low / scales
    zeros[flat] = 1 - cells[:, :1][flat]
    zeros = widen(_store(_improve(grid, zeros, steps), stored))
    return grid.round(zeros).astype(np.uint8), scales[:, 0], zeros[:, 0]


def _improve(grid: _Grid, zeros: F32, steps: int) -> F32:
    """The best zero points [R, 1] of all steps."""
    best, beta = zeros, BETA
    least = np.full(zeros.shape, np.inf, np.float32)
    for _ in range(steps):
        codes = grid.round(zeros)
        errors = grid.measure(codes, zeros)
        size = np.abs(errors)
        loss = size.mean(axis=1, keepdims=True)
        better = loss < least
        if not better.any():
            break
        best, least = np.where(better, zeros, best), np.where(better, loss, least)
        kept = _shrink(errors, size, beta)
        aims = (grid.cells - kept) / grid.scales
        zeros = (codes - aims).mean(axis=1, keepdims=True)
        beta *= KAPPA
    return best


def _shrink(errors: F32, size: F32, beta: float) -> F32:
    """sign(e) max(|e| - |e|^(p-1) / beta, 0)."""
    with np.errstate(divide="ignore"):
        kept = size - size ** np.float32(NORM - 1) / np.float32(beta)
    np.maximum(kept, 0, out=kept)
    return np.copysign(kept, errors, out=kept)


def _store(numbers: F32, stored: str) -> Floats:
    if stored == "uint16":
        return to_bf16_bits(numbers)
    return numbers.astype(stored)
