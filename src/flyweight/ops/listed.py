"""Log-probabilities of ids that a caller named, beside those a sampler found: one for all backends.

Invariant: a row's depend on that row alone, and the token drawn has the sampler's own number.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flyweight.wire import F32, ListedLogprobs, Sampled


def add_listed(logits: F32, listed: ListedLogprobs | None, found: Sampled) -> Sampled:
    """`found` with the listed ids in place of the best ones, in the rows that have such a list.
    What it tells of the best tells what the row's logits lack to be log-probabilities, to the last
    bits: nobody's is nearer to 0.
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
