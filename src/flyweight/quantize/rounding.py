"""Rounding to nearest: the grid of each group of columns, and the codes of its weights.

Invariant: scales are rounded to float16, as files hold them, before codes are chosen; a code is the
nearest of its grid.  w = scale * (code - zero).
"""

import numpy as np

from flyweight.ops.grouped import BlockRows, GroupedWeight
from flyweight.quantize.ggml.encode import BlockEncoder
from flyweight.quantize.method import Inputs, MethodSettings
from flyweight.quantize.precision import Precision
from flyweight.quantize.statistics import InputStatistics
from flyweight.quantize.work import LayerWeights
from flyweight.wire import F32, U8

SMALLEST = np.float32(2**-24)  # the least float16 above 0
LARGEST = np.float32(65504)


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
            return BlockRows(
                (len(rows), rows.shape[1]),
                precision.type,
                self._encoder.encode(precision.type, rows, weights),
            )
        return round_rows(rows, precision)


def round_rows(rows: F32, precision: Precision) -> GroupedWeight:
    """Rows [N, K] in the grid that spans each group's range; all numbers are finite."""
    n, k = rows.shape
    group = precision.count_group(k)
    cells = rows.reshape(n, k // group, group)
    scales, zeros = find_grid(cells.min(axis=2), cells.max(axis=2), precision)
    codes = choose_codes(cells, scales, zeros, precision.bits).reshape(n, k)
    return make_weight(codes, scales, zeros, precision)


def find_grid(low: F32, high: F32, precision: Precision) -> tuple[F32, F32]:
    """Scales and zero points for groups with these least and largest weights."""
    most = (1 << precision.bits) - 1
    if precision.symmetric:
        middle = 1 << (precision.bits - 1)
        spread = np.maximum(np.abs(low), np.abs(high)).astype(np.float32) / np.float32(middle - 0.5)
        return round_scales(spread), np.full_like(low, middle)
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    scales = round_scales((high - low) / np.float32(most))
    # a zero point of 0 has no place in GPTQ's first layout, which stores it less 1
    return scales, np.clip(np.rint(-low / scales), 1, most)


def round_scales(scales: F32) -> F32:
    """float16's nearest, never 0."""
    kept = np.clip(scales, SMALLEST, LARGEST).astype(np.float16)
    found: F32 = np.maximum(kept.astype(np.float32), SMALLEST)
    return found


def choose_codes(cells: F32, scales: F32, zeros: F32, bits: int) -> U8:
    """[N, groups, group]: the nearest codes."""
    codes = np.rint(cells / scales[:, :, None]) + zeros[:, :, None]
    found: U8 = np.clip(codes, 0, (1 << bits) - 1).astype(np.uint8)
    return found


def make_weight(codes: U8, scales: F32, zeros: F32, precision: Precision) -> GroupedWeight:
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
        zeros=None if precision.symmetric else zeros.astype(np.uint8),
    )
