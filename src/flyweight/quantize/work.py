"""One layer in memory while it is quantised: its matrices, biases and vectors in float32.

Invariant: the contents are those of slots (`spec.WeightPlan`), so methods need no file format.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from flyweight.quantize.finite import (
    read_finite_bias,
    read_finite_matrix,
    read_finite_vector,
)
from flyweight.quantize.folds import Fold
from flyweight.quantize.precision import KEEP, Precision
from flyweight.spec import SlotPlan
from flyweight.weights.checkpoint import Checkpoint
from flyweight.wire import F32


@dataclass(slots=True)
class LayerWeights:
    """By slot: `matrices` [N, K], `biases` [N] where there are any, `vectors` flat.  `folds` are
    the places for scales of inputs, `precision` is that of most of its matrices.
    """

    matrices: dict[str, F32]
    biases: dict[str, F32]
    vectors: dict[str, F32]
    folds: Sequence[Fold] = ()
    precision: Precision = KEEP

    @classmethod
    def read(cls, checkpoint: Checkpoint, slots: Sequence[SlotPlan]) -> "LayerWeights":
        """Raises `ConfigError`."""
        linear = [slot for slot in slots if slot.kind != "vector"]
        biases = {slot.name: read_finite_bias(checkpoint, slot) for slot in linear}
        return cls(
            {slot.name: read_finite_matrix(checkpoint, slot) for slot in linear},
            {name: bias for name, bias in biases.items() if bias is not None},
            {s.name: read_finite_vector(checkpoint, s) for s in slots if s.kind == "vector"},
        )
