"""A matrix of the model with what adapters add to it, and the parts of a model by slot.

Invariant: a row's output depends on that row and its own sequence's adapter alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flyweight.ops.base import Comm, Ops
from flyweight.ops.operands import LowRank, Weights
from flyweight.spec import ModelSpec
from flyweight.wire import Batch, Tensor


@dataclass(frozen=True, slots=True)
class Linear:
    """[T,K] -> [T,N]: the weight, and by adapter index its low-rank matrices."""

    ops: Ops
    weight: Weights
    low: Mapping[int, LowRank]

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        y = self.ops.linear(x, self.weight)
        if self.low and batch.adapters is not None:
            self.ops.adapt(y, x, self.low, batch)
        return y


@dataclass(frozen=True, slots=True)
class Parts:
    """What a decoder is made of: weights by slot, and for every adapter its matrices by slot."""

    ops: Ops
    comm: Comm
    spec: ModelSpec
    weights: Mapping[str, Any]
    adapters: Sequence[Mapping[str, LowRank]] = ()

    def make_linear(self, slot: str) -> Linear:
        low = {i: adapter[slot] for i, adapter in enumerate(self.adapters) if slot in adapter}
        return Linear(self.ops, self.weights[slot], low)

    def make_optional_linear(self, slot: str) -> Linear | None:
        return self.make_linear(slot) if slot in self.weights else None
