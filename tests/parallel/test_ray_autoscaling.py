"""Replicas that Ray Serve starts and ends by load: no request is lost when their number changes."""

import asyncio
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

pytest.importorskip("ray", reason="the extra [distributed] is not installed")

from flyweight.config import Settings
from flyweight.parallel import ray_serve
from flyweight.parallel.cluster import ReplicaPlan
from flyweight.parallel.ray_serve import AutoscalingConfig, RayCluster
from flyweight.server import pipe
from flyweight.server.replicas.engine_replica import EngineReplica
from flyweight.server.replicas.host import ReplicaHost
from flyweight.types import Request, SamplingParams

pytestmark = pytest.mark.long

LENGTH = 300  # tokens of an answer
SOON = {
    "upscale_delay_s": 1, "downscale_delay_s": 2, "metrics_interval_s": 0.5,
    "look_back_period_s": 2,
}  # fmt: skip


class Client:
    """Counts the tokens of each request, and sends another one for each that ends."""

    number, wanted, sent, lost = 0, True, False, 0

    def __init__(self) -> None:
        self.host: ReplicaHost | None = None
        self.streams = 0  # requests that are to run at a time
        self.tokens: dict[str, int] = {}  # of every request so far
        self.running: set[str] = set()
        self.problems: list[Any] = []

    def begin_loading(self) -> pipe.EngineSetup:
        settings = Settings.of(threads=1, memory_limit="300MiB")
        given = pipe.to_portable({slot: getattr(settings, slot) for slot in settings.__slots__})
        return pipe.EngineSetup(given, 0.2)

    def load(self) -> None: ...
    async def wait_until_ready(self) -> None: ...

    def take(self, message: Any) -> None:
        if isinstance(message, pipe.RequestRefused | pipe.Failed):
            self.problems.append(message)
        elif isinstance(message, pipe.StepReport):
            for news in message.news:
                self.tokens[news.id] += len(news.tokens)
                if news.finish is not None:
                    self.running.remove(news.id)
            self.fill()

    def handle_lost(self) -> None:
        self.problems.append("all replicas were lost")

    def fill(self) -> None:
        assert self.host is not None
        while len(self.running) < self.streams:
            id = f"request {len(self.tokens)}"
            self.tokens[id] = 0
            self.running.add(id)
            params = SamplingParams(temperature=0)
            request = Request(id, (1, 2, len(self.tokens)), params, max_tokens=LENGTH)
            self.host.send(0, pipe.Submit.of(request))


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ray Serve decides within seconds, where it waits ten minutes before it ends a replica."""
    monkeypatch.setattr(ray_serve, "AutoscalingConfig", partial(AutoscalingConfig, **SOON))
    yield


async def wait(done: Callable[[], bool], client: Client, seconds: float = 180) -> None:
    until = time.monotonic() + seconds
    while not done():
        assert not client.problems and time.monotonic() < until
        await asyncio.sleep(0.1)


async def scale() -> None:
    plan = ReplicaPlan(1, 2, cores=1, target=2)  # with 1, one request would keep both
    client = Client()
    host = client.host = ReplicaHost(RayCluster(EngineReplica, plan), plan, "prefix", print)
    host.add(client)
    try:
        await host.open()
        await wait(lambda: len(host.set.open) == 1, client)
        host.restarts_lost = True
        for streams, replicas in ((4, 2), (1, 1)):
            client.streams = streams
            client.fill()
            await wait(lambda replicas=replicas: len(host.set.open) == replicas, client)
        client.streams = 0
        await wait(lambda: not client.running, client)
        assert not client.problems and host.set.counts.failed == host.set.counts.lost == 0
        assert set(client.tokens.values()) == {LENGTH}
        assert len(host.set.requests) == 2, "both replicas had requests"
    finally:
        await host.close()


@pytest.mark.usefixtures("soon")
def test_scaling_up_and_down_loses_no_request() -> None:
    asyncio.run(scale())
