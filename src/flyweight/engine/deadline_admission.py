"""Which waiting sequences start first, where some requests have deadlines.

Invariant: decides when a sequence starts, never what it computes.  Priorities come first, as
everywhere.  A sequence that has begun stays before all that have not.  One without a deadline, or
too late for its own, waits for later requests at most as if it had a deadline itself: one at which
it must start `patience` seconds after its arrival.  Standard library only.
"""

import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from heapq import merge
from itertools import groupby
from math import inf
from operator import itemgetter

from flyweight.engine.sequence import Sequence

PATIENCE = 10.0  # seconds that requests with deadlines may start before others


class DeadlineAdmission:
    """The least slack first: what must start soonest to meet its deadline.  Without deadlines the
    order is that of `waiting`.
    """

    def __init__(
        self, patience: float = PATIENCE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.patience, self.clock = patience, clock

    def choose(self, waiting: Seq[Sequence], live: Mapping[str, Seq[Sequence]]) -> Seq[Sequence]:
        if all(seq.request.start_by == inf for seq in waiting):
            return waiting
        now = self.clock()
        chosen: list[Sequence] = []
        for _, equals in groupby(waiting, key=lambda seq: seq.request.priority):
            chosen += self._order(list(equals), now)
        return chosen

    def _order(self, equals: Seq[Sequence], now: float) -> list[Sequence]:
        """Sequences of one priority: those that have begun; then those that can still meet their
        deadline, by slack, among the others in their own order.
        """
        begun = [seq for seq in equals if _has_begun(seq)]
        timely: list[tuple[float, Sequence]] = []
        others: list[tuple[float, Sequence]] = []
        for seq in equals:
            request = seq.request
            if _has_begun(seq):
                continue
            if now <= request.start_by < inf:
                timely.append((request.start_by, seq))
            else:
                others.append((request.arrival + self.patience, seq))
        timely.sort(key=itemgetter(0))
        return begun + [seq for _, seq in merge(timely, others, key=itemgetter(0))]


def _has_begun(seq: Sequence) -> bool:
    """Whether it ran before, or shares the prompt of a choice that did."""
    leader = seq.leader
    return bool(seq.scheduled or (leader is not None and leader.scheduled))
