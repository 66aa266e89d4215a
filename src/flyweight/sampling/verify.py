"""Judges drafts: how many of a drafter's guesses stand, and which token follows them.

Invariant: 1 to k+1 tokens come of k guesses.  `accept` keeps the text exactly what it would be
without drafts, at any temperature, because each row's sample uses its own position's randomness;
`accept_residual` keeps only its distribution.  Neither knows sequences or caches.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


def accept(draft: Sequence[int], sampled: Sequence[int]) -> list[int]:
    """The tokens the target itself drew, as far as they were drawn after the right tokens.

    `sampled[i]` is the target's token at the row that has seen draft[:i]: k+1 of them for k drafts.
    Row i is worth something only if draft[:i] is what the target drew, so the list ends with the
    first sample that differs from its draft.
    """
    assert len(sampled) == len(draft) + 1, f"{len(sampled)} samples for {len(draft)} drafts"
    kept = 0
    while kept < len(draft) and draft[kept] == sampled[kept]:
        kept += 1
    return list(sampled[: kept + 1])


def accept_residual(draft: Sequence[int], target: F64, proposal: F64, noise: F64) -> list[int]:
    """Speculative sampling (Leviathan et al., 2023, algorithm 1): tokens distributed as target's.

    `target` [k+1,V] are the target's probabilities at each row, `proposal` [k,V] those each draft
    was drawn from, `noise` [k+1,2] uniforms in [0,1): whether to keep draft i, and what to draw.
    """
    assert len(target) == len(draft) + 1 and len(proposal) == len(draft)
    for i, token in enumerate(draft):
        p, q = target[i], proposal[i]
        if noise[i, 0] * q[token] < p[token]:  # kept with probability min(1, p/q)
            continue
        return [*draft[:i], _draw(np.maximum(p - q, 0), noise[i, 1])]
    return [*draft, _draw(target[-1], noise[-1, 1])]


def _draw(mass: F64, u: float) -> int:
    """The id at which the cumulative mass, which need not end at 1, passes the share u of it."""
    reach = mass.cumsum()
    return int(np.searchsorted(reach, u * reach[-1], side="right"))
