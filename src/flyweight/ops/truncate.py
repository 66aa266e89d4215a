"""The rarer ways to cut a row's candidates: top-n-sigma, typical-p, XTC, mirostat.  float64.

Invariant: each leaves at least one candidate, keeps their order, and depends on this row alone.
The reference's chain calls them, and the CPU backend calls the reference's for rows that use one.
"""

import numpy as np

from flyweight.wire import F32, F64, I64

ESTIMATED = 100  # candidates mirostat 1 estimates the distribution's exponent from, as published


def ban_below_sigmas(logits: F32, n: float) -> F32:
    """Top-n-sigma (Tang et al., 2024): bans what lies more than n standard deviations below the
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
