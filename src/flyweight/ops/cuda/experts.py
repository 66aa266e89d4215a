"""Mixtures of experts: routing, and the experts' matrices as one grouped product."""

from collections.abc import Sequence

from torch import Tensor

from flyweight.ops.operands import Weights
from flyweight.spec import RouteSpec


def route(logits: Tensor, spec: RouteSpec, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    raise NotImplementedError


def experts(
    x: Tensor, chosen: tuple[Tensor, Tensor], up: Sequence[Weights], down: Sequence[Weights],
    act: str, activations: str,
) -> Tensor:  # fmt: skip
    raise NotImplementedError
