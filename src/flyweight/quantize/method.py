"""What a method of quantisation is: a change of a layer that keeps its results, and a way to round
rows.

Invariant: a method sees one layer's floats and the statistics of its inputs; it knows no file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from flyweight.ops.grouped import BlockRows, GroupedWeight
from flyweight.quantize.precision import Precision
from flyweight.quantize.statistics import InputStatistics
from flyweight.quantize.work import LayerWeights
from flyweight.wire import F32

Inputs = Mapping[str, InputStatistics]  # by slot


@dataclass(frozen=True, slots=True)
class MethodSettings:
    """What users choose about methods: `act_order` takes columns with large inputs first, `damping`
    is GPTQ's share of the mean diagonal, `alpha` SmoothQuant's share of what moves into
    weights (None: the method's).  Methods add to `notes` what users should know of the result.
    """

    act_order: bool = False
    damping: float = 0.01
    alpha: float | None = None
    notes: list[str] = field(default_factory=list)


class Method(Protocol):
    """What is done to one layer."""

    def prepare(self, layer: LayerWeights, inputs: Inputs) -> None:
        """Changes a layer's weights in ways that leave its results as they are."""
        ...

    def round(
        self, slot: str, rows: F32, precision: Precision, inputs: InputStatistics | None
    ) -> GroupedWeight | BlockRows:
        """Rows [N, K] of a slot as codes."""
        ...
