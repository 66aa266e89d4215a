"""Choosing tokens: the columns of a `SampleBatch` go into one native call for the whole batch.

Invariant: equal to ops/reference_sample.py draw for draw; the kernel checks every length and id.
"""

from flyweight import _native
from flyweight.wire import F32, SampleBatch, Sampled


def sample(pool: _native.Pool, logits: F32, s: SampleBatch) -> Sampled:
    """[R,V] -> tokens, log-probabilities, ranks and the best few."""
    width = max(int(s.logprobs.max(initial=-1)), 0)
    draw = (s.temperature, s.top_p, s.top_k, s.min_p, s.seed, s.choice, s.position)
    history = (s.penalties, s.prompt, s.history, s.history_starts)
    bias = (s.bias_ids, s.bias_values, s.bias_starts)
    banned = (s.banned_ids, s.banned_starts)
    return Sampled(*_native.sample(pool, logits, draw, history, bias, banned, s.logprobs, width))
