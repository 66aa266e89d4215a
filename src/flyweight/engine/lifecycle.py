"""Owns every sequence and the block pool: how sequences begin, fork, end and start over.

Invariant: `running` and `waiting` are in order (priority, then arrival, then choice), and only
running sequences hold blocks.  Standard library only: plans nothing.
"""

import time
from array import array
from bisect import insort
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from itertools import count

from flyweight.config import Limits
from flyweight.engine import capacity
from flyweight.engine.admission import Admission, ContinuousAdmission
from flyweight.engine.branches import release as release_branches
from flyweight.engine.prefix import ANY_MODEL, KeyBase, PrefixCache
from flyweight.engine.sequence import Sequence, SequenceState
from flyweight.engine.shared_prefill import SharedPrefills
from flyweight.engine.step import Produced, make_abort_events, make_event
from flyweight.errors import RequestError
from flyweight.kv.blocks import BlockPool, Table
from flyweight.types import Event, Finish, Request


def find_order(seq: Sequence) -> tuple[int, int, int]:
    return seq.order


class LiveSequences:
    """The sequences of unfinished requests.  `keys` are the prefix cache's."""

    def __init__(
        self,
        limits: Limits,
        pool: BlockPool,
        *,
        keys: KeyBase = ANY_MODEL,
        clock: Callable[[], float] = time.monotonic,
        admission: Admission | None = None,
    ) -> None:
        self.limits, self.pool, self.clock = limits, pool, clock
        self.admission = admission or ContinuousAdmission()
        self.prefix = PrefixCache(pool, limits.prefix_caching, keys)
        self.shared = SharedPrefills(pool, limits.prefix_caching)
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.by_id: dict[str, list[Sequence]] = {}
        self._arrivals = count()

    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, request: Request) -> None:
        """Queues a request's choices.  Raises `RequestError` for what could never be finished."""
        self.judge(request)
        order = next(self._arrivals)
        root = self.prefix.find_root(request)
        choices: list[Sequence] = []
        for i in range(request.params.n):
            place = (request.priority, order, i)
            leader = choices[0] if choices else None
            tokens = array("i", request.tokens)
            choices.append(Sequence(request, i, place, Table(root), tokens, leader))
        for seq in choices:
            insort(self.waiting, seq, key=find_order)
        self.by_id[request.id] = choices

    def judge(self, request: Request) -> None:
        """Raises `RequestError` for what could never be finished."""
        if request.id in self.by_id:
            raise RequestError("is in use by an unfinished request", "id", value=request.id)
        capacity.check(request, self.limits)

    def abort(self, id: str, index: int | None = None) -> list[Event]:
        """Ends a request's unfinished choices, or one of them, in whatever state; their blocks are
        free at once.  A search ends as a whole.
        """
        live = self.by_id.get(id, ())
        ended = [s for s in live if index is None or s.index == index or s.request.beam]
        for seq in ended:
            self._finish(seq)
        return make_abort_events(ended)

    @contextmanager
    def admit_only(self, id: str) -> Iterator[None]:
        """While it lasts, no request but this one is admitted."""
        parked = [seq for seq in self.waiting if seq.request.id != id]
        self.waiting = [seq for seq in self.waiting if seq.request.id == id]
        try:
            yield
        finally:
            self.waiting = sorted([*self.waiting, *parked], key=find_order)

    def end(self, seq: Sequence, finish: Finish) -> Event:
        """Ends a held sequence; its blocks are free at once."""
        self._finish(seq)
        return make_event(seq, Produced(()), finish)

    def recover(self) -> None:
        """Starts every sequence over after a step that was interrupted anywhere: what was written
        is unknown.  What they had produced stays, and published blocks may still be found.
        """
        self.pool.recover()
        self.running, self.waiting = [], []
        for seq in [seq for choices in self.by_id.values() for seq in choices]:
            seq.table = Table(seq.table.root, hashes=seq.table.hashes)
            seq.computed, seq.draft, seq.in_flight = 0, [], False
            seq.parents, seq.branches = None, []
            seq.state = SequenceState.WAITING
            insort(self.waiting, seq, key=find_order)

    def fork(self, seq: Sequence) -> Sequence:
        """A new choice of the same request that goes on from where `seq` is, on the same blocks:
        the first to write to a shared block takes a copy.  Without a seat, or at the prompt, it
        waits, and finds what was published.
        """
        assert not seq.in_flight, "a fork within a step"
        choices = self.by_id[seq.request.id]
        taken = {choice.index for choice in choices}
        index = next(i for i in count() if i not in taken)
        table = Table(seq.table.root, hashes=list(seq.table.hashes))
        new = Sequence(seq.request, index, (*seq.order[:2], index), table, seq.tokens[:])
        new.cached, new.scheduled, new.first, new.mu = seq.cached, seq.scheduled, seq.first, seq.mu
        choices.append(new)
        seat = seq.request.width > 1 or self.free_seats() > 0
        if seq.state is not SequenceState.RUNNING or seq.computed < seq.prompt - 1 or not seat:
            insort(self.waiting, new, key=find_order)
            return new
        held = -(-seq.computed // self.pool.block_size)
        self.pool.share(table, seq.table.blocks[:held])
        table.published = min(seq.table.published, held)
        new.computed, new.state = seq.computed, SequenceState.RUNNING
        insort(self.running, new, key=find_order)
        return new

    def requeue(self, seq: Sequence) -> None:
        """Back from running to waiting, without blocks: all its tokens are computed again."""
        self.pool.release(seq.table)
        self.running.remove(seq)
        seq.computed, seq.draft, seq.state = 0, [], SequenceState.WAITING
        seq.parents = None
        insort(self.waiting, seq, key=find_order)

    def drop(self, seq: Sequence) -> None:
        """Ends a sequence without an event."""
        self._finish(seq)

    def restart(self, seq: Sequence, answers: Seq[Seq[int]]) -> list[Sequence]:
        """Puts new sequences, one an answer so far, in the place of a request's: before `recover`,
        which starts them.
        """
        made: list[Sequence] = []
        for i, answer in enumerate(answers):
            tokens = array("i", [*seq.request.tokens, *answer])
            made.append(
                Sequence(seq.request, i, (*seq.order[:2], i), Table(seq.table.root), tokens)
            )
            made[-1].cached, made[-1].scheduled = seq.cached, seq.scheduled
            made[-1].first = seq.first
        self.by_id[seq.request.id] = made
        return made

    def free_seats(self) -> int:
        return capacity.count_free_seats(self.running, self.limits.max_num_seqs)

    def _finish(self, seq: Sequence) -> None:
        (self.running if seq.state is SequenceState.RUNNING else self.waiting).remove(seq)
        self.prefix.end(seq)
        release_branches(self.pool, seq.branches)
        self.pool.release(seq.table)
        seq.state, seq.in_flight, seq.draft = SequenceState.FINISHED, False, []
        left = [s for s in self.by_id[seq.request.id] if s is not seq]
        if left:
            self.by_id[seq.request.id] = left
        else:
            del self.by_id[seq.request.id]
