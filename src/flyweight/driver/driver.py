"""Drives one engine, with fault isolation: the same for `LLM`, `AsyncLLM` and the server's worker.

Invariant: what a request's data makes raise ends that request with an error and no other.  A bug of
ours, or a lack of memory, is raised to the caller.  Knows no text.
"""

import logging
from collections.abc import Callable

from flyweight.driver.isolation import FaultIsolation
from flyweight.engine.engine import Engine, Planned
from flyweight.engine.step import UNLIMITED, ComputeError, StepBudget
from flyweight.types import Event, Request


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
