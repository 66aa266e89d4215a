"""Choosing experts in plain NumPy, as `RouteSpec` says it: the truth kernels are measured against.

Invariant: a token's experts depend on its own row alone.  T tokens, E experts, k chosen.
"""

import numpy as np

from flyweight.ops.base import Array
from flyweight.spec import RouteSpec
from flyweight.wire import F32, I32


def route(logits: F32, spec: RouteSpec, bias: F32 | None) -> tuple[I32, F32]:
    """[T,E] -> ids [T,k], best first, and their weights [T,k]."""
    wide = logits.astype(np.float64)
    scores = wide
    if spec.scoring == "softmax":
        scores = _compute_softmax(wide)
    elif spec.scoring == "sigmoid":
        scores = 1 / (1 + np.exp(-wide))
    chosen_by = scores if bias is None else scores + bias
    if spec.groups > 1:
        chosen_by = _keep_best_groups(chosen_by, spec)
    ids = np.argsort(-chosen_by, axis=1, kind="stable")[:, : spec.top]
    weights = np.take_along_axis(scores, ids, axis=1)
    if spec.scoring == "chosen":
        weights = _compute_softmax(weights)
    if spec.normalise:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return ids.astype(np.int32), (weights * spec.scale).astype(np.float32)


def _compute_softmax(x: Array) -> Array:
    p = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(p / p.sum(axis=1, keepdims=True))


def _keep_best_groups(scores: Array, spec: RouteSpec) -> Array:
    """Scores with the experts of all but the best `kept` groups out of the running."""
    grouped = scores.reshape(len(scores), spec.groups, spec.experts // spec.groups)
    best = -np.sort(-grouped, axis=2)[:, :, : spec.judges]
    worth = np.where(np.isnan(grouped).any(axis=2), np.nan, best.sum(axis=2))
    order = np.argsort(-worth, axis=1, kind="stable")
    kept = np.zeros(order.shape, bool)
    np.put_along_axis(kept, order[:, : spec.kept], True, axis=1)
    return np.where(kept[:, :, None], grouped, -np.inf).reshape(scores.shape)
