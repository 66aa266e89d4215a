"""Whose fault it is that a step raised, and what becomes of the others.

Invariant: after a step that raised, every choice under way has exactly the tokens its reader was
told of, or is ended with an error; an error that names nobody ends only a request that fails by
itself, found by letting those of the step run one after the other.  Knows no pipe.
"""

from flyweight.engine.engine import Engine
from flyweight.engine.sequence import Sequence
from flyweight.engine.step import UNLIMITED, Plan, StepBudget
from flyweight.types import Event, Finish, Request

BROKE = "the engine failed while it computed this request"
Choice = tuple[str, int]


class FaultIsolation:
    """One engine's."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._told: dict[str, dict[int, int]] = {}  # tokens told, by request and choice
        self._last: dict[Choice, int] = {}  # where the chunks of the step under way end
        self._suspects: dict[str, dict[int, int]] = {}  # how far each must get to be cleared

    # --- what goes on ---

    def began(self, request: Request) -> None:
        self._told[request.id] = dict.fromkeys(range(max(request.params.n, request.width)), 0)

    def left(self, id: str, index: int | None) -> None:
        """A reader has gone, or has found its end."""
        choices = self._told.get(id, {})
        if index is not None:
            choices.pop(index, None)
        if index is None or not choices:
            self._told.pop(id, None)

    def planned(self, plan: Plan) -> None:
        chunks = plan.chunks
        self._last = {(c.seq.request.id, c.seq.index): c.start + c.count for c in chunks}

    def told(self, events: list[Event]) -> None:
        """Events that go to their readers."""
        for event in events:
            choices = self._told.get(event.id)
            if choices is None:
                continue
            if event.finish is None:
                choices[event.index] = choices.get(event.index, 0) + len(event.tokens)
            else:
                self.left(event.id, event.index)

    # --- steps ---

    def step(self, budget: StepBudget = UNLIMITED) -> list[Event]:
        """A step of the engine: of everybody, or of one suspect and those that are cleared."""
        self._last = {}
        if not self._suspects:
            return self.engine.step(budget)
        self.engine.mend()
        scheduler, suspect = self.engine.scheduler, next(iter(self._suspects))
        parked = [seq for seq in scheduler.waiting if seq.request.id != suspect]
        scheduler.waiting = [seq for seq in scheduler.waiting if seq.request.id == suspect]
        events = self.engine.step(budget)  # where it raises, all are put back by `mend`
        scheduler.waiting = sorted([*scheduler.waiting, *parked], key=_rank)
        if self._passed(suspect):
            del self._suspects[suspect]
        return events

    def raised(self, error: Exception) -> list[Event]:
        """What is told of a step that raised; the rest of it is computed again."""
        events, self.engine.events = self.engine.events, []
        self.told(events)
        self.engine.mend()
        named = getattr(error, "request_id", None)
        guilty = [named] if named is not None else self._guilty()
        events += [event for id in guilty for event in self._end(id, None)]
        for id in list(self._told):
            events += self._owed(id)
        return events

    def _guilty(self) -> list[str]:
        """Who failed by himself; nobody yet where several may have."""
        if self._suspects:
            suspect = next(iter(self._suspects))
            del self._suspects[suspect]
            return [suspect]
        ids = dict.fromkeys(id for id, _ in self._last)
        if len(ids) < 2:
            return list(ids) or list(self._told)
        for (id, index), end in self._last.items():
            self._suspects.setdefault(id, {})[index] = end
        return []

    def _passed(self, id: str) -> bool:
        """Whether a suspect is past the place where a step failed."""
        goals = self._suspects[id]
        live = self.engine.scheduler.by_id.get(id, [])
        return all(seq.computed >= goals.get(seq.index, 0) for seq in live)

    def _owed(self, id: str) -> list[Event]:
        """Ends choices that got tokens, or ended, in a step whose news are lost."""
        if self.engine.grammars.compiles(id):
            return []
        live = {seq.index: seq for seq in self.engine.scheduler.by_id.get(id, [])}
        if live and next(iter(live.values())).request.beam is not None:
            return []  # tells everything at its end
        events: list[Event] = []
        for index, count in list(self._told[id].items()):
            seq = live.get(index)
            if seq is None:
                events.append(Event(id, index, (), finish=Finish.ERROR, error=BROKE))
                self.left(id, index)
            elif seq.generated != count:
                events += self._end(id, index)
        return events

    def _end(self, id: str, index: int | None) -> list[Event]:
        events = self.engine.abort(id, index)
        for event in events:
            event.finish, event.error = Finish.ERROR, BROKE
            self.left(id, event.index)
        self._suspects.pop(id, None)
        return events


def _rank(seq: Sequence) -> tuple[int, int, int]:
    return seq.rank
