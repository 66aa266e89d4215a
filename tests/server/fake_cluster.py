"""A cluster of replicas without processes: what they answer is said by a test."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from flyweight import __version__
from flyweight.engine.metrics import EngineMetrics
from flyweight.errors import EngineError
from flyweight.parallel.cluster import END, GONE, ReplicaPlan
from flyweight.server import pipe
from flyweight.server.replicas.clocks import ClockedSubmit
from flyweight.server.replicas.engine_replica import decode
from flyweight.server.replicas.host import ReplicaHost
from flyweight.server.replicas.reports import ReplicaReport, ReplicaSetup
from flyweight.types import Request, SamplingParams

LOST = ConnectionError("the replica is gone")
FACTS = {
    "vocab": 100, "width": 8, "max_model_len": 512, "scored": 8, "adapters": [], "block_size": 4,
    "blocks": 64, "fingerprint": "0123456789abcdef", "context": 1024, "tokenizer": "123abc",
    "code": "c0de", "adapter_weights": [],
}  # fmt: skip


class FakeCluster:
    """Replicas with names; each request has a queue of what its replica answers: frames, `END`, or
    an error to raise.
    """

    def __init__(self, *names: str) -> None:
        self.reports = {name: ReplicaReport(__version__, facts=dict(FACTS)) for name in names}
        self.asked: list[tuple[str, str]] = []
        self.told: list[tuple[str, Any]] = []
        self.dropped: list[str] = []
        self.leaving: set[str] = set()
        self.deaf: set[str] = set()  # replicas that cannot be told or dropped
        self.hung: set[str] = set()  # replicas that never answer a question
        self.error: Exception | None = None  # of the next starts and stops
        self.gate = asyncio.Event()  # starts end once it is set
        self.gate.set()
        self.starting = self.most = 0  # starts under way, now and at most
        self.garbage: dict[str, bytes] = {}  # reports as they are sent
        self.queues: dict[str, asyncio.Queue[bytes | Exception]] = {}
        self.starts = self.stops = 0
        self.setup: ReplicaSetup | None = None  # the newest

    async def start(self, setup: bytes) -> None:
        self.starts += 1
        self.starting += 1
        self.most = max(self.most, self.starting)
        await self.gate.wait()
        self.starting -= 1
        if self.error is not None:
            raise self.error
        self.setup = msgspec.msgpack.decode(setup, type=ReplicaSetup)

    async def list(self) -> dict[str, bytes]:
        return {
            name: msgspec.msgpack.encode(one) for name, one in self.reports.items()
        } | self.garbage

    async def compute(self, name: str, frame: bytes) -> AsyncIterator[bytes]:
        if name in self.leaving:
            yield GONE
            return
        submit = msgspec.msgpack.decode(frame, type=ClockedSubmit).submit
        self.asked.append((name, submit.id))
        queue = self.queues[submit.id] = asyncio.Queue()
        while True:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            yield item
            if item == END:
                return

    async def tell(self, name: str, frame: bytes) -> bytes:
        if name in self.deaf:
            raise EngineError("the actor died")
        message = decode(frame, pipe.ToEngine)
        self.told.append((name, message))
        if name in self.hung:
            await asyncio.Event().wait()
        if isinstance(message, pipe.EngineQuestion):
            return pipe.encode_frame(pipe.EngineAnswer(message.number, {"freed": 3}))
        return b""

    async def drop(self, name: str) -> None:
        if name in self.deaf:
            raise EngineError("the actor died")
        self.dropped.append(name)
        self.reports.pop(name, None)

    async def stop(self) -> None:
        self.stops += 1
        if self.error is not None:
            raise self.error
        self.reports.clear()

    async def close(self) -> None:
        pass

    # --- for tests ---

    async def answer(self, id: str, *items: bytes | Exception) -> None:
        """Lets the replica of a request answer."""
        for item in items:
            self.queues[id].put_nowait(item)
        await turn()

    def where(self, id: str) -> str:
        """The replica that was asked last to compute a request."""
        return [name for name, one in self.asked if one == id][-1]


class Listener:
    """The client of the host; keeps what it is told."""

    number, wanted, sent, lost = 0, True, False, 0

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.losses = 0

    def begin_loading(self) -> pipe.EngineSetup:
        return pipe.EngineSetup({}, 0.2)

    def load(self) -> None:
        pass

    async def wait_until_ready(self) -> None:
        pass

    def take(self, message: Any) -> None:
        self.taken.append(message)

    def handle_lost(self) -> None:
        self.losses += 1

    def all(self, kind: type) -> list[Any]:
        return [one for one in self.taken if isinstance(one, kind)]


Begun = tuple[FakeCluster, ReplicaHost, Listener]


async def make_host(
    cluster: FakeCluster, routing: str = "prefix", least: int = 1
) -> tuple[ReplicaHost, Listener]:
    """A host that has seen the cluster's replicas once, and does not look again by itself."""
    host = ReplicaHost(cluster, ReplicaPlan(least, 8), routing, print)
    listener = Listener()
    host.add(listener)
    await look(host, cluster)
    return host, listener


async def begin(*names: str, started: bool = False, **more: Any) -> Begun:
    """Replicas with these names, of a server that is `started` already."""
    cluster = FakeCluster(*names)
    host, listener = await make_host(cluster, **more)
    host.restarts_lost = started
    return cluster, host, listener


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(work(), 60)

    asyncio.run(main())


async def look(host: ReplicaHost, cluster: FakeCluster) -> None:
    """Lets the host see what the replicas report."""
    host.update(dict(cluster.reports))
    await turn()


async def turn() -> None:
    """Lets everything that can run, run."""
    for _ in range(30):
        await asyncio.sleep(0)


def submit(id: str, tokens: int = 40, salt: str = "", first: int = 1) -> pipe.Submit:
    prompt = (first, *range(2, tokens + 1))
    params = SamplingParams(temperature=0)
    found = pipe.Submit.of(Request(id, prompt, params, max_tokens=4, salt=salt))
    assert found.tokens == array("i", prompt).tobytes()
    return found


def step(id: str, *tokens: int, steps: int = 1, started: bool = False) -> bytes:
    """The frame of a step with tokens of a request; the last step of an answer has none."""
    news = [pipe.StepEvents(id, 0, tokens)] if tokens else []
    gauges = pipe.Gauges(1, 0, 64, 60, EngineMetrics(steps=steps, produced=steps), 1, 0.1, 0.5)
    return pipe.encode_frame(pipe.StepReport(news, [id] if started else [], gauges))
