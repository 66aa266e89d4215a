"""Dynamic batching: which requests are held, for how long, and that none is lost.  Clocks are
simulated, except for one server.
"""

import asyncio
import random
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from flyweight.bench.batch_window import LEAST_MS, BatchWindow, TimelineEvent, simulate_window
from flyweight.errors import ConfigError
from flyweight.planning.window import SEED_ARRIVALS
from flyweight.requests.collector import VectorCollector
from flyweight.server import pipe
from flyweight.server.admission.batching import RequestBatcher
from flyweight.server.admission.queue import AdmissionQueue
from flyweight.server.admission.request_group import RequestGroup
from flyweight.server.coalescing import make_key
from flyweight.server.engine_client import EngineClient, EngineDown
from flyweight.server.engine_host import EngineHost
from flyweight.server.settings import ServerSettings
from flyweight.server.transport.errors import HttpError
from flyweight.types import Request, SamplingParams
from http_server import WAIT, Running, started

ROUNDING = 1e-9  # seconds


class Timer:
    """A callback of a `Clock`."""

    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when, self.callback, self.over = when, callback, False

    def cancel(self) -> None:
        self.over = True


class Clock:
    """In the place of an event loop: its time, in seconds, is set."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(when, callback))
        return self.timers[-1]

    def run_before(self, when: float) -> None:
        """Calls what is due before `when`, and is then at that time."""
        while due := [one for one in self.timers if not one.over and one.when < when - ROUNDING]:
            timer = min(due, key=lambda one: one.when)
            timer.over, self.now = True, timer.when
            timer.callback()
        self.now = when


class Engine:
    """Counts how often it got requests together."""

    def __init__(self) -> None:
        self.batches = 0

    @contextmanager
    def send_together(self) -> Iterator[None]:
        self.batches += 1
        yield


class Trace:
    """Requests that arrive at given times, in whole ms, and when each is submitted."""

    def __init__(self, wait: int = 5, preferred: int = 5) -> None:
        self.clock, self.engine = Clock(), Engine()
        settings = ServerSettings(batch_wait_ms=wait, preferred_batch=preferred)
        self.batcher = RequestBatcher(settings, self.clock)
        self.arrivals: dict[int, int] = {}
        self.starts: dict[int, float] = {}
        self.withdraw: dict[int, Callable[[], None]] = {}

    @property
    def ms(self) -> float:
        return round(1000 * self.clock.now, 6)

    def arrive(self, at: int, count: int = 1) -> TimelineEvent:
        """One request at a time, after what was due before."""
        self.clock.run_before(at / 1000)
        number = len(self.arrivals) + 1
        self.arrivals[number] = at
        before = len(self.starts)
        waiting = [one for one in self.withdraw if one not in self.starts]
        queue = (*waiting, number)
        self.withdraw[number] = self.batcher.hold(
            self.engine, count, lambda: self.starts.update({number: self.ms})
        )
        waited = at - self.arrivals[queue[0]]
        return TimelineEvent(at, (number,), queue, waited, len(self.starts) - before)

    def end(self) -> list[float]:
        """When each was submitted, once all were."""
        self.clock.run_before(1e9)
        assert not self.batcher.count_held(self.engine)
        return [self.starts[number] for number in sorted(self.starts)]


def test_the_timeline_of_the_founding_document() -> None:
    """A window of 5 ms, which the fifth request ends."""
    trace = Trace()
    events = [trace.arrive(int(at)) for at in SEED_ARRIVALS]
    simulated = simulate_window(BatchWindow(5, 5), SEED_ARRIVALS)
    assert events == simulated.events
    assert [event.started for event in events] == [0, 0, 0, 0, 5]
    assert trace.starts == dict.fromkeys(range(1, 6), 5.0) and trace.engine.batches == 1
    assert trace.end() == simulated.starts


def test_other_timelines_are_those_of_the_simulation() -> None:
    for seed in range(100):
        rng = random.Random(seed)
        wait, preferred = rng.randint(1, 9), rng.randint(2, 5)
        arrivals = sorted(rng.sample(range(40), rng.randint(1, 20)))
        trace = Trace(wait, preferred)
        for at in arrivals:
            trace.arrive(at)
        window = BatchWindow(wait, preferred, LEAST_MS, LEAST_MS)  # an engine that is free again
        assert trace.end() == simulate_window(window, arrivals).starts, seed


def test_a_window_ends_without_enough_requests() -> None:
    trace = Trace()
    trace.arrive(0)
    trace.arrive(2)
    assert trace.end() == [5, 5] and trace.engine.batches == 1


def test_each_prompt_of_a_request_counts() -> None:
    trace = Trace()
    trace.arrive(0, 3)
    trace.arrive(1, 4)
    assert trace.end() == [1, 1]
    trace = Trace()
    trace.arrive(0, 7)
    assert trace.starts == {1: 0}


def test_engines_have_batches_of_their_own() -> None:
    trace = Trace(preferred=2)
    first, second = trace.engine, Engine()
    trace.arrive(0)
    trace.engine = second
    trace.arrive(1)
    assert not trace.starts
    trace.arrive(2)
    assert sorted(trace.starts) == [2, 3] and (first.batches, second.batches) == (0, 1)
    assert trace.batcher.count_held(first) == 1


def test_the_wait_is_that_of_the_oldest_that_is_left() -> None:
    trace = Trace()
    for at in (0, 2, 3):
        trace.arrive(at)
    trace.withdraw[1]()  # its client has gone
    assert trace.batcher.count_held(trace.engine) == 2
    trace.withdraw[3]()
    trace.withdraw[3]()
    assert trace.end() == [7], "5 ms after the second"


def test_nothing_is_left_of_a_batch_that_all_have_left() -> None:
    trace = Trace()
    trace.arrive(0)
    trace.withdraw[1]()
    assert not trace.batcher.count_held(trace.engine) and all(t.over for t in trace.clock.timers)
    trace.arrive(9)
    trace.clock.run_before(0.0135)
    assert not trace.starts, "the window of the first is over"
    assert trace.end() == [14]
    trace.withdraw[2]()  # as every group does at its end


def test_a_server_that_ends_holds_nothing() -> None:
    trace = Trace()
    trace.arrive(0)
    trace.arrive(1)
    trace.batcher.submit_all()
    assert trace.starts == {1: 1, 2: 1}
    trace.batcher.submit_all()
    assert trace.engine.batches == 1


# --- requests of an HTTP request ---


class Host(EngineHost):
    """A way to the engine that keeps what is sent."""

    def __init__(self) -> None:
        super().__init__(print)
        self.written: list[bytes] = []
        self._line: Any = SimpleNamespace(write=self.written.append)

    def read(self) -> list[list[Any]]:
        """The messages of each write."""
        return [
            [message for _, message in pipe.PipeFrames(pipe.ToEngine).push(data)]
            for data in self.written
        ]


class World:
    """A model whose requests wait for one another, on a simulated clock."""

    def __init__(self, **settings: Any) -> None:
        self.clock, self.host, self.made = Clock(), Host(), 0
        self.settings = ServerSettings(batch_wait_ms=5, **settings)
        self.client = EngineClient(self.host, pipe.EngineSetup({}, 1.0))
        self.client.ready = True
        self.client._expect = lambda: None  # type: ignore[method-assign]  # no clock of silence
        self.batcher = RequestBatcher(self.settings, self.clock)
        self.queue, self.groups = AdmissionQueue(self.settings), set[RequestGroup]()
        self.ended: list[Any] = []
        preparer = SimpleNamespace(make_vector=self._make, make_id=self._count)
        self.model: Any = SimpleNamespace(
            settings=self.settings, preparer=preparer, client=self.client,
            observer=SimpleNamespace(observe_end=self.ended.append),
            hold=lambda: None, release=lambda: None,
        )  # fmt: skip

    def _count(self) -> str:
        self.made += 1
        return f"r{self.made}"

    def _make(self, prompt: Any, id: str) -> VectorCollector:
        params = SamplingParams(temperature=0)
        request = Request(id, prompt.tokens, params, max_tokens=0)
        return VectorCollector(request, None, prompt.tokens)

    def begin(self, *tokens: int, held: bool = True) -> RequestGroup:
        """A prompt of one token each."""
        prompts: Any = [SimpleNamespace(pooling=True, tokens=(token,)) for token in tokens]
        place = self.queue.enter(len(prompts), len(prompts))
        now = asyncio.get_running_loop().time()
        batcher = self.batcher if held else None
        return RequestGroup(self.model, self.queue, self.groups, prompts, place, now, batcher)

    @property
    def sent(self) -> list[list[tuple[str, ...]]]:
        """Kind and id of the messages of each write."""
        return [[(type(one).__name__, one.id) for one in batch] for batch in self.host.read()]


def submits(*ids: str) -> list[tuple[str, str]]:
    return [("Submit", id) for id in ids]


def run(work: Callable[[], Any]) -> None:
    asyncio.run(work())


async def is_waiting(task: "asyncio.Task[Any]") -> bool:
    """Whether a task has not ended, although everything that could run has."""
    for _ in range(5):
        await asyncio.sleep(0)
    return not task.done()


def test_a_batch_is_one_write() -> None:
    async def work() -> None:
        world = World()
        first, second = world.begin(1, 2), world.begin(3)
        task = asyncio.ensure_future(first.wait_for_all())
        assert world.sent == [] and await is_waiting(task), "nothing was submitted"
        world.clock.run_before(1.0)
        assert world.sent == [submits("r1", "r2", "r3")]
        assert await is_waiting(task), "nothing has ended"
        for stream in list(world.client.streams.values()):
            stream.end()
        assert await task == first.collectors
        for group in (first, second):
            group.close()
        assert not world.groups and world.queue.requests == 0

    run(work)


def test_a_request_without_a_batch_runs_at_once() -> None:
    async def work() -> None:
        world = World()
        world.begin(1).close()
        world.begin(2, held=False)
        assert world.sent == [submits("r2")]

    run(work)


def test_a_client_that_leaves_while_it_is_held_is_never_submitted() -> None:
    async def work() -> None:
        world = World(preferred_batch=3)
        gone, stays = world.begin(1), world.begin(2)
        gone.close()
        assert world.queue.requests == 1
        world.begin(3)
        assert world.sent == [], "two are no batch of three"
        world.begin(4)
        assert world.sent == [submits("r2", "r3", "r4")]
        assert world.ended == [] and stays in world.groups

    run(work)


def test_a_client_that_leaves_later_is_aborted() -> None:
    async def work() -> None:
        world = World(preferred_batch=2)
        gone = world.begin(1)
        world.begin(2)
        gone.close()
        assert world.sent == [submits("r1", "r2"), [("Abort", "r1")]]

    run(work)


def test_equal_requests_of_a_batch_are_computed_once() -> None:
    async def work() -> None:
        world = World()
        world.begin(1)
        world.begin(1)
        assert world.batcher.count_held(world.client) == 2 and world.client.joined == 0
        world.clock.run_before(1.0)
        assert world.sent == [submits("r1")] and world.client.joined == 1
        third = world.begin(1)
        assert world.client.joined == 2, "it joins the others without waiting"
        assert world.batcher.count_held(world.client) == 0
        mixed = world.begin(1, 2)
        assert world.batcher.count_held(world.client) == 2, "one of them is computed by no other"
        assert make_key(third.collectors[0].request) == make_key(mixed.collectors[0].request)

    run(work)


def test_deadlines_end_a_wait() -> None:
    async def work() -> None:
        world = World()
        for late, code in (("_leave_queue_late", "queue_timeout"), ("_time_out", "deadline")):
            with world.begin(1) as group:
                task = asyncio.ensure_future(group.wait_for_all())
                assert await is_waiting(task)
                getattr(group, late)()  # as the timer does
                with pytest.raises(HttpError) as caught:
                    await task
                assert caught.value.code == code
        world.clock.run_before(1.0)
        assert world.sent == [] and world.queue.requests == 0

    run(work)


def test_an_engine_that_ended_meanwhile_is_reported_to_each() -> None:
    async def work() -> None:
        world = World()
        groups = [world.begin(1), world.begin(2, 3)]
        tasks = [asyncio.ensure_future(group.wait_for_all()) for group in groups]
        assert await is_waiting(tasks[0])
        world.client.ready = False
        world.clock.run_before(1.0)
        for task in tasks:
            with pytest.raises(HttpError) as caught:
                await task
            assert (caught.value.status, caught.value.code) == (503, "engine_down")
        with pytest.raises(EngineDown):  # one that is not held learns it at once
            world.begin(4, held=False)
        for group in groups:
            group.close()
        assert not world.groups and world.queue.requests == 0

    run(work)


@pytest.mark.parametrize(
    "given, message",
    [
        (
            {"batch_wait_ms": -1},
            "batch_wait_ms = -1 is out of range; allowed: a whole number, 0 to",
        ),
        ({"batch_wait_ms": 5, "preferred_batch": 1}, "nearest valid: 2"),
        ({"preferred_batch": 8}, "preferred_batch = 8 has no effect without a time to wait; give"),
    ],
)
def test_what_makes_no_batch_is_refused(given: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ServerSettings(**given)
    assert message in str(refused.value)


def test_nothing_is_held_by_default() -> None:
    assert not RequestBatcher(ServerSettings()).enabled


# --- a server ---

TEXT = {"prompt": "Once", "max_tokens": 2, "temperature": 0}


@pytest.fixture(scope="module")
def batching() -> Iterator[Running]:
    """Longer than any test: what is answered was not held, or its batch was complete."""
    with started("--batch-wait-ms", "60000", "--preferred-batch", "2") as running:
        yield running


def test_replies_and_vectors_make_a_batch_and_streams_do_not_wait(batching: Running) -> None:
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(batching.post, "/v1/completions", TEXT)
        streamed = batching.post("/v1/completions", {**TEXT, "stream": True})
        assert streamed.status == 200 and b"[DONE]" in streamed.body
        assert not held.done()
        vector = batching.post("/v1/embeddings", {"input": "a"})
        assert vector.status == 200 and held.result().status == 200
        text = "".join(one["choices"][0]["text"] for one in streamed.events)
        assert held.result().json["choices"][0]["text"] == text


def test_a_request_of_two_prompts_is_a_batch(batching: Running) -> None:
    got = batching.post("/v1/embeddings", {"input": ["a", "b"]})
    assert got.status == 200 and len(got.json["data"]) == 2


def test_what_is_held_is_answered_before_the_server_ends(batching: Running) -> None:
    """The last test of this server."""
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(batching.post, "/v1/completions", TEXT)
        while batching.get("/load").json["server_load"] < 1:
            assert not held.done()
        batching.process.send_signal(signal.SIGTERM)
        got = held.result()
    # one that was still being read is refused like any other
    assert got.status == 200 or "is shutting down" in got.json["error"]["message"]
    assert batching.process.wait(WAIT) == 0
