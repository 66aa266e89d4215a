"""GPTQ (Frantar et al., 2023): columns are rounded one after the other, and the error of each is
made good by the columns after it, by the inverse of the inputs' Hessian.

Invariant: rows do not depend on each other; groups are those of the file, so a group's grid is
found from weights that earlier columns have corrected (native/sweep.cpp; of GGUF's types
quantize/ggml/feedback.py).
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flyweight.errors import ConfigError
from flyweight.ops.cpu.calibration import GroupGrid, share_kernels
from flyweight.ops.grouped import BlockRows, GroupedWeight
from flyweight.quantize.ggml.encode import BlockEncoder
from flyweight.quantize.ggml.feedback import ColumnWeights, encode_with_feedback
from flyweight.quantize.method import Inputs, MethodSettings
from flyweight.quantize.precision import Precision
from flyweight.quantize.rounding import RoundToNearest, make_weight
from flyweight.quantize.statistics import InputStatistics
from flyweight.quantize.work import LayerWeights
from flyweight.wire import F32, I32

F64 = NDArray[np.float64]
MOST_DAMPING = 1.0
SHRINK = True  # ranges of groups are searched
SMALL = 48  # rows of a triangle that is inverted row by row


@dataclass(frozen=True, slots=True)
class InverseHessian:
    """H^-1 = U^T U: `factor` is the upper U [K, K], `damping` the share of the mean diagonal that
    it took, `dead` [K] the columns that no input uses.
    """

    factor: F32
    damping: float
    dead: NDArray[np.bool_]


ColumnOrder = tuple[InverseHessian, I32 | None]  # the order of columns, None: the file's


class Gptq:
    """The method; `act_order` takes columns with large inputs first.  Weights that no input of the
    calibration uses become 0.
    """

    def __init__(self, settings: MethodSettings) -> None:
        self.damping, self.act_order = settings.damping, settings.act_order
        self.notes = settings.notes
        self._nearest, self._encoder = RoundToNearest(settings), BlockEncoder()
        self._last: tuple[InputStatistics, ColumnOrder] | None = None

    def prepare(self, layer: LayerWeights, inputs: Inputs) -> None: ...

    def round(
        self, slot: str, rows: F32, precision: Precision, inputs: InputStatistics | None
    ) -> GroupedWeight | BlockRows:
        if inputs is None:
            return self._nearest.round(slot, rows, precision, None)
        if self._last is None or self._last[0] is not inputs:  # parts of a slot share them
            self._last = inputs, self._invert(slot, inputs.gram)
        found, order = self._last[1]
        if order is not None:
            rows = rows[:, order]
        if found.dead.any():
            rows = np.where(found.dead, np.float32(0), rows)
        if precision.type:
            columns = ColumnWeights(inputs.compute_mean_square(), found.factor)
            raw = encode_with_feedback(self._encoder, precision.type, rows, columns)
            return BlockRows((len(rows), rows.shape[1]), precision.type, raw)
        weight = sweep(rows, found.factor, precision)
        return weight if order is None else replace(weight, columns=order)

    def _invert(self, slot: str, gram: F32) -> ColumnOrder:
        order = None
        if self.act_order:
            order = np.argsort(-np.diagonal(gram), kind="stable").astype(np.int32)
            gram = gram[np.ix_(order, order)]
        found = invert_hessian(gram, self.damping, slot)
        if found.damping > self.damping:
            self.notes.append(f"{slot}: damping raised to {found.damping:g}")
        return found, order


def sweep(rows: F32, factor: F32, precision: Precision) -> GroupedWeight:
    """Codes of rows [N, K], whose columns are in the order of `factor` [K, K]."""
    grid = GroupGrid(
        precision.bits, precision.count_group(rows.shape[1]), precision.symmetric, SHRINK
    )
    return make_weight(*share_kernels().sweep(rows, factor, grid), precision)


def invert_hessian(gram: F32, damping: float, slot: str) -> InverseHessian:
    """Of a sum of x^T x [K, K], with `damping` times its mean diagonal added, or ten times as much
    as often as it takes; columns that no input uses get the mean.  Raises `ConfigError` where the
    calibration says nothing of the slot, or more than numbers hold.
    """
    diagonal = np.diagonal(gram).astype(np.float64)
    mean = float(diagonal.mean())
    if not np.isfinite(gram).all():
        raise ConfigError(f"gives inputs of {slot} that are not finite", "calibration")
    if mean <= 0:
        raise ConfigError(f"gives inputs of {slot} that are all 0", "calibration")
    dead = diagonal == 0
    share = damping
    while True:
        lower = _decompose(gram, np.where(dead, mean, share * mean))
        if lower is not None:
            break
        if share >= MOST_DAMPING:
            raise ConfigError(
                f"gives inputs of {slot} whose products are no Hessian, even with damping "
                f"{share:g}",
                "calibration",
            )
        share = min(10 * share, MOST_DAMPING)
    invert_lower(lower)
    factor = np.ascontiguousarray(lower[::-1, ::-1], np.float32)
    return InverseHessian(factor, share, dead)


def _decompose(gram: F32, added: F64) -> F64 | None:
    """The lower Cholesky factor of the matrix with `added` on its diagonal and both axes reversed.
    The reverse of its inverse is the upper factor of the inverse, so no second one is needed.
    """
    h = gram[::-1, ::-1].astype(np.float64)
    h[np.diag_indices(len(h))] += added[::-1]
    try:
        found: F64 = np.asarray(np.linalg.cholesky(h), np.float64)
    except np.linalg.LinAlgError:
        return None
    return found


def invert_lower(lower: F64) -> None:
    """Inverts a lower triangular matrix in place, by halves: products are all of the work."""
    n = len(lower)
    if n <= SMALL:
        for i in range(n):
            lower[i, :i] = (lower[i, :i] @ lower[:i, :i]) / -lower[i, i]
            lower[i, i] = 1 / lower[i, i]
        return
    half = n // 2
    first, second = lower[:half, :half], lower[half:, half:]
    invert_lower(first)
    invert_lower(second)
    lower[half:, :half] = -(second @ lower[half:, :half]) @ first
