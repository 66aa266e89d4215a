"""Steps an engine until what was asked is answered.

Invariant: every request added is finished or aborted before a run ends, however it ends, and
Ctrl-C falls between steps.  Several runs may be under way at once: each step feeds them all.  Knows
collectors by what they take, not what they make of it.
"""

from collections.abc import Iterator
from typing import Protocol, TypeVar

from flyweight.config import Limits
from flyweight.engine.engine import Engine
from flyweight.types import Event, Request
from flyweight.waiting import whole


class Gathers(Protocol):
    """Takes one request's events; `feed` is true when a choice has ended that the engine knows
    nothing of (a stop string).
    """

    @property
    def request(self) -> Request: ...
    @property
    def finished(self) -> bool: ...
    def feed(self, event: Event) -> bool: ...


C = TypeVar("C", bound=Gathers)


class Loop:
    """The requests under way, each with the list its run reads."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self.engine, self.limits = engine, limits
        self.live: dict[str, tuple[Gathers, dict[Gathers, None]]] = {}

    def run(self, collectors: Iterator[C]) -> Iterator[list[C]]:
        """Steps until every request is answered; yields after each step the collectors it fed.
        Requests are added as the engine gets to them, so that thousands of prompts cost no more
        memory than the plan has.  What is left is aborted on the way out.
        """
        mine: set[str] = set()
        news: dict[C, None] = {}  # in order
        coming = next(collectors, None)
        try:
            while coming or mine:
                with whole(self.engine):
                    while coming and self.room():
                        mine.add(coming.request.id)
                        self.live[coming.request.id] = coming, news  # type: ignore[assignment]
                        self.engine.add(coming.request)
                        coming = next(collectors, None)
                    if not news:  # else another run's step already brought something
                        self.step()
                fed = list(news)
                news.clear()
                ended = {collector.request.id for collector in fed if collector.finished}
                mine -= ended
                for id in ended:
                    del self.live[id]
                yield fed
        finally:
            with whole(self.engine):
                for id in mine:
                    self.live.pop(id, None)
                    self.engine.abort(id)

    def room(self) -> bool:
        """Whether the engine should know of one more request, to have enough to choose from."""
        waiting = self.engine.scheduler.waiting
        if len(waiting) >= self.limits.max_num_seqs:
            return False
        held = sum(len(seq.tokens) for seq in waiting)
        return held < self.limits.blocks * self.limits.block_size

    def step(self) -> None:
        """One step; feeds every live collector."""
        for event in self.engine.step():
            collector, news = self.live[event.id]
            news[collector] = None
            if collector.feed(event):
                self.engine.stop(event.id, event.index)
