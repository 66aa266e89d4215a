"""Trains Medusa heads (Cai et al., 2024) on the final hidden states: head i learns what the model
says i + 1 tokens after its next one.

Heads are blocks x + silu(Wx + b) before the model's own output matrix, which stays as it is: a
matrix of their own would be larger than all the rest.  Needs torch (the extra `train`).
"""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from flyweight.training.corpus import Corpus, find_schedule
from flyweight.training.logits import compute_logits, prepare_head


class MedusaBlocks(nn.Module):  # type: ignore[misc]
    """The blocks of every head; they begin as the state itself."""

    def __init__(self, hidden: int, heads: int, layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers)) for _ in range(heads)
        )
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: torch.Tensor, head: int) -> torch.Tensor:
        for linear in self.blocks[head]:
            x = x + F.silu(linear(x))
        return x


def train_medusa(
    corpus: Corpus,
    head: torch.Tensor,
    sizes: tuple[int, int],
    steps: int,
    progress: Callable[[float], None] = lambda loss: None,
    tokens: int = 1024,
) -> dict[str, torch.Tensor]:
    """`head` is the model's output matrix [V,H], `sizes` heads and blocks of each.  The tensors,
    under vLLM's names.
    """
    torch.manual_seed(0)
    heads, layers = sizes
    model = MedusaBlocks(corpus.states.shape[1], heads, layers)
    optimiser = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.0)
    usable = torch.from_numpy(np.flatnonzero(corpus.count_left() > heads + 1))
    head = prepare_head(head)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = find_schedule(step, steps, 3e-3)
        places = usable[torch.randint(len(usable), (tokens,))]
        states, loss = corpus.states[places].float(), torch.zeros(())
        for i in range(heads):
            logits = compute_logits(model(states, i), head)
            loss = loss + F.cross_entropy(logits, corpus.choices[places + i + 1]) / heads
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        progress(float(loss.detach()))
    return {
        f"blocks.{i}.layers.{j}.{name}": value.detach()
        for i, blocks in enumerate(model.blocks)
        for j, linear in enumerate(blocks)
        for name, value in linear.named_parameters()
    }
