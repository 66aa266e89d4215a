"""`adapt` in the finer ops: rows are gathered by adapter, and each adapter's two matrices run once.

Invariant: a row takes its own sequence's adapter alone, or none.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from flyweight.ops.operands import LowRank, Weights
from flyweight.wire import F32, I32, Batch


class LowRankOps(Protocol):
    """What it takes of a backend."""

    def linear(self, x: F32, w: Weights) -> F32: ...
    def take(self, x: F32, rows: I32) -> F32: ...


def adapt(ops: LowRankOps, y: F32, x: F32, low: Mapping[int, LowRank], batch: Batch) -> None:
    """y += up(down(x)) in place, by row."""
    assert batch.adapters is not None
    owners = np.repeat(batch.adapters, np.diff(batch.starts))  # [T]
    for i, pair in low.items():
        rows = np.flatnonzero(owners == i).astype(np.int32)
        if len(rows) == len(x):
            y += ops.linear(ops.linear(x, pair.down), pair.up)
        elif len(rows):
            y[rows] += ops.linear(ops.linear(ops.take(x, rows), pair.down), pair.up)
