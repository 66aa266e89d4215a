"""Activation-aware scales and clips (Lin et al., 2023): what happens to a matrix before rounding.

A channel that carries large activations is multiplied by a scale, so that its codes are finer, and
its input is divided by it (`folds` says where).  Then the range of each group is shrunk where that
costs less than it gains.

Invariant: the search is deterministic, and never worse on its sample than no scales or no clips.
Rounding is the caller's: `round_trip` takes rows [n, K] to what their codes represent, row by
row.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from flyweight.wire import F32

RoundTrip = Callable[[F32], F32]

GRID = 20  # exponents tried, evenly spaced in [0, 1)
SKETCHED = 192  # rows of a group of matrices that every candidate is judged on
SAMPLED = 1024  # rows that the best of them are judged on
FINALISTS = 4
SHRINKS = tuple(1 - i / 20 for i in range(10))
MOST = math.log(1e4)  # of a scale's logarithm
CHUNK = 1024  # rows whose clips are searched at once


def search_scales(
    group: Sequence[F32],
    gram: F32,
    size: F32,
    round_trip: RoundTrip,
    tie: Callable[[F32], F32] | None = None,
    sampled: int = SAMPLED,
) -> F32:
    """Scales [K] for matrices [N, K] that share an input x: of the candidates size^a and
    size^a / mean|w|^(1-a), those with which the error of the outputs is the smallest.

    `gram` [K, K] is the sum of x xT over the calibration's tokens, and `size` [K] that of |x|;
    means will do for either.  `tie` makes scales equal that must be (`Fold.tie`).  All candidates
    are judged on a few rows; the best of them, and no scales, on `sampled` rows.
    """
    few = sample_rows(group, min(SKETCHED, sampled))
    judged = []
    for scales in _list_candidates(group, size):
        tied = scales if tie is None else tie(scales)
        judged.append((_measure_scaled(few, tied, gram, round_trip), tied))
    judged.sort(key=lambda pair: pair[0])
    finalists = [np.ones(len(size), np.float32)]
    finalists += [scales for _, scales in judged[:FINALISTS]]
    many = sample_rows(group, sampled)
    errors = [_measure_scaled(many, one, gram, round_trip) for one in finalists]
    return finalists[int(np.argmin(errors))]


def measure_error(difference: F32, gram: F32) -> float:
    """The sum over inputs x of ||difference x||^2, for a difference of matrices [N, K]."""
    return float(np.vdot(difference @ gram, difference))


def divide_gram(gram: F32, scales: F32) -> F32:
    """The Gram matrix of x / scales, which matrices read once `scales` [K] are folded."""
    inverse = np.reciprocal(scales)
    found: F32 = gram * inverse * inverse[:, None]
    return found


def _measure_scaled(rows: F32, scales: F32, gram: F32, round_trip: RoundTrip) -> float:
    """The error of rows [n, K] that are rounded under scales."""
    return measure_error(rows - round_trip(rows * scales) / scales, gram)


def sample_rows(group: Sequence[F32], most: int) -> F32:
    """The same share of every matrix's rows, without a pattern."""
    total = sum(len(w) for w in group)
    if total <= most:
        return np.concatenate(group)
    draw = np.random.default_rng(0)
    counts = [max(1, len(w) * most // total) for w in group]
    parts = (w[np.sort(draw.permutation(len(w))[:n])] for w, n in zip(group, counts, strict=True))
    return np.concatenate([*parts])


def _list_candidates(group: Sequence[F32], size: F32) -> Iterator[F32]:
    weights = _measure_weights(group)
    alive = (size > 0) & (weights > 0)
    if not alive.any():
        return
    x, w = np.log(size[alive]), np.log(weights[alive])
    for part in range(GRID):
        a = part / GRID
        for powers in (a * x, a * x - (1 - a) * w):
            if not powers.any():
                continue
            middle = (powers.max() + powers.min()) / 2  # so that scales are centred on 1
            scales = np.ones(len(size), np.float32)
            scales[alive] = np.exp(np.clip(powers - middle, -MOST, MOST))
            yield scales


def _measure_weights(group: Sequence[F32]) -> F32:
    """[K]: the mean of |w| over the rows of all matrices, each row as a share of its largest."""
    total, count = np.zeros(group[0].shape[1], np.float32), 0
    for w in group:
        for start in range(0, len(w), CHUNK):
            size = np.abs(w[start : start + CHUNK])
            size /= np.maximum(size.max(axis=1, keepdims=True), np.float32(1e-30))
            total += size.sum(axis=0)
        count += len(w)
    return total / np.float32(count)


def search_clips(rows: F32, gram: F32, round_trip: RoundTrip, group: int) -> F32:
    """Factors [N, K / group] in (0, 1] for the ranges of groups (`clip_rows`): with them the error
    of each group's part of the output is the smallest of all in `SHRINKS`.

    `gram` is that of what `rows` read: divided by their scales, if they have any (`divide_gram`).
    AWQ's authors clip no queries and keys, whose errors meet in products.
    """
    n, k = rows.shape
    at = range(0, k, group)
    blocks = np.stack([gram[i : i + group, i : i + group] for i in at])
    parts = [
        _search_chunk(rows[start : start + CHUNK], blocks, round_trip)
        for start in range(0, n, CHUNK)
    ]
    return np.concatenate(parts)


def _search_chunk(rows: F32, blocks: F32, round_trip: RoundTrip) -> F32:
    """`blocks` [K / group, group, group] are the Gram matrices of the groups."""
    count, group = blocks.shape[:2]
    best = np.ones((len(rows), count), np.float32)
    least = np.full((len(rows), count), np.inf, np.float32)
    for shrink in SHRINKS:
        factors = np.full((len(rows), count), shrink, np.float32)
        lost = rows - round_trip(clip_rows(rows, factors))
        turned = lost.reshape(len(rows), count, group).swapaxes(0, 1)
        error = ((turned @ blocks) * turned).sum(axis=2).T
        better = error < least
        best[better] = shrink
        least[better] = error[better]
    return best


def clip_rows(rows: F32, factors: F32) -> F32:
    """Rows [N, K] within `factors` [N, K / group] of the range of their groups, which reaches from
    the smallest element or 0 to the largest or 0.
    """
    n, k = rows.shape
    held = rows.reshape(n, factors.shape[1], -1)
    low = np.minimum(held.min(axis=2), 0) * factors
    high = np.maximum(held.max(axis=2), 0) * factors
    found: F32 = np.clip(held, low[:, :, None], high[:, :, None]).reshape(n, k)
    return found
