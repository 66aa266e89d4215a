"""Which pairs of a request's text have no K and V yet, in a drafter that makes states.

Invariant: a pair counts as computed by what its slot says, position, state and the token after it;
up to where a request is `done`, all that can be computed were, and nothing there changes: a step
writes from the newest token on, and copies of blocks take along what slots say.  A position
without a state is passed over.  Computes nothing.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from flyweight.draft.drafter import DraftRequest
from flyweight.draft.latetokens import FEW
from flyweight.draft.model import DraftRow
from flyweight.draft.slotstates import SlotStates
from flyweight.wire import I32


class LatePairs:
    """Of one drafter, which computes at most `budget` pairs at once.  Runs are rows whose `pending`
    tokens are the second parts of consecutive pairs, the last of which is at `position`.
    """

    def __init__(self, block_size: int, budget: int) -> None:
        self.block_size, self.budget = block_size, budget
        self.few = min(FEW, budget // 4)  # so that a row that is not behind has room
        self._done: dict[Hashable, int] = {}  # the first position that is not

    def is_behind(self, request: DraftRequest) -> bool:
        """Whether more pairs are late than a draft computes along with its first."""
        return len(request.tokens) - 2 - self._done.get(request.id, 0) > self.few

    def choose_ready(self, rows: Sequence[DraftRow]) -> list[DraftRow]:
        """Rows whose late pairs, and last ones, are computed at once: those with the fewest."""
        left, ready = self.budget, list[DraftRow]()
        for row in sorted(rows, key=self._count):
            late = self._count(row)
            if late > self.few or late >= left:
                break
            left -= late + 1
            ready.append(row)
        return ready

    def claim_some(self, rows: Sequence[DraftRow], held: SlotStates) -> list[DraftRow]:
        """Runs of late pairs of the rows with the fewest, as many as the budget allows."""
        left, runs = self.budget, list[DraftRow]()
        for row in sorted(rows, key=self._count):
            found = self.claim(row, held, row.position - 1, left)
            left -= sum(len(run.pending) for run in found)
            runs += found
            if left <= 0:
                break
        return runs

    def claim_all(self, rows: Sequence[DraftRow], held: SlotStates) -> tuple[list[DraftRow], I32]:
        """Runs of every row, each row's ending with its last pair; and where these are."""
        runs, lasts, count = list[DraftRow](), list[int](), 0
        for row in rows:
            held.nexts[self.find_last(row)] = -1  # this one is wanted in any case
            done = self._done.get(row.request.id, 0)  # all, where the text has not grown
            self._done[row.request.id] = min(done, row.position - 1)
            found = self.claim(row, held, row.position)
            runs += found
            count += sum(len(run.pending) for run in found)
            lasts.append(count - 1)
        return runs, np.array(lasts, np.int32)

    def claim(
        self, row: DraftRow, held: SlotStates, stop: int, most: int | None = None
    ) -> list[DraftRow]:
        """Runs of a row's late pairs before `stop`, of the first `most` of them.  From now on they
        count as computed, so that another row of the same text does without.
        """
        blocks, tokens, size = row.request.blocks, row.request.tokens, self.block_size
        runs, pending = list[DraftRow](), list[int]()
        at = self._done.get(row.request.id, 0)
        left = stop if most is None else most
        while at < stop:  # mostly a few: a loop is quicker than arrays
            slot, after = blocks[at // size] * size + at % size, tokens[at + 1]
            if held.positions[slot] == at and held.nexts[slot] != after:
                if not left:
                    break
                held.nexts[slot] = after
                pending.append(after)
                left -= 1
            elif pending:
                runs.append(replace(row, pending=pending, position=at - 1))
                pending = []
            at += 1
        if pending:
            runs.append(replace(row, pending=pending, position=at - 1))
        self._done[row.request.id] = at
        return runs

    def note_last(self, row: DraftRow, held: SlotStates) -> None:
        """A row's last pair was computed."""
        held.nexts[self.find_last(row)] = row.request.tokens[row.position]
        self._done[row.request.id] = row.position

    def find_last(self, row: DraftRow) -> int:
        """The slot of a row's last pair, that of the newest computed token."""
        at, size = row.position - 1, self.block_size
        return int(row.blocks[at // size]) * size + at % size

    def forget(self, id: Hashable) -> None:
        self._done.pop(id, None)

    def forget_all(self) -> None:
        self._done.clear()

    def _count(self, row: DraftRow) -> int:
        """How many pairs of a row may be late, apart from the last."""
        return max(0, row.position - 1 - self._done.get(row.request.id, 0))
