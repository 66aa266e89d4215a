"""Mixtures of experts: routing, and the experts' matrices as one grouped product."""

from collections.abc import Sequence

import torch
from torch import Tensor

from flyweight.ops.cuda.kernels import route as kernels
from flyweight.ops.operands import Weights
from flyweight.spec import RouteSpec


def route(logits: Tensor, spec: RouteSpec, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """[T,E] -> ids [T,k], best first, and their weights [T,k]."""
    tokens, logits = logits.shape[0], logits.contiguous()
    ids = torch.empty((tokens, spec.top), dtype=torch.int32, device=logits.device)
    weights = torch.empty((tokens, spec.top), dtype=torch.float32, device=logits.device)
    if tokens:
        per = spec.experts // spec.groups
        kernels.route_kernel[(tokens,)](
            logits, logits if bias is None else bias, ids, weights, spec.experts, spec.top,
            _round_up(spec.top), spec.scoring, spec.normalise, spec.scale, spec.groups,
            min(spec.kept, spec.groups), min(spec.judges, per), _round_up(spec.groups),
            _round_up(per), bias is not None, num_warps=1,
        )  # fmt: skip
    return ids, weights


def _round_up(count: int) -> int:
    """The next power of 2, from 2 on."""
    return max(2, 1 << (count - 1).bit_length())


def experts(
    x: Tensor, chosen: tuple[Tensor, Tensor], up: Sequence[Weights], down: Sequence[Weights],
    act: str, activations: str,
) -> Tensor:  # fmt: skip
    raise NotImplementedError
