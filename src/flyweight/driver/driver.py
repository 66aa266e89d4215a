"""Drives one engine, with fault isolation: the same for `LLM`, `AsyncLLM` and the server's worker.

Invariant: after a step that raised, every choice under way has exactly the tokens that were
returned for it, or is ended with an error. What a request's data makes raise ends that request and
no other: an error that names none ends only one that fails by itself, which is found by computing
the requests of the step one after the other. A bug of ours, or a lack of memory, is raised to the
caller. Knows no text.
"""

import logging
from collections.abc import Callable

from flyweight.engine.engine import Engine, Planned
from flyweight.engine.step import UNLIMITED, ComputeError, Plan, StepBudget
from flyweight.errors import EngineError
from flyweight.types import Event, Finish, Request

BROKE = EngineError("the engine failed while it computed this request")


class FaultIsolation:
    """Of one engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._returned: dict[str, dict[int, int]] = {}  # tokens returned, by request and choice
        self._plan = Plan()  # of the step under way
        self._suspects: dict[str, dict[int, int]] = {}  # how far each must get to be cleared

    def add(self, request: Request) -> None:
        """The engine has taken a request."""
        self._returned[request.id] = dict.fromkeys(range(max(request.params.n, request.width)), 0)

    def forget(self, id: str, index: int | None) -> None:
        """A request, or one choice of it, was ended by its caller."""
        choices = self._returned.get(id, {})
        if index is not None:
            choices.pop(index, None)
        if index is None or not choices:
            self._returned.pop(id, None)

    def count(self, events: list[Event]) -> None:
        """Events that are returned to the callers."""
        for event in events:
            choices = self._returned.get(event.id)
            if choices is None:
                continue
            if event.finish is None:
                choices[event.index] = choices.get(event.index, 0) + len(event.tokens)
            else:
                self.forget(event.id, event.index)

    def step(self, budget: StepBudget, planned: Planned | None) -> list[Event]:
        """A step of the engine: of all requests, or of one suspect and those that are cleared."""
        self._plan = Plan()

        def note(plan: Plan) -> None:
            self._plan = plan
            if planned is not None:
                planned(plan)

        if not self._suspects:
            return self.engine.step(budget, note)
        self.engine.mend()
        suspect = next(iter(self._suspects))
        with self.engine.scheduler.admit_only(suspect):
            events = self.engine.step(budget, note)
        if self._is_cleared(suspect):
            del self._suspects[suspect]
        return events

    def recover(self, error: BaseException) -> list[Event]:
        """The events of a step that raised; the rest of it is computed again."""
        events = self.engine.take_events()
        self.count(events)
        self.engine.mend()
        named = getattr(error, "request_id", None)
        guilty = [named] if named is not None else self._find_guilty()
        events += [event for id in guilty for event in self._end(id, None)]
        for id in list(self._returned):
            events += self._end_lost(id)
        return events

    def _find_guilty(self) -> list[str]:
        """The request that failed by itself; none yet where several may have."""
        if self._suspects:
            suspect = next(iter(self._suspects))
            del self._suspects[suspect]
            return [suspect]
        ids = dict.fromkeys(chunk.seq.request.id for chunk in self._plan.chunks)
        if len(ids) < 2:
            return list(ids) or list(self._returned)
        for chunk in self._plan.chunks:
            goals = self._suspects.setdefault(chunk.seq.request.id, {})
            goals[chunk.seq.index] = chunk.start + chunk.count
        return []

    def _is_cleared(self, id: str) -> bool:
        """Whether a suspect is past the place where a step failed."""
        goals = self._suspects[id]
        live = self.engine.scheduler.by_id.get(id, [])
        return all(seq.computed >= goals.get(seq.index, 0) for seq in live)

    def _end_lost(self, id: str) -> list[Event]:
        """Ends choices that got tokens, or ended, in a step whose events are lost."""
        if self.engine.grammars.is_compiling(id):
            return []
        live = {seq.index: seq for seq in self.engine.scheduler.by_id.get(id, [])}
        if live and next(iter(live.values())).request.beam is not None:
            return []  # returns everything at its end
        events: list[Event] = []
        for index, count in list(self._returned[id].items()):
            seq = live.get(index)
            if seq is None:
                events.append(Event(id, index, (), finish=Finish.ERROR, error=BROKE))
                self.forget(id, index)
            elif seq.generated != count:
                events += self._end(id, index)
        return events

    def _end(self, id: str, index: int | None) -> list[Event]:
        events = self.engine.abort(id, index)
        for event in events:
            event.finish, event.error = Finish.ERROR, BROKE
            self.forget(id, event.index)
        self._suspects.pop(id, None)
        return events


def log(error: BaseException) -> None:
    """Logs what a step raised, with its traceback; it appears on stderr unless a program says
    otherwise.
    """
    logging.getLogger("flyweight").error("a step of the engine failed", exc_info=error)


class Driver:
    """Adds requests, steps, and returns events; `report` is called with what a step raised."""

    def __init__(self, engine: Engine, report: Callable[[BaseException], None] = log) -> None:
        self.engine, self.report = engine, report
        self._isolation = FaultIsolation(engine)

    def add(self, request: Request) -> None:
        """Raises `RequestError` for what could never be finished."""
        self.engine.add(request)
        self._isolation.add(request)

    def abort(self, id: str, index: int | None = None) -> list[Event]:
        """Ends a request, or one choice of it; an unknown id is no error."""
        try:
            return self.engine.abort(id, index)
        finally:
            self._isolation.forget(id, index)

    def stop(self, id: str, index: int) -> None:
        """Ends a choice at a stop string."""
        try:
            self.engine.stop(id, index)
        finally:
            self._isolation.forget(id, index)

    def step(self, budget: StepBudget = UNLIMITED, planned: Planned | None = None) -> list[Event]:
        """One step within `budget`; `planned` is called with its plan before it is computed."""
        try:
            events = self._isolation.step(budget, planned)
        except ComputeError as error:
            return self.recover(error.__cause__ or error)
        self._isolation.count(events)
        return events

    def recover(self, error: BaseException) -> list[Event]:
        """Goes on after a step that raised, whatever it was."""
        self.report(error)
        return self._isolation.recover(error)
