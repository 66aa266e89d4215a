"""Where a request's newest hidden state is in the step that was just observed.

Invariant: a row is only found where slot, position and token agree, so a state is never another
token's.  Knows no heads.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from flyweight.draft.drafter import DraftRequest
from flyweight.wire import Batch, Tensor


class StepStates:
    """A step's batch and taps."""

    def __init__(self, batch: Batch, taps: Mapping[int, Tensor], block_size: int) -> None:
        self.batch, self.taps, self._block_size = batch, taps, block_size
        self._place_of: dict[int, int] | None = None  # by slot, made at the first search

    def find(self, request: DraftRequest) -> int | None:
        """The row [0, T) of the last token that the request has computed: the one before its
        newest.  None where the request was not in the step.
        """
        at, size = len(request.tokens) - 2, self._block_size
        if at < 0 or at // size >= len(request.blocks):
            return None
        slot = request.blocks[at // size] * size + at % size
        if self._place_of is None:
            rows = self.batch.rows
            self._place_of = dict(zip(self.batch.slots[rows].tolist(), rows.tolist(), strict=True))
        place = self._place_of.get(slot)
        if place is None:  # a chunk that ended where nothing was drawn, or none
            found = np.flatnonzero(self.batch.slots == slot)
            place = int(found[-1]) if len(found) else None
        if place is None or self.batch.positions[place] != at:
            return None
        return place if self.batch.tokens[place] == request.tokens[at] else None

    def find_all(self, requests: Sequence[DraftRequest]) -> list[int | None]:
        return [self.find(request) for request in requests]
