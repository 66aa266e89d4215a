"""Drives an engine until the requests of a call are finished.

Invariant: every request added is finished or aborted before a run ends, however it ends, and
Ctrl-C falls between steps.  Several runs may be under way at once: each step feeds them all.  Knows
collectors by what they take, not what they make of it.
"""

from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from flyweight.config import Limits
from flyweight.driver.driver import Driver
from flyweight.driver.progress import hold_interrupts
from flyweight.engine.engine import Engine
from flyweight.errors import RequestError
from flyweight.types import EventCollector


class BetweenSteps(Protocol):
    """Something to be done a little at a time."""

    def step(self) -> None: ...


C = TypeVar("C", bound=EventCollector)
Output = TypeVar("Output", covariant=True)


class BatchCollector(EventCollector, Protocol[Output]):
    """A collector of one kind of output."""

    def output(self) -> Output: ...


class Loop:
    """The requests under way, each with the list its run reads."""

    def __init__(self, engine: Engine, limits: Limits, background: BetweenSteps) -> None:
        self.engine, self.limits, self.background = engine, limits, background
        self.driver = Driver(engine)
        self.stepped = self.closed = False
        self.live: dict[str, tuple[EventCollector, dict[EventCollector, None]]] = {}

    def run(self, collectors: Iterator[C]) -> Iterator[list[C]]:
        """Steps until every request is answered; yields after each step the collectors it fed.
        What is left is aborted on the way out.
        """
        call = _Call(self, collectors)
        try:
            while call.unfinished:
                with hold_interrupts(self.engine):
                    fed = call.step()
                yield fed
        finally:
            with hold_interrupts(self.engine):
                call.abort()

    def finish(self, collectors: Iterator[C], report: Callable[[list[C]], None]) -> None:
        """`run` to its end; `report` is called after each step with the collectors it fed."""
        call = _Call(self, collectors)
        with hold_interrupts(self.engine) as between:
            try:
                while call.unfinished:
                    report(call.step())
                    between()
            finally:
                call.abort()

    def has_capacity(self) -> bool:
        """Whether the engine should know of one more request, to have enough to choose from."""
        waiting = self.engine.scheduler.waiting
        if len(waiting) >= self.limits.max_num_seqs:
            return False
        held = sum(len(seq.tokens) for seq in waiting)
        return held < self.limits.blocks * self.limits.block_size

    def step(self) -> None:
        """One step; feeds every live collector.  Background work is done between two steps: the
        first answer does not wait for it.
        """
        if self.stepped:
            self.background.step()
        self.stepped = True
        changed: dict[EventCollector, None] = {}
        for event in self.driver.step():
            collector, fed = self.live[event.id]
            fed[collector] = changed[collector] = None
            if collector.feed(event):
                self.driver.stop(event.id, event.index)
        for collector in changed:
            if request := collector.take_next():
                self.driver.add(request)

    def close(self) -> None:
        """Ends what is under way with the reason "abort"; nothing new begins."""
        self.closed = True
        for id, (collector, fed) in self.live.items():
            for event in self.driver.abort(id):
                collector.feed(event)
            fed[collector] = None
        self.engine.close()


class _Call(Generic[C]):
    """One call's requests.  They are added as the engine gets to them, so that thousands of prompts
    cost no more memory than the plan has.
    """

    def __init__(self, loop: Loop, collectors: Iterator[C]) -> None:
        self._loop, self._collectors = loop, collectors
        self._coming = next(collectors, None)
        self._mine: set[str] = set()
        self._fed: dict[EventCollector, None] = {}  # in order

    @property
    def unfinished(self) -> bool:
        return bool(self._coming or self._mine)

    def step(self) -> list[C]:
        """One step, unless another call's step already brought something; the collectors fed."""
        loop = self._loop
        if loop.closed and self._coming:
            raise RequestError("this LLM is closed; make another")
        while self._coming and loop.has_capacity():
            id = self._coming.request.id
            self._mine.add(id)
            loop.live[id] = self._coming, self._fed
            loop.driver.add(self._coming.request)
            self._coming = next(self._collectors, None)
        if not self._fed:
            loop.step()
        fed: list[C] = list(self._fed)  # type: ignore[arg-type]  # none but ours
        self._fed.clear()
        for collector in fed:
            if collector.finished:
                self._mine.discard(collector.request.id)
                del loop.live[collector.request.id]
        return fed

    def abort(self) -> None:
        for id in self._mine:
            self._loop.live.pop(id, None)
            self._loop.driver.abort(id)
