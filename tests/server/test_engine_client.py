"""What an engine reports, without an engine: of one request, and of whether it makes progress."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from flyweight.engine.metrics import EngineMetrics
from flyweight.errors import CheckpointError, ConfigError
from flyweight.server import pipe
from flyweight.server.coalescing import make_key
from flyweight.server.engine_client import EngineClient, EngineStream
from flyweight.server.engine_host import EngineHost
from flyweight.types import Event, Request, SamplingParams


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
    begin = pipe.EngineSetup({}, 1.0)
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


def request(id: str, **more: Any) -> Request:
    params = SamplingParams(temperature=0, **more)
    return Request(id, (1, 2), params, max_tokens=4, seed=hash(id), arrival=float(ord(id)))


class Counting(Told):
    """A collector of a real request, which ends with its event's finish."""

    def __init__(self, made: Request) -> None:
        super().__init__(made.id)
        self.request = made
        self.arrivals: list[float] = []

    def feed(self, event: Event) -> bool:
        self.fed.append(event.tokens)
        self.finished = event.finish is not None
        if event.timings is not None:
            self.arrivals.append(event.timings.arrival)
        return False


def submit(own: EngineClient, made: Request) -> tuple[EngineStream, Counting]:
    told = Counting(made)
    return own.submit(told, asyncio.Event(), make_key(made)), told


def ready() -> tuple[EngineClient, list[pipe.ToEngine]]:
    own = client()
    own.ready = True
    own._expect = lambda: None  # type: ignore[method-assign]
    host: Any = own.host
    return own, host.sent


def report(*news: pipe.StepEvents) -> pipe.StepReport:
    return pipe.StepReport(list(news), [], pipe.Gauges(1, 0, 8, 4, EngineMetrics(), 1, 0.1, 0.1))


END = pipe.StepEvents("a", 0, (8,), "stop", timings=(97.0, 98.0, 98.5, 99.5, None))


def test_equal_requests_share_one_computation() -> None:
    own, sent = ready()
    _, first = submit(own, request("a"))
    own.take(report(pipe.StepEvents("a", 0, (7,))))
    stream, second = submit(own, request("b"))
    assert second.fed == [(7,)] and own.joined == 1
    own.take(report(END))
    assert first.fed == second.fed == [(7,), (8,)] and stream.over
    assert second.arrivals == [98.0], "its own"
    assert [type(one) for one in sent] == [pipe.Submit] and not own.streams
    submit(own, request("c"))
    assert own.joined == 1, "what has ended is not joined"


def test_a_leader_that_leaves_is_computed_for_the_others() -> None:
    own, sent = ready()
    (leader, first), (other, second) = submit(own, request("a")), submit(own, request("b"))
    own.leave(leader)
    own.take(report(pipe.StepEvents("a", 0, (7,))))
    assert not first.fed and second.fed == [(7,)] and len(sent) == 1
    own.leave(other)
    assert sent[-1] == pipe.Abort("a") and not own.streams
    submit(own, request("c"))
    assert own.joined == 1, "what was aborted is not joined"


@pytest.mark.parametrize("end", ["unloaded", "lost"])
def test_an_unload_whose_waiter_was_cancelled_ends_well(end: str) -> None:
    """Its task was cancelled, and with it the future that it waited for."""

    async def work() -> None:
        own, _ = ready()
        host: Any = own.host
        host._line = object()
        waiting = asyncio.ensure_future(own.unload())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        own.take(pipe.Ready({}))  # was under way
        assert not own.ready, "it is being unloaded"
        if end == "unloaded":
            own.take(pipe.Unloaded())
        else:
            own.handle_lost()
        assert own._dropped is None and not own.ready

    asyncio.run(work())


def test_progress_of_one_engine_counts_for_the_others_of_its_process() -> None:
    """An engine with a small share of the time waits long, and is not stuck."""
    starved = client(Told("a"))
    other = EngineClient(starved.host, pipe.EngineSetup({}, 1.0))
    other.streams["b"] = EngineStream(Told("b"), asyncio.Event())  # type: ignore[arg-type]
    starved.spoke -= 1000.0
    assert starved.measure_silence() >= 1000
    other.take(stepped())  # a step without a token
    assert starved.measure_silence() >= 1000
    other.take(stepped("b", tokens=1))
    assert starved.measure_silence() < 1000


def test_a_process_that_ends_ends_followers_too() -> None:
    own, _ = ready()
    streams = [submit(own, request(id))[0] for id in "ab"]
    own.handle_lost()
    assert all(one.over and one.error is not None for one in streams)


@pytest.mark.parametrize(
    "other",
    [
        replace(request("b"), salt="other"),
        replace(request("b"), adapter="other"),
        replace(request("b"), tokens=(1, 3)),
        replace(request("b"), max_tokens=5),
        replace(request("b"), stop_ids=frozenset({9})),
        replace(request("b"), priority=1),
        request("b", stop="x"),
        request("b", logprobs=1),
        request("b", repetition_penalty=1.5),
        request("b", n=2),
    ],
)
def test_other_requests_are_not_joined(other: Request) -> None:
    own, _ = ready()
    submit(own, request("a"))
    submit(own, other)
    assert own.joined == 0 and len(own.streams) == 2


def test_every_field_of_a_request_is_in_its_key() -> None:
    key = make_key(request("a"))
    assert key is not None
    fields = msgspec.msgpack.decode(key)[1:]
    given = dict(zip(pipe.Submit.__struct_fields__, fields, strict=True))
    same = {"id": "", "arrival": 0.0, "seed": 0, "start_by": inf}
    assert {name: given[name] for name in same} == same and given["max_tokens"] == 4


def test_seeds_count_where_tokens_are_drawn() -> None:
    drawn = replace(request("a"), params=SamplingParams(temperature=1))
    assert make_key(drawn) == make_key(replace(drawn, id="b", arrival=1.0))
    assert make_key(drawn) != make_key(replace(drawn, seed=drawn.seed + 1))
    assert make_key(request("a")) == make_key(replace(request("a"), seed=5))
    assert make_key(replace(request("a"), explain=True)) is None
    assert make_key(replace(request("a"), measure=True)) is None


@pytest.mark.parametrize("waits_before", [True, False])
def test_a_restart_does_not_wait_for_an_engine_that_is_unloaded(waits_before: bool) -> None:
    """Else the server would be unhealthy for ever: the engine does not become ready."""

    async def unload() -> None:
        own = client()
        own.host._line = object()  # type: ignore[assignment]
        own.begin_loading()
        waits = [own.wait_until_ready()] if waits_before else []
        waiting = [asyncio.ensure_future(one) for one in waits]
        await asyncio.sleep(0)
        dropping = asyncio.ensure_future(own.unload())
        await asyncio.sleep(0)
        own.take(pipe.Unloaded())
        await dropping
        for one in waiting or [own.wait_until_ready()]:
            with pytest.raises(ConfigError, match="the model was unloaded"):
                await asyncio.wait_for(one, 30)
        assert not own.ready

    asyncio.run(unload())


def test_a_restart_leaves_a_load_that_a_request_began_alone() -> None:
    """Else two wait for one engine, and the first of them for ever, with the lock of all loads."""

    async def restart() -> None:
        host = Host()
        host._line = object()  # type: ignore[assignment]
        first, second = (EngineClient(host, pipe.EngineSetup({}, 1.0)) for _ in range(2))
        first.wanted = True  # it was loaded in the process that ended
        loading_again = asyncio.ensure_future(host._load_again(Counter()))
        await asyncio.sleep(0)
        second.load()
        requested = asyncio.ensure_future(second.wait_until_ready())
        for one in (first, second):
            await asyncio.sleep(0)
            one.take(pipe.Ready({}))
        await asyncio.wait_for(asyncio.gather(loading_again, requested), 30)
        assert len(host.sent) == 2, "each engine is loaded once"

    asyncio.run(restart())
