"""How a token is chosen, in plain NumPy: the sampler every backend must equal draw for draw.

Invariant: a row's token and log-probabilities depend on that row alone; the randomness is a hash of
(seed, choice, position), so batching, preemption and speculation never change a draw.
"""

import numpy as np
from numpy.typing import NDArray

from flyweight.wire import F32, SampleBatch, Sampled

WORD = 2**64 - 1


def sample(logits: F32, s: SampleBatch) -> Sampled:
    """[R,V] -> tokens, with raw log-probabilities and ranks where asked for (else NaN and 0)."""
    count = len(logits)
    width = max(int(s.logprobs.max(initial=-1)), 0)
    tokens = np.zeros(count, np.int32)
    logprobs, ranks = np.full(count, np.nan, np.float32), np.zeros(count, np.int32)
    top_ids = np.full((count, width), -1, np.int32)
    top = np.full((count, width), np.nan, np.float32)
    for r in range(count):
        token = choose(adjust(logits[r], s, r), s, r)
        tokens[r] = token
        if s.logprobs[r] < 0:
            continue
        raw, order = log_softmax(logits[r]), descending(logits[r])
        best = order[: s.logprobs[r]]
        logprobs[r], ranks[r] = raw[token], 1 + int(np.flatnonzero(order == token)[0])
        top_ids[r, : len(best)], top[r, : len(best)] = best, raw[best]
    return Sampled(tokens, logprobs, ranks, top_ids, top)


def descending(logits: F32) -> NDArray[np.intp]:
    """Ids from the largest logit down; equal logits by lower id."""
    return np.argsort(-logits, kind="stable")


def log_softmax(logits: F32) -> F32:
    """[V] -> [V]: float64 inside, summed in id order."""
    below = logits.astype(np.float64) - logits.max()
    total = np.exp(below).cumsum()[-1]  # cumsum adds in order; sum would not
    logprobs: F32 = (below - np.log(total)).astype(np.float32)
    return logprobs


def adjust(logits: F32, s: SampleBatch, r: int) -> F32:
    """Row r's logits after bias, ban and penalties, each operation rounded to float32 (no fma)."""
    out = logits.copy()
    own = slice(s.bias_starts[r], s.bias_starts[r + 1])
    np.add.at(out, s.bias_ids[own], s.bias_values[own])
    out[s.banned_ids[s.banned_starts[r] : s.banned_starts[r + 1]]] = -np.inf
    history = s.history[s.history_starts[r] : s.history_starts[r + 1]]
    if history.size == 0:
        return out
    repetition, presence, frequency = s.penalties[r]
    known = np.unique(history)
    out[known] = np.where(out[known] > 0, out[known] / repetition, out[known] * repetition)
    drawn, counts = np.unique(history[s.prompt[r] :], return_counts=True)
    out[drawn] -= frequency * counts.astype(np.float32)
    out[drawn] -= presence
    return out


def choose(logits: F32, s: SampleBatch, r: int) -> int:
    """The token of row r: temperature, top-k, top-p, min-p, then the draw."""
    temperature = float(s.temperature[r])
    if temperature == 0 or logits.max() == -np.inf:  # greedy, or nothing left to draw from
        return int(logits.argmax())  # numpy's argmax takes the lowest id of equals
    order = descending(logits)[: int((logits > -np.inf).sum())]
    if s.top_k[r] > 0:
        order = order[: s.top_k[r]]
    p = np.exp((logits[order].astype(np.float64) - logits[order[0]]) / temperature)  # p[0] = 1
    reach = p.cumsum()
    # the shortest prefix that holds top_p of the mass, less what is under min_p of the best
    keep = 1 + int(np.searchsorted(reach, float(s.top_p[r]) * reach[-1]))
    keep = min(keep, int((p >= float(s.min_p[r])).sum()), len(p))
    u = uniform(int(s.seed[r]), int(s.choice[r]), int(s.position[r]))
    return int(order[np.searchsorted(reach[:keep], u * reach[keep - 1], side="right")])


def uniform(seed: int, choice: int, position: int) -> float:
    """[0,1) from a counter: splitmix64's finaliser (Steele et al., 2014) over each key in turn."""
    h = _mix((seed + 0x9E3779B97F4A7C15) & WORD)
    h = _mix(h ^ (choice * 0xD1B54A32D192ED03 & WORD))
    h = _mix(h ^ (position * 0x8CB92BA72F3D8DD7 & WORD))
    return (h >> 11) * 2.0**-53


def _mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & WORD
    return z ^ (z >> 31)
