"""What an engine reports, without an engine: of one request, and of whether it makes progress."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from flyweight.engine.metrics import EngineMetrics
from flyweight.errors import CheckpointError
from flyweight.server import pipe
from flyweight.server.engine_client import EngineClient, EngineStream
from flyweight.server.engine_host import EngineHost
from flyweight.types import Event


class Told:
    """A collector that keeps what it is fed, or fails on it."""

    def __init__(self, id: str, fails: Exception | None = None) -> None:
        self.request: Any = SimpleNamespace(id=id)
        self.fails, self.fed, self.finished = fails, [], False  # type: ignore[var-annotated]

    def feed(self, event: Event) -> bool:
        if self.fails is not None:
            raise self.fails
        self.fed.append(event.tokens)
        return False


class Host(EngineHost):
    """The way to the engine."""

    def __init__(self) -> None:
        super().__init__(print)
        self.sent: list[pipe.ToEngine] = []

    def send(self, number: int, message: pipe.ToEngine) -> None:
        self.sent.append(message)


def client(*collectors: Told) -> EngineClient:
    begin: Any = None
    found = EngineClient(Host(), begin)
    for one in collectors:
        found.streams[one.request.id] = EngineStream(one, asyncio.Event())
    return found


def stepped(*ids: str, tokens: int = 0) -> pipe.StepReport:
    news = [pipe.StepEvents(id, 0, (7,)) for id in ids]
    return pipe.StepReport(
        news, [], pipe.Gauges(len(ids), 0, 8, 4, EngineMetrics(), tokens, 0.1, 0.1)
    )


@pytest.mark.parametrize("error", [CheckpointError("the decoder fails"), IndexError("out")])
def test_an_answer_that_cannot_be_read_ends_alone(error: Exception) -> None:
    """The others of its step get their events, and the engine learns that it has gone."""
    bad, good = Told("bad", error), Told("good")
    own = client(bad, good)
    streams = dict(own.streams)
    own.take(stepped("bad", "good", tokens=2))
    assert good.fed == [(7,)] and not streams["good"].over
    assert streams["bad"].error is error and streams["bad"].over and streams["bad"].news.is_set()
    assert list(own.streams) == ["good"]
    host: Any = own.host
    assert host.sent == [pipe.Abort("bad")]
    own.take(stepped("bad", "good", tokens=2))  # news that were under way
    assert good.fed == [(7,), (7,)]


def idle(own: EngineClient, message: Any) -> bool:
    """Whether it is as silent as before."""
    own.spoke = 0.0
    own.take(message)
    return own.spoke == 0.0


@pytest.mark.parametrize(
    ("message", "counts"),
    [
        (lambda: stepped("a", tokens=1), True),
        (lambda: stepped(tokens=1), True),  # of a prompt
        (lambda: pipe.RequestRefused("other", {}), True),
        (stepped, False),
        (lambda: pipe.EngineAnswer(0, {}), False),
    ],
)
def test_an_engine_that_only_talks_does_not_get_on(
    message: Callable[[], Any], counts: bool
) -> None:
    """Steps without a token and answers to questions are no work for those who wait."""
    assert idle(client(Told("a")), message()) is not counts
    assert not idle(client(), message()), "nobody waits: it lives"
