"""Requests that are held for a batch: none is lost, whatever becomes of its client, its deadline,
the engine or the server.
"""

import asyncio
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from flyweight.requests.collector import VectorCollector
from flyweight.server import pipe
from flyweight.server.admission.batching import RequestBatcher
from flyweight.server.admission.queue import AdmissionQueue
from flyweight.server.admission.request_group import AdmittedRequest, RequestGroup
from flyweight.server.coalescing import make_key
from flyweight.server.engine_client import EngineClient, EngineDown
from flyweight.server.engine_host import EngineHost
from flyweight.server.settings import ServerSettings
from flyweight.server.transport.errors import HttpError
from flyweight.types import Request, SamplingParams
from http_server import WAIT, Running, started
from simulated_timers import Clock


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
        admitted = AdmittedRequest(prompts, place, now, batcher=batcher)
        return RequestGroup(self.model, self.queue, self.groups, admitted)

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
        while (
            batching.get("/load").json["server_load"] < 1
        ):  # else it may share the stream's answer
            assert not held.done()
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
