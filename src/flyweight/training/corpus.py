"""The training set: texts as tokens, their states, and what the model itself would say.

Invariant: `choices[t]` is the token that the model ranks first after tokens[:t+1], so a head learns
the model's words, not the text's.  Needs torch (the extra `train`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from flyweight.training.logits import compute_logits, prepare_head
from flyweight.training.states import TextStates
from flyweight.wire import F32, I64

ROWS = 1 << 14  # states whose choices are computed at once


@dataclass(frozen=True, slots=True)
class Corpus:
    """Texts end to end: tokens and choices [N], states in half precision, those of the tapped
    layers side by side, and the number of tokens of each text.
    """

    tokens: torch.Tensor
    choices: torch.Tensor
    states: torch.Tensor
    lengths: I64

    @classmethod
    def of(
        cls, texts: Sequence[TextStates], head: torch.Tensor, taps: Sequence[int] = (-1,)
    ) -> "Corpus":
        """`head` [V,H] is the model's output matrix; the final states are tap -1."""
        states = join_states(texts, taps)
        last = states if tuple(taps) == (-1,) else join_states(texts, (-1,))
        choices = [choose(last[i : i + ROWS], head) for i in range(0, len(last), ROWS)]
        tokens = np.concatenate([x.tokens for x in texts]).astype(np.int64)
        lengths = np.array([len(x.tokens) for x in texts], np.int64)
        return cls(torch.from_numpy(tokens), torch.cat(choices), states, lengths)

    def count_left(self) -> I64:
        """How many tokens of its text begin at each token, its own included: [N]."""
        return np.concatenate([np.arange(n, 0, -1) for n in self.lengths])

    def batch_texts(self, tokens: int, seed: int) -> Iterator[tuple[torch.Tensor, int]]:
        """Places [S,L] of texts of like length, about so many tokens at a time, in an order that
        `seed` decides, without end; L is the longest, and shorter texts repeat their last token.
        """
        starts = np.cumsum([0, *self.lengths[:-1]])
        order = np.argsort(self.lengths, kind="stable")
        groups: list[I64] = []
        group: list[int] = []
        for i in order:
            if group and self.lengths[i] * (len(group) + 1) > tokens:
                groups.append(np.array(group))
                group = []
            group.append(i)
        groups.append(np.array(group))
        rng = np.random.default_rng(seed)
        while True:
            for g in rng.permutation(len(groups)):
                own = groups[g]
                longest = int(self.lengths[own].max())
                places = np.minimum(np.arange(longest), self.lengths[own][:, None] - 1)
                yield torch.from_numpy(starts[own][:, None] + places), longest


def join_states(texts: Sequence[TextStates], taps: Sequence[int]) -> torch.Tensor:
    """The states of all texts [N, taps * H], in half precision."""
    count, hidden = sum(len(text.tokens) for text in texts), texts[0].states[taps[0]].shape[1]
    joined, first = np.empty((count, len(taps) * hidden), np.float16), 0
    for text in texts:
        stop = first + len(text.tokens)
        np.concatenate([text.states[tap] for tap in taps], 1, out=joined[first:stop])
        first = stop
    return torch.from_numpy(joined)


def choose(states: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    """What the model ranks first after each state."""
    return compute_logits(states, prepare_head(head)).argmax(-1)


def find_schedule(step: int, steps: int, rate: float) -> float:
    """The learning rate: a short rise, then a straight line to nearly nothing."""
    return rate * min(1.0, (step + 1) / 50) * max(0.02, 1 - step / steps)


def to_arrays(tensors: dict[str, torch.Tensor]) -> dict[str, F32]:
    """Parameters as float32 arrays."""
    return {name: x.detach().float().numpy() for name, x in tensors.items()}
