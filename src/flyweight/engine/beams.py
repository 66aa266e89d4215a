"""The searches under way: rows of live beams in, forks and drops out, answers when they are found.

Invariant: a search decides when all its beams' rows are there, whenever they were computed; until
then those that are done are held.  A beam's first continuation keeps its sequence, others fork it,
and a beam that nothing continues is dropped: at most `width` live.  `sampling.beam` decides
what is chosen, the scheduler what is computed when.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from flyweight.engine.hook import Hook
from flyweight.engine.scheduler import Scheduler
from flyweight.engine.sequence import Sequence
from flyweight.engine.step import Chunk, Produced
from flyweight.sampling.beam import BeamState, Hypothesis, Row, Rules, advance, make_rules
from flyweight.types import Event, Finish, Request
from flyweight.wire import Sampled


@dataclass(slots=True, eq=False)
class BeamRequest:
    """One request's: a sequence for every live beam, in the state's order, and the rows that are
    there.
    """

    rules: Rules
    live: list[Sequence]
    state: BeamState = field(default_factory=BeamState)
    rows: dict[Sequence, Row] = field(default_factory=dict)
    aborted: bool = False

    @property
    def complete(self) -> bool:
        """Whether all rows are there.  A beam that gave way has left its row; while it is computed
        again no token may be added, and its row comes once more.
        """
        return len(self.rows) == len(self.live) and all(seq.extensible for seq in self.live)


class BeamSearches(Hook):
    """Searches by request id, from their first row on."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.searches: dict[str, BeamRequest] = {}

    def wants(self, request: Request) -> bool:
        return request.beam is not None

    def settle(self, chunk: Chunk, out: Produced, sampled: Sampled) -> Produced:
        """The search decides what follows."""
        return out._replace(tokens=())

    def finish(self, found: Seq[tuple[Chunk, Produced]], sampled: Sampled) -> list[Event]:
        """Takes the rows of a committed step; answers of the searches that ended with it."""
        events: list[Event] = []
        touched: dict[str, BeamRequest] = {}
        for chunk, out in found:
            seq = chunk.seq
            if not chunk.drawn:
                continue
            search = self.searches.get(seq.request.id)
            if search is None:
                search = BeamRequest(make_rules(seq.request), [seq])
                self.searches[seq.request.id] = search
            (row,) = out.logprobs
            search.rows[seq] = row.top_ids, row.top
            touched[seq.request.id] = search
        for search in touched.values():
            if search.complete:
                events += self._advance(search)
        return events

    def abort(self, id: str) -> None:
        """Marks a search as over, before its sequences end."""
        if id in self.searches:
            self.searches[id].aborted = True

    def forget(self, id: str, index: int, *, ended: bool = False) -> None:
        if ended:
            self.searches.pop(id, None)

    def recover(self) -> None:
        """Gives every search sequences of its last state; before the scheduler's own."""
        for id, search in list(self.searches.items()):
            if search.aborted:
                self.scheduler.by_id.pop(id, None)
                del self.searches[id]
                continue
            answers = [beam.tokens for beam in search.state.beams]
            search.live = self.scheduler.restart(search.live[0], answers)
            search.rows = {}

    def _advance(self, search: BeamRequest) -> list[Event]:
        """One step of a search.  The state changes first, or with the last line: an interrupt
        between leaves one that can be started over.
        """
        state = advance(search.state, [search.rows[seq] for seq in search.live], search.rules)
        if state.done:
            return self._end(search, state.ended)
        search.state = state
        parents = [beam.parent for beam in state.beams]
        for at, seq in enumerate(search.live):
            if at not in parents:
                self.scheduler.drop(seq)
        free = set(parents)
        live: list[Sequence] = []
        for parent in parents:
            seq = search.live[parent]
            live.append(seq if parent in free else self.scheduler.fork(seq))
            free.discard(parent)
        now = self.scheduler.clock()
        for seq, beam in zip(live, state.beams, strict=True):
            seq.tokens.append(beam.tokens[-1])
            seq.first, seq.last = seq.first or now, now
        search.live, search.rows = live, {}
        return []

    def _end(self, search: BeamRequest, ended: Seq[Hypothesis]) -> list[Event]:
        now, seq = self.scheduler.clock(), search.live[0]
        seq.first, seq.last = seq.first or now, now
        events = [_make_event(seq, i, found) for i, found in enumerate(ended)]
        for beam in search.live:
            self.scheduler.drop(beam)
        del self.searches[seq.request.id]
        return events


def _make_event(seq: Sequence, index: int, found: Hypothesis) -> Event:
    stopped = found.tokens[-1] in seq.request.stop_ids
    return Event(
        id=seq.request.id,
        index=index,
        tokens=found.tokens,
        finish=Finish.STOP if stopped else Finish.LENGTH,
        stop_token=found.tokens[-1] if stopped else None,
        cached=seq.cached,
        timings=seq.read_timings(),
        total=found.total,
        score=found.score,
    )
