"""The two optimisers' one step each: Muon for the matrices, Adam for the embedding and the norms.

Muon (Jordan et al., 2024, "Muon: an optimizer for hidden layers") replaces a matrix's momentum by
the nearest orthogonal matrix, so that every direction learns at one speed; a small model then
needs clearly fewer tokens. Fused projections are cut into their parts before they are made
orthogonal, and all layers go through one batched product.
"""

import torch
from torch import Tensor

_QUINTIC = (3.4445, -4.7750, 2.0315)  # pushes every singular value into about [0.7, 1.2]


def orthogonal(matrix: Tensor, rounds: int = 5) -> Tensor:
    """Newton-Schulz approximation of U V^T for each [rows, columns] of [layers, rows, columns]."""
    x = matrix.to(torch.bfloat16)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = _QUINTIC
    for _ in range(rounds):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return (x.mT if tall else x).float()


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, made orthogonal; each parameter is [layers, rows, columns].

    `parts` per parameter group: the row counts into which a fused projection is cut.
    """

    def __init__(self, groups: list[dict[str, object]], lr: float, momentum: float = 0.95) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state["momentum"] = torch.zeros_like(weight)
                state["momentum"].lerp_(weight.grad, 1 - group["momentum"])
                ahead = weight.grad.lerp(state["momentum"], group["momentum"])
                cuts = [whole.split(group["parts"], 1) for whole in (weight, ahead)]
                for part, direction in zip(*cuts, strict=True):
                    gain = max(1.0, part.shape[-2] / part.shape[-1]) ** 0.5
                    part.add_(orthogonal(direction), alpha=-group["lr"] * gain)
