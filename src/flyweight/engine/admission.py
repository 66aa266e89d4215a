"""Which waiting sequences may start: all of them (continuous batching; `deadline_admission` has
their order), or those of one batch of requests until every request of it has ended (static
batching).

Invariant: while requests are live, some of those that may start, or that run, are among them, so
work always ends.  Seats, blocks and budget are the scheduler's.  Standard library only.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from typing import Protocol

from flyweight.engine.deadline_admission import DeadlineAdmission
from flyweight.engine.sequence import Sequence
from flyweight.types import Request

Live = Mapping[str, Seq[Sequence]]  # unfinished sequences by request id


class Admission(Protocol):
    """Used before each step in which sequences wait."""

    def choose(self, waiting: Seq[Sequence], live: Live) -> Seq[Sequence]:
        """Those of `waiting` that may start, in the order in which they start: better priorities
        first.
        """
        ...


class ContinuousAdmission:
    """A sequence starts as soon as there is room for it."""

    def choose(self, waiting: Seq[Sequence], live: Live) -> Seq[Sequence]:
        return waiting


class StaticAdmission:
    """Requests start in batches of at most `seats` sequences: the first that wait when nothing is
    left of the batch before.  One that needs more seats by itself is a batch of its own.
    """

    def __init__(self, seats: int) -> None:
        self.seats = seats
        self.batch: list[Request] = []

    def choose(self, waiting: Seq[Sequence], live: Live) -> Seq[Sequence]:
        self.batch = [r for r in self.batch if r.id in live and live[r.id][0].request is r]
        if not self.batch:
            self.batch = self._form(waiting, live)
        members = {id(request) for request in self.batch}
        return [seq for seq in waiting if id(seq.request) in members]

    def _form(self, waiting: Seq[Sequence], live: Live) -> list[Request]:
        batch: list[Request] = []
        left = self.seats
        for request in {seq.request.id: seq.request for seq in waiting}.values():
            left -= max(request.width, len(live[request.id]))
            if batch and left < 0:
                break
            batch.append(request)
        return batch


ADMISSIONS: Mapping[str, Callable[[int], Admission]] = {
    "continuous": lambda seats: DeadlineAdmission(),
    "static": StaticAdmission,
}
