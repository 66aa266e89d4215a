"""Products of rows with packed weights."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from flyweight.ops.operands import LowRank, Weight, Weights
from flyweight.wire import Batch


def embed(table: Weight, ids: Tensor) -> Tensor:
    raise NotImplementedError


def linear(x: Tensor, w: Weights, activations: str, deterministic: bool) -> Tensor:
    raise NotImplementedError


def linear_heads(x: Tensor, w: Sequence[Weights], activations: str, deterministic: bool) -> Tensor:
    raise NotImplementedError


def adapt(ops: Any, y: Tensor, x: Tensor, low: Mapping[int, LowRank], batch: Batch) -> None:
    raise NotImplementedError
