"""Rejection sampling (Leviathan et al., 2022; Chen et al., 2023): draft tokens are accepted by
their probabilities, and a rejected one is replaced by a draw from the residual distribution.

Invariant: the token at a row has the row's own distribution, after penalties, temperature and all
cuts, whatever was drafted and whatever it was drafted from.  Random numbers depend on (seed,
choice, position), and on no draw of the sampler.
"""

from itertools import pairwise

import numpy as np

from flyweight.ops.reference_sample import (
    OFF,
    adjust,
    draw_uniform,
    find_cuts,
    select_candidates,
)
from flyweight.wire import F32, F64, I32, I64, CutRow, SampleBatch

STREAMS = 0x5851F42D4C957F2D, 0x14057B7EF767814F  # of random numbers: accept, residual


def compute_distribution(logits: F32, s: SampleBatch, r: int, cut: CutRow = OFF) -> F32:
    """[V] -> [V]: what row r is drawn from; where it is greedy, 1 for the likeliest."""
    adjusted = adjust(logits, s, r)
    adjusted[np.isnan(adjusted)] = -np.inf
    out = np.zeros(len(logits), np.float32)
    if s.temperature[r] == 0 or not np.isfinite(adjusted.max()):
        out[adjusted.argmax()] = 1
        return out
    ids, p = select_candidates(adjusted, s, r, cut)
    out[ids] = p / p.sum()
    return out


def list_distributions(logits: F32, s: SampleBatch) -> list[F32]:
    """What each row is drawn from: [V] each."""
    cuts = find_cuts(s)
    return [compute_distribution(row, s, r, cuts.get(r, OFF)) for r, row in enumerate(logits)]


def settle_proposals(logits: F32, s: SampleBatch) -> I32:
    """`s.given` with the tokens of rows that have a draft token, [R]: the draft token where it is
    accepted, at the first row of a draft where it is not another one.  Rows after that see tokens
    that are not in the text, and stay as they are.
    """
    given, found, cuts = s.given.copy(), s.proposals, find_cuts(s)
    if found is None:
        return given
    starts = found.starts.tolist()
    for first, stop in pairwise(starts):
        for i in range(first, stop):
            r, drafted, q = int(found.rows[i]), found.tokens[i : i + 1], found.probs[i]
            p = compute_distribution(logits[r], s, r, cuts.get(r, OFF))
            key = int(s.seed[r]), int(s.choice[r]), int(s.position[r])
            accept, residual = (np.array([draw_uniform(*key, stream)]) for stream in STREAMS)
            given[r] = verify(p[None], q[None], drafted, (accept, residual))[0]
            if given[r] != drafted[0]:
                break
    return given


def verify(p: F32, q: F32, drafted: I32, numbers: tuple[F64, F64]) -> I64:
    """[D,V], [D,V], [D] -> tokens [D], distributed as p where `drafted` are distributed as q.
    `numbers` are uniform in [0, 1) and independent of the drafts: what decides over a draft token,
    and what draws from the residual.
    """
    accept, residual = numbers
    rows = np.arange(len(p))
    wide, other = p.astype(np.float64), q.astype(np.float64)
    kept = accept * other[rows, drafted] < wide[rows, drafted]  # u < p/q
    rest = np.maximum(wide - other, 0)
    empty = rest.sum(axis=1) <= 0  # p is q, to the last bits: nothing is rejected
    rest[empty] = wide[empty]
    reach = rest.cumsum(axis=1)
    last = reach[:, -1]
    target = np.minimum(residual * last, np.nextafter(last, 0))
    drawn = (reach <= target[:, None]).sum(axis=1)
    tokens: I64 = np.where(kept, drafted, drawn)
    return tokens
