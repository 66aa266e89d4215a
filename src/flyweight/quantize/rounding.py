"""Rounding to nearest: the grid of each group of columns, and the codes of its weights.

Invariant: scales are rounded to float16, as files hold them, before codes are chosen; a code is the
nearest of its grid.  w = scale * (code - zero).
"""

import numpy as np

from flyweight.ops.cpu.calibration import GroupGrid, share_kernels
from flyweight.ops.grouped import BlockRows, GroupedWeight
from flyweight.quantize.ggml.encode import BlockEncoder
from flyweight.quantize.method import Inputs, MethodSettings
from flyweight.quantize.precision import Precision
from flyweight.quantize.statistics import InputStatistics
from flyweight.quantize.work import LayerWeights
from flyweight.wire import F32, U8


class RoundToNearest:
    """The method: each weight by itself, in the grid of its group.  Blocks of GGUF's types are
    fitted as a whole, by the importance of columns where inputs were seen.
    """

    def __init__(self, settings: MethodSettings) -> None:
        self._encoder = BlockEncoder()

    def prepare(self, layer: LayerWeights, inputs: Inputs) -> None: ...

    def round(
        self, slot: str, rows: F32, precision: Precision, inputs: InputStatistics | None
    ) -> GroupedWeight | BlockRows:
        if precision.type:
            weights = inputs.compute_mean_square() if inputs is not None else None
            raw = self._encoder.encode(precision.type, rows, weights)
            return BlockRows((len(rows), rows.shape[1]), precision.type, raw)
        return round_rows(rows, precision)


def round_rows(rows: F32, precision: Precision) -> GroupedWeight:
    """Rows [N, K] in the grid that spans each group's range; all numbers are finite."""
    group = precision.count_group(rows.shape[1])
    grid = GroupGrid(precision.bits, group, precision.symmetric)
    return make_weight(*share_kernels().round(rows, grid), precision)


def make_weight(codes: U8, scales: F32, zeros: U8, precision: Precision) -> GroupedWeight:
    """Codes [N, K], scales and zero points [N, groups] as a canonical weight."""
    n, k = codes.shape
    middle = 1 << (precision.bits - 1)
    return GroupedWeight(
        (n, k),
        precision.bits,
        k // scales.shape[1],
        codes,
        scales.astype(np.float16),
        middle if precision.symmetric else 0,
        zeros=None if precision.symmetric else zeros,
    )
