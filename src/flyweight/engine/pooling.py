"""From hidden states to a request's one vector: the last token's, the first's, or the mean of all.

Invariant: rows are added one after the other in float64, so a vector is the same, bit for bit,
however its prompt was cut into chunks; nothing is kept of a row but the sum.  Knows no model.
"""

from array import array

import numpy as np
from numpy.typing import NDArray

from flyweight.engine.sequence import Sequence
from flyweight.params.tasks import PoolingParams
from flyweight.wire import F32

F64 = NDArray[np.float64]


class PoolingRows:
    """The sums of the requests under way, by id."""

    def __init__(self) -> None:
        self.sums: dict[str, F64] = {}

    def take(self, seq: Sequence, start: int, rows: F32) -> "array[float] | None":
        """Takes the wanted rows [r, H] of a chunk that began at `start`; the vector, once the
        prompt is computed.  A prompt begun anew (after a preemption) is summed anew.
        """
        id, params = seq.request.id, seq.request.pooling
        assert params is not None
        if seq.every_row:
            total = np.zeros(rows.shape[1]) if start == 0 else self.sums[id]
            for row in rows:
                total += row
            self.sums[id] = total
        if seq.computed < len(seq.tokens):
            return None
        return _vector(self.sums.pop(id) if seq.every_row else rows[-1], seq.prompt, params)

    def forget(self, id: str) -> None:
        """An id that is not known is no error."""
        self.sums.pop(id, None)


def _vector(values: F64 | F32, count: int, params: PoolingParams) -> "array[float]":
    """float32, of length 1 where that is asked (a vector of zeros stays one)."""
    wide = values.astype(np.float64) / (count if params.pooling == "mean" else 1)
    if params.normalize:
        wide /= np.sqrt(np.square(wide).sum()) or 1.0
    return array("f", wide.astype(np.float32).tobytes())
