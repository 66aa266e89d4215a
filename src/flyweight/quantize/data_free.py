"""Methods that need no calibration and have grids of their own: HQQ, NF4 and signs.

Invariant: a row's codes depend on that row alone.
"""

from flyweight.ops.grouped import GroupedWeight
from flyweight.quantize.binary import round_to_signs
from flyweight.quantize.hqq import round_half_quadratic
from flyweight.quantize.method import Inputs, MethodSettings
from flyweight.quantize.normal_float import round_to_floats
from flyweight.quantize.precision import Precision
from flyweight.quantize.statistics import InputStatistics
from flyweight.quantize.work import LayerWeights
from flyweight.wire import F32


class Hqq:
    """Half-quadratic zero points (`hqq`)."""

    def __init__(self, settings: MethodSettings) -> None: ...

    def prepare(self, layer: LayerWeights, inputs: Inputs) -> None: ...

    def round(
        self, slot: str, rows: F32, precision: Precision, inputs: InputStatistics | None
    ) -> GroupedWeight:
        return round_half_quadratic(rows, precision.bits, precision.count_group(rows.shape[1]))


class Signs:
    """Signs alone (`binary`), to show what is lost."""

    def __init__(self, settings: MethodSettings) -> None: ...

    def prepare(self, layer: LayerWeights, inputs: Inputs) -> None: ...

    def round(
        self, slot: str, rows: F32, precision: Precision, inputs: InputStatistics | None
    ) -> GroupedWeight:
        return round_to_signs(rows, precision.count_group(rows.shape[1]))


class NormalFloat:
    """NF4 in blocks (`normal_float`)."""

    def __init__(self, settings: MethodSettings) -> None: ...

    def prepare(self, layer: LayerWeights, inputs: Inputs) -> None: ...

    def round(
        self, slot: str, rows: F32, precision: Precision, inputs: InputStatistics | None
    ) -> GroupedWeight:
        block = precision.count_group(rows.shape[1])
        coded = round_to_floats(rows, "nf4", block)
        n, k = rows.shape
        scales = coded.absmax.reshape(n, k // block)
        found = coded.group()
        return GroupedWeight((n, k), 4, block, found.codes, scales, values=found.values)
