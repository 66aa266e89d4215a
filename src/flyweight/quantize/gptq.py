"""GPTQ (Frantar et al., 2023): columns are rounded one after the other, and the error of each is
made good by the columns after it, by the inverse of the inputs' Hessian.

Invariant: rows do not depend on each other; groups are those of the file, so a group's grid is
found from weights that earlier columns have corrected.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flyweight.errors import ConfigError
from flyweight.ops.grouped import GroupedWeight
from flyweight.quantize.method import Inputs, MethodSettings
from flyweight.quantize.precision import Precision
from flyweight.quantize.rounding import find_grid, make_weight, round_rows
from flyweight.quantize.statistics import InputStatistics
from flyweight.quantize.work import LayerWeights
from flyweight.wire import F32, I32

BLOCK = 128  # columns that are corrected one by one; later ones once a block
F64 = NDArray[np.float64]


def invert_hessian(gram: F32, damping: float) -> F32:
    """The upper Cholesky factor U of the inverse Hessian, H^-1 = U^T U, with `damping` times the
    mean diagonal added; columns that no input uses get a diagonal of that mean.
    """
    h = gram.astype(np.float64)
    diagonal = np.diagonal(h).copy()
    mean = float(diagonal.mean())
    if not np.isfinite(mean) or mean <= 0:
        raise ConfigError("gives inputs that are all 0 or not finite", "calibration")
    dead = diagonal == 0
    h[np.diag_indices(len(h))] += np.where(dead, mean, damping * mean)
    lower = np.linalg.cholesky(h)
    inverse_lower = np.linalg.solve(lower, np.eye(len(h)))
    inverse = inverse_lower.T @ inverse_lower
    return np.ascontiguousarray(np.linalg.cholesky(inverse).T, np.float32)


class Gptq:
    """The method; `act_order` takes columns with large inputs first."""

    def __init__(self, settings: MethodSettings) -> None:
        self.damping, self.act_order = settings.damping, settings.act_order

    def prepare(self, layer: LayerWeights, inputs: Inputs) -> None: ...

    def round(
        self, slot: str, rows: F32, precision: Precision, inputs: InputStatistics | None
    ) -> GroupedWeight:
        if inputs is None:
            return round_rows(rows, precision)
        order = None
        gram = inputs.gram
        if self.act_order:
            order = np.argsort(-np.diagonal(gram), kind="stable").astype(np.int32)
            gram, rows = gram[order][:, order], rows[:, order]
        factor = invert_hessian(gram, self.damping)
        return sweep(rows, factor, precision, order)


def sweep(rows: F32, factor: F32, precision: Precision, order: I32 | None = None) -> GroupedWeight:
    """Codes of rows [N, K], whose columns are in this order."""
    n, k = rows.shape
    group, most = precision.count_group(k), (1 << precision.bits) - 1
    w = rows.copy()
    codes = np.empty((n, k), np.uint8)
    scales, zeros = np.empty((n, k // group), np.float32), np.empty((n, k // group), np.float32)
    for first in range(0, k, BLOCK):
        last = min(first + BLOCK, k)
        errors = np.empty((n, last - first), np.float32)
        for j in range(first, last):
            if j % group == 0:
                cells = w[:, j : j + group]
                scales[:, j // group], zeros[:, j // group] = find_grid(
                    cells.min(axis=1), cells.max(axis=1), precision
                )
            scale, zero = scales[:, j // group], zeros[:, j // group]
            q = np.clip(np.rint(w[:, j] / scale) + zero, 0, most)
            codes[:, j] = q
            error = (w[:, j] - scale * (q - zero)) / factor[j, j]
            w[:, j:last] -= error[:, None] * factor[j, j:last]
            errors[:, j - first] = error
        w[:, last:] -= errors @ factor[first:last, last:]
    found = make_weight(codes, scales, zeros, precision)
    return found if order is None else replace(found, columns=order)
