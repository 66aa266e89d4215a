"""Choosing tokens: the columns of a `SampleBatch` go into one native call for the whole batch.

Invariant: equal to ops/reference_sample.py draw for draw; the kernel checks every length and id.
Rows with one of the rarer cuts are drawn by the reference's own chain, in NumPy; the kernel is
given their tokens and adds the log-probabilities.
"""

import numpy as np

from flyweight import _native
from flyweight.ops.listed import add_listed
from flyweight.ops.reference_sample import adjust, choose, find_cuts
from flyweight.wire import F32, F64, I32, SampleBatch, Sampled


def sample(pool: _native.Pool, logits: F32, s: SampleBatch) -> Sampled:
    """[R,V] -> tokens, log-probabilities, ranks and the best few."""
    given, mu = (s.given, None) if s.cuts is None else _draw_rare(logits, s)
    answers = _native.sample(
        pool,
        logits,
        (s.temperature, s.top_p, s.top_k, s.min_p, s.seed, s.choice, s.position),
        (s.penalties, s.prompt, s.history, s.history_starts) if s.history.size else None,
        (s.bias_ids, s.bias_values, s.bias_starts) if s.bias_ids.size else None,
        (s.allowed_ids, s.allowed_starts) if s.allowed_ids.size else None,
        (s.banned_ids, s.banned_starts) if s.banned_ids.size else None,
        (s.repeat_ids, s.repeat_values, s.repeat_starts) if s.repeat_ids.size else None,
        (s.masks.rows, s.masks.words) if s.masks is not None else None,
        given,
        s.logprobs,
    )
    return add_listed(logits, s.listed, Sampled(*answers, mu))


def _draw_rare(logits: F32, s: SampleBatch) -> tuple[I32, F64]:
    """The tokens known before the kernel starts, and mirostat's state after: [R] each."""
    given, mu = s.given.copy(), np.full(len(logits), np.nan)
    for r, cut in find_cuts(s).items():
        adjusted = adjust(logits[r], s, r)
        adjusted[np.isnan(adjusted)] = -np.inf  # as in the kernel
        given[r], mu[r] = choose(adjusted, s, r, cut)
    return given, mu
