"""How a token is chosen, in plain NumPy: the sampler every backend must equal draw for draw.

Invariant: a row's token and log-probabilities depend on that row alone; the randomness is a hash of
(seed, choice, position), so batching, preemption and speculation never change a draw. Each of the
rarer cuts (top-n-sigma, typical-p, XTC, mirostat) leaves at least one candidate and keeps their
order. The CPU backend calls these for rows that use one, and `add_listed` for all.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flyweight.wire import F32, F64, I64, U32, CutRow, ListedLogprobs, SampleBatch, Sampled


def add_listed(logits: F32, listed: ListedLogprobs | None, found: Sampled) -> Sampled:
    """`found` with the listed ids in place of the best ones, in the rows that have such a list.
    The best one's logit and log-probability differ by the row's normaliser, to the last bits: no
    other log-probability is nearer to 0.
    """
    if listed is None:
        return found
    counts = np.diff(listed.starts)
    width = max(found.top_ids.shape[1], int(counts.max()))
    if not counts.all():
        width = logits.shape[1]
    top_ids = _widen(found.top_ids, width, -1)
    top = _widen(found.top_logprobs, width, np.nan)
    for i, row in enumerate(listed.rows.tolist()):
        ids = listed.ids[listed.starts[i] : listed.starts[i + 1]]
        if not len(ids):
            ids = np.argsort(-logits[row], kind="stable").astype(np.int32)
        token, best = found.tokens[row], found.top_ids[row, 0]
        total = np.float64(logits[row, best]) - found.top_logprobs[row, 0]
        values = logits[row, ids].astype(np.float64) - total
        top_ids[row, : len(ids)] = ids
        top[row, : len(ids)] = np.where(ids == token, found.logprobs[row], values)
    return replace(found, top_ids=top_ids, top_logprobs=top)


def _widen(columns: NDArray[Any], width: int, filler: float) -> NDArray[Any]:
    out: NDArray[Any] = np.full((len(columns), width), filler, columns.dtype)
    out[:, : columns.shape[1]] = columns
    return out


ESTIMATED = 100  # candidates mirostat 1 estimates the distribution's exponent from, as published


def ban_below_sigmas(logits: F32, n: float) -> F32:
    """Top-n-sigma (Tang et al., 2024): bans logits more than n standard deviations below the
    largest logit; those banned before are not counted.
    """
    valid = logits[logits > -np.inf].astype(np.float64)
    floor = valid.max() - n * valid.std()
    cut: F32 = np.where(logits.astype(np.float64) >= floor, logits, np.float32(-np.inf))
    return cut


def select_typical(p: F64, mass: float) -> I64:
    """Locally typical sampling (Meister et al., 2023): the candidates whose surprise is nearest to
    the expected one, equally near ones in order, until they hold `mass` of the probability.
    """
    share = p / p.sum()
    surprise = -np.log(np.maximum(share, np.finfo(np.float64).tiny))
    order = np.argsort(np.abs(surprise - (share * surprise).sum()), kind="stable")
    reach = share[order].cumsum()
    keep = 1 + int(np.searchsorted(reach, mass * reach[-1]))
    kept: I64 = np.sort(order[:keep])
    return kept


def count_excluded(p: F64, threshold: float) -> int:
    """XTC (exclude top choices): how many of the likeliest go; the last with at least `threshold`
    of the probability stays.
    """
    return max(0, int((p >= threshold * p.sum()).sum()) - 1)


def count_mirostat(p: F64, version: float, mu: float, vocab: int) -> int:
    """How many of the likeliest candidates mirostat (Basu et al., 2021) keeps at state `mu`."""
    share = p / p.sum()
    if version == 2:
        return max(1, int((share >= 2.0**-mu).sum()))
    return _estimate_count(share[:ESTIMATED], mu, vocab, len(p))


def _estimate_count(best: F64, mu: float, vocab: int, most: int) -> int:
    """Mirostat 1: fits p_i ~ i^-s to the best, and takes the k whose expected surprise is mu."""
    best = best[best > 0]
    i = np.arange(1, len(best))
    t, b = np.log((i + 1) / i), np.log(best[:-1] / best[1:])
    s = float((t * b).sum() / (t * t).sum()) if len(best) > 1 else 0.0
    if s <= 0:  # one candidate, or all alike: no tail to cut
        return most
    e = s - 1
    with np.errstate(over="ignore"):
        spread = -np.expm1(-e * np.log(vocab)) / e if e else np.log(vocab)
        k = np.power(np.exp2(mu) / spread, 1 / s)
    return most if not k < most else max(1, int(k))


def compute_surprise(p: F64, place: int) -> float:
    """Bits of surprise at candidate `place` of those kept."""
    return float(-np.log2(p[place] / p.sum()))


WORD = 2**64 - 1
OFF = CutRow()
SHARPEST = np.float32(1e30)  # of one over a temperature: the best logit's distance, 0, stays 0
XTC = 0x9FB21C651E98DF25  # its chance is a number of its own


def sample(logits: F32, s: SampleBatch) -> Sampled:
    """[R,V] -> tokens, with raw log-probabilities and ranks where requested (else NaN and 0)."""
    count = len(logits)
    width = max(int(s.logprobs.max(initial=-1)), 0)
    tokens = np.zeros(count, np.int32)
    logprobs, ranks = np.full(count, np.nan, np.float32), np.zeros(count, np.int32)
    top_ids = np.full((count, width), -1, np.int32)
    top = np.full((count, width), np.nan, np.float32)
    cuts, mu = find_cuts(s), np.full(count, np.nan)
    for r in range(count):
        token = int(s.given[r])
        if token < 0:
            token, mu[r] = choose(adjust(logits[r], s, r), s, r, cuts.get(r, OFF))
        tokens[r] = token
        if s.logprobs[r] < 0:
            continue
        raw, order = log_softmax(logits[r]), sort_descending(logits[r])
        best = order[: s.logprobs[r]]
        logprobs[r], ranks[r] = raw[token], 1 + int(np.flatnonzero(order == token)[0])
        top_ids[r, : len(best)], top[r, : len(best)] = best, raw[best]
    found = Sampled(tokens, logprobs, ranks, top_ids, top, mu if cuts else None)
    return add_listed(logits, s.listed, found)


def find_cuts(s: SampleBatch) -> dict[int, CutRow]:
    """The rarer cuts of those rows that have one."""
    if s.cuts is None:
        return {}
    return {
        r: CutRow(*values)
        for r, values in zip(s.cuts.rows.tolist(), s.cuts.values.tolist(), strict=True)
    }


def sort_descending(logits: F32) -> I64:
    """Ids from the largest logit down; equal logits by lower id.  That is a stable sort; one of
    words that hold logit and id is ten times as fast.
    """
    bits = (0 - logits).view(np.uint32)  # 0 - x: no zero is negative
    upwards = np.where(bits >> 31, ~bits, bits | 1 << 31).astype(np.uint64)
    packed = upwards << np.uint64(32) | np.arange(len(logits), dtype=np.uint64)
    packed.sort()
    ids: I64 = (packed & np.uint64(2**32 - 1)).astype(np.int64)
    return ids


def log_softmax(logits: F32) -> F32:
    """[V] -> [V]: float64 inside, summed in id order."""
    below = logits.astype(np.float64) - logits.max()
    total = np.exp(below).cumsum()[-1]  # cumsum adds in order; sum would not
    logprobs: F32 = (below - np.log(total)).astype(np.float32)
    return logprobs


def adjust(logits: F32, s: SampleBatch, r: int) -> F32:
    """Row r's logits after bias, bans and penalties, each operation rounded to float32 (no fma)."""
    out = logits.copy()
    own = slice(s.bias_starts[r], s.bias_starts[r + 1])
    np.add.at(out, s.bias_ids[own], s.bias_values[own])
    allowed = s.allowed_ids[s.allowed_starts[r] : s.allowed_starts[r + 1]]
    if allowed.size:
        others = np.ones(len(out), bool)
        others[allowed] = False
        out[others] = -np.inf
    out[s.banned_ids[s.banned_starts[r] : s.banned_starts[r + 1]]] = -np.inf
    if s.masks is not None:
        for words in s.masks.words[s.masks.rows == r]:
            out[~unpack_mask(words, len(out))] = -np.inf
    _penalise(out, s, r)
    own = slice(s.repeat_starts[r], s.repeat_starts[r + 1])
    np.subtract.at(out, s.repeat_ids[own], s.repeat_values[own])
    return out


def unpack_mask(words: U32, vocab: int) -> NDArray[np.bool_]:
    """The ids whose bit is set: [V]."""
    bits = words[:, None] >> np.arange(32, dtype=np.uint32) & np.uint32(1)
    return bits.ravel()[:vocab].astype(bool)


def _penalise(out: F32, s: SampleBatch, r: int) -> None:
    history = s.history[s.history_starts[r] : s.history_starts[r + 1]]
    if history.size == 0:
        return
    repetition, presence, frequency = s.penalties[r]
    known = np.unique(history)
    out[known] = np.where(out[known] > 0, out[known] / repetition, out[known] * repetition)
    drawn, counts = np.unique(history[s.prompt[r] :], return_counts=True)
    out[drawn] -= frequency * counts.astype(np.float32)
    out[drawn] -= presence


def choose(logits: F32, s: SampleBatch, r: int, cut: CutRow) -> tuple[int, float]:
    """The token of row r, and mirostat's state after it."""
    if s.temperature[r] == 0 or not np.isfinite(logits.max()):  # greedy, or nothing to draw from
        return int(logits.argmax()), cut.mu  # numpy's argmax takes the lowest id of equals
    ids, p = select_candidates(logits, s, r, cut)
    reach = p.cumsum()
    u = draw_uniform(int(s.seed[r]), int(s.choice[r]), int(s.position[r]))
    place = int(np.searchsorted(reach, u * reach[-1], side="right"))
    mu = cut.mu
    if cut.mirostat:
        mu -= cut.mirostat_eta * (compute_surprise(p, place) - cut.mirostat_tau)
    return int(ids[place]), mu


def select_candidates(logits: F32, s: SampleBatch, r: int, cut: CutRow) -> tuple[I64, F64]:
    """The candidates of row r that all cuts, one after the other, leave; best first, with their
    weights.
    """
    if cut.top_n_sigma > 0:
        logits = ban_below_sigmas(logits, cut.top_n_sigma)
    ids = np.flatnonzero(logits > -np.inf)
    ids = ids[sort_descending(logits[ids])]
    if s.top_k[r] > 0:
        ids = ids[: s.top_k[r]]
    p = compute_weights(logits[ids], s.temperature[r])
    if cut.typical_p < 1:
        near = select_typical(p, cut.typical_p)
        ids, p = ids[near], p[near]
    reach = p.cumsum()
    # the shortest prefix that holds top_p of the mass, less what is under min_p of the best
    keep = 1 + int(np.searchsorted(reach, float(s.top_p[r]) * reach[-1]))
    keep = min(keep, int((p >= float(s.min_p[r]) * p[0]).sum()), len(p))
    ids, p = ids[:keep], p[:keep]
    chance = draw_uniform(int(s.seed[r]), int(s.choice[r]), int(s.position[r]), stream=XTC)
    if chance < cut.xtc_probability:
        first = count_excluded(p, cut.xtc_threshold)
        ids, p = ids[first:], p[first:]
    if cut.mirostat:
        keep = count_mirostat(p, cut.mirostat, cut.mu, len(logits))
        ids, p = ids[:keep], p[:keep]
    return ids, p


def compute_weights(logits: F32, temperature: np.float32) -> F64:
    """Of candidates, best first: e^((l - l[0]) / temperature) in float32, the first 1."""
    with np.errstate(over="ignore"):
        sharpness = min(np.float32(1) / temperature, SHARPEST)
        return compute_exp32((logits - logits[0]) * sharpness).astype(np.float64)


def compute_exp32(x: F32) -> F32:
    """e^x for x <= 0, e^-87 at least, by the kernel's very operations (native/exp32.h), so that
    its draws are equal whatever the logits.
    """
    shift, ln2, rest = np.float32(1.5 * 2**23), np.float32(0.693359375), np.float32(-2.12194440e-4)
    c = np.maximum(x, np.float32(-87))
    t = c * np.float32(1.44269504) + shift
    n = t - shift
    r = (c - n * ln2) - n * rest
    p = np.full_like(r, np.float32(1) / np.float32(math.factorial(7)))
    for i in range(6, -1, -1):
        p = p * r + np.float32(1) / np.float32(math.factorial(i))
    made: F32 = (p.view(np.int32) + (t.view(np.int32) << 23)).view(np.float32)
    return made


def draw_uniform(seed: int, choice: int, position: int, stream: int = 0) -> float:
    """[0,1) from a counter: splitmix64's finaliser (Steele et al., 2014) over each key in turn."""
    h = _mix((seed + 0x9E3779B97F4A7C15) & WORD)
    h = _mix(h ^ (choice * 0xD1B54A32D192ED03 & WORD))
    h = _mix(h ^ (position * 0x8CB92BA72F3D8DD7 & WORD))
    if stream:
        h = _mix(h ^ stream)
    return (h >> 11) * 2.0**-53


def _mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & WORD
    return z ^ (z >> 31)
