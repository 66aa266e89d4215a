"""A backend that hands out the inputs of matrix products while it computes them.

Invariant: results are those of the backend it wraps, bit for bit, except for products whose results
are not wanted, which are zeros.  Knows no model: a slot is the name under which a weight was given.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

import numpy as np

from flyweight.ops.base import Ops
from flyweight.ops.operands import Weights
from flyweight.wire import F32, I32

Observe = Callable[[str, F32], None]  # a slot, and rows [T, K] that are multiplied with its matrix


class RecordingOps:
    """`ops`, with `observe` called for the products with `weights` (by slot).  Products with those
    of the slots `unwanted` are not computed.
    """

    def __init__(
        self, ops: Ops, weights: Mapping[str, Any], observe: Observe, unwanted: Collection[str]
    ) -> None:
        self._ops, self._observe, self._unwanted = ops, observe, unwanted
        self._slots = {id(weight): slot for slot, weight in weights.items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def linear(self, x: F32, w: Weights) -> F32:
        self._record(x, w)
        if self._slots.get(id(w)) in self._unwanted:
            parts = w if isinstance(w, tuple) else (w,)
            return np.zeros((len(x), sum(part.shape[0] for part in parts)), np.float32)
        out: F32 = self._ops.linear(x, w)
        return out

    def experts(
        self, x: F32, ids: I32, weights: F32, up: Sequence[Weights], down: Sequence[Weights],
        act: str,
    ) -> F32:  # fmt: skip
        for e in np.unique(ids).tolist():
            rows = np.ascontiguousarray(x[(ids == e).any(axis=1)])
            self._record(rows, up[e])
            self._record(self._ops.act(self._ops.linear(rows, up[e]), act), down[e])
        out: F32 = self._ops.experts(x, ids, weights, up, down, act)
        return out

    def _record(self, x: F32, w: Weights) -> None:
        slot = self._slots.get(id(w))
        if slot is not None:
            self._observe(slot, x)


def record(
    ops: Ops, weights: Mapping[str, Any], observe: Observe, unwanted: Collection[str] = ()
) -> Ops:
    """The backend with recording."""
    return cast(Ops, RecordingOps(ops, weights, observe, unwanted))
