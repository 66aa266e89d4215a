"""Decoder layers on the device: in the finer ops, or replayed from a captured graph.

Invariant: a replayed step gives the bits of the finer ops.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from flyweight.ops.operands import KVLayer, Rotation
from flyweight.ops.stack import Layer, run
from flyweight.wire import Batch


class CudaStack:
    """Layers run one after the other."""

    def __init__(self, ops: Any, layers: Sequence[Layer]) -> None:
        self.ops, self.layers = ops, layers

    def __call__(
        self, residual: Tensor, kv: Sequence[KVLayer], batch: Batch, ropes: Sequence[Rotation]
    ) -> Tensor:
        return run(self.layers, None, residual, kv, batch, ropes)
