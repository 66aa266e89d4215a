"""Products and roundings that calibration spends its time in, natively: sums of x^T x, GPTQ's sweep
over columns, rounding to nearest.

Invariant: results do not depend on the number of threads nor on the instruction set, and a row's
codes depend on that row alone.  Does not know what the codes are stored as.
"""

import os
from dataclasses import dataclass
from functools import cache

import numpy as np

from flyweight import _native
from flyweight.wire import F32, U8


@dataclass(frozen=True, slots=True)
class GroupGrid:
    """Grids of `bits` bits for groups of `group` columns, symmetric or with a zero point from 1 on;
    `shrink` tries ranges from 1 down to 0.6 of a group's, and takes that with the least squared
    error of rounding to nearest.
    """

    bits: int
    group: int
    symmetric: bool
    shrink: bool = False


class CalibrationKernels:
    """Computes on `threads` threads, 0 for all the process may use; safe to share."""

    def __init__(self, threads: int = 0, isa: str | None = None) -> None:
        self._pool = _native.Pool(threads or len(os.sched_getaffinity(0)), isa or "")

    def accumulate(self, h: F32, x: F32) -> None:
        """h [K, K], which is symmetric, += x^T x for rows x [T, K]."""
        _native.accumulate_gram(self._pool, h, np.ascontiguousarray(x))

    def round(self, rows: F32, grid: GroupGrid) -> tuple[U8, F32, U8]:
        """Rows [N, K] to the nearest codes [N, K], with scales [N, K / group] that float16 has and
        zero points [N, K / group]: w = scale * (code - zero).  All numbers are finite.
        """
        return self._sweep(rows, None, grid)

    def sweep(self, rows: F32, factor: F32, grid: GroupGrid) -> tuple[U8, F32, U8]:
        """The same by GPTQ (Frantar et al., 2023): the error of each column is made good by later
        ones; `factor` [K, K] is the upper Cholesky factor of the inverse Hessian.
        """
        return self._sweep(rows, np.ascontiguousarray(factor), grid)

    def _sweep(self, rows: F32, factor: F32 | None, grid: GroupGrid) -> tuple[U8, F32, U8]:
        rows = np.ascontiguousarray(rows)
        form = (grid.group, grid.bits, grid.symmetric, grid.shrink)
        return _native.gptq_sweep(self._pool, rows, factor, *form)


@cache
def share_kernels() -> CalibrationKernels:
    """Those of the process, on all CPUs it may use."""
    return CalibrationKernels()
