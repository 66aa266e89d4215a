"""What goes on during a soak, as tasks of one event loop: clients, canaries, an operator, readers
of the page's data, samples, and the two faults.

Invariant: each task ends with the run; all that is sent is counted in the record.
"""

import asyncio
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import cycle
from random import Random
from typing import Any

from soak_parts import load
from soak_parts.client import ANSWERED, Outcome, SentRequest, send
from soak_parts.record import Canary, Downtime, SoakRecord
from soak_parts.serving import MODELS, SoakServer, empty_disk, fill_disk
from soak_parts.watch import LEAST_MINUTES, read_processes, sum_metric

DISK_AT, KILL_AT = 0.12, 0.28  # of the run; its second half has no faults
FULL = 60.0  # seconds, at most a tenth of the run
POLL = 0.2
UNLOAD_TRIES = 25
LEFT_UNLOADS = 0.25  # share of unloads before which one is sent and left
CLIENTS = frozenset(one.name for one in load.KINDS)  # what the samples count
GAUGES = {"running": "vllm:num_requests_running", "waiting": "vllm:num_requests_waiting"}


@dataclass(frozen=True, slots=True)
class SoakPace:
    """Clients at once, requests a second of all of them together, and seconds between samples,
    canaries, and loads.
    """

    clients: int
    rate: float
    sample: float
    canary: float
    load: float

    @classmethod
    def of(cls, minutes: float, clients: int, rate: float) -> "SoakPace":
        short = minutes < LEAST_MINUTES
        return cls(clients, rate, *((1.0, 2.0, 4.0) if short else (10.0, 10.0, 20.0)))


class SoakActors:
    """The tasks of one run on one server; `seed` is that of all draws."""

    def __init__(self, server: SoakServer, record: SoakRecord, pace: SoakPace, seed: int) -> None:
        self.server, self.record, self.pace, self.seed = server, record, pace, seed

    async def run(self) -> None:
        """Returns when the time is over and every request has its fate."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(self.pace.clients):
                tasks.create_task(self.send_load(Random(self.seed + number)))
            tasks.create_task(self.send_canaries())
            tasks.create_task(self.load_and_unload(Random(self.seed - 1)))
            tasks.create_task(self.read_page_data())
            tasks.create_task(self.take_samples())
            tasks.create_task(self.inject_faults())

    async def send(self, request: SentRequest, allowed: Iterable[str] = ()) -> Outcome:
        outcome = await send(self.server.running.port, request, self.record.now)
        return self.record.add(outcome, allowed)

    async def wait(self, seconds: float) -> bool:
        """Waits, at most until the end; whether the run goes on."""
        await asyncio.sleep(max(0.0, min(seconds, self.record.seconds - self.record.now())))
        return not self.record.over

    # --- load ---

    async def send_load(self, draw: Random) -> None:
        mean = self.pace.clients / self.pace.rate
        while await self.wait(min(10 * mean, draw.expovariate(1 / mean))):
            request, allowed = load.draw_request(draw, MODELS, self.server.keys)
            await self.send(request, allowed)

    async def send_canaries(self) -> None:
        while True:
            for model in MODELS:
                for way in load.CANARIES:
                    await self.send_canary(model, way)
            if not await self.wait(self.pace.canary):
                return

    async def send_canary(self, model: str, way: str) -> None:
        """Only an answer is compared: in a fault there may be none."""
        canary = self.record.canaries.setdefault(f"{model}, {way}", Canary(f"{model}, {way}"))
        outcome = await self.send(load.make_canary(model, way, self.server.keys[0]))
        if outcome.fate != ANSWERED:
            return
        times = self.record.downtimes
        after_kill = bool(times) and times[-1].end is not None
        same = canary.check(outcome.json["choices"], after_kill=after_kill)
        if not same and len(canary.differing) == 1:
            self.record.note(f"canary of {canary.name} differs")

    async def load_and_unload(self, draw: Random) -> None:
        """Models are also loaded by the requests that name them."""
        while await self.wait(self.pace.load * (0.5 + draw.random())):
            model, key = draw.choice(MODELS), self.server.keys[0]
            if draw.random() < LEFT_UNLOADS:
                await self.send(load.make_unload(model, key, leave_in=0.01 * draw.random()))
            for _ in range(UNLOAD_TRIES):
                outcome = await self.send(load.make_unload(model, key), ["model_busy"])
                if outcome.code != "model_busy" or self.record.over:
                    break
                await asyncio.sleep(POLL * draw.random())
            if draw.random() < 0.5:
                await self.send(load.make_load(model, key))

    async def read_page_data(self) -> None:
        for model in cycle(MODELS):
            for request in load.make_page_requests(model, self.server.keys[1]):
                await self.send(request, ["model_not_loaded"])
            if not await self.wait(1.0):
                return

    # --- samples ---

    async def take_samples(self) -> None:
        while True:
            self.record.samples.append(await self.take_sample())
            if not await self.wait(self.pace.sample):
                return

    async def take_sample(self) -> dict[str, Any]:
        request = SentRequest("sample", "GET", "/metrics", None, self.server.keys[0])
        page = (await self.send(request)).body.decode()
        gauges = {name: sum_metric(page, metric) for name, metric in GAUGES.items()}
        answered = self.record.count(ANSWERED, CLIENTS)
        return {
            "time": round(self.record.now(), 2), "answered": answered, **gauges,
            "loaded": await self.list_loaded(), **read_processes(self.server),
        }  # fmt: skip

    async def list_loaded(self) -> list[str]:
        """Models that the engine process has."""
        request = SentRequest("sample", "GET", "/api/ps", None, self.server.keys[0])
        answer = await self.send(request, ("engine_down",))
        found = answer.json.get("models", ()) if answer.fate == ANSWERED else ()
        return sorted(one["name"] for one in found)

    # --- faults ---

    async def inject_faults(self) -> None:
        await self.wait(DISK_AT * self.record.seconds - self.record.now())
        if self.server.has_disk:
            self.record.note("disk full")
            await asyncio.to_thread(fill_disk, self.server)
            await self.wait(min(FULL, self.record.seconds / 10))
            empty_disk(self.server)
            self.record.note("disk has room")
        await self.wait(KILL_AT * self.record.seconds - self.record.now())
        await self.kill_engine()

    async def kill_engine(self) -> None:
        """Kills the engine, and waits until the server is healthy again."""
        engine = self.server.find_engine()
        assert engine is not None, "no engine before it was killed"
        down = Downtime(self.record.now())
        self.record.downtimes.append(down)
        self.record.note("engine killed")
        os.kill(engine, signal.SIGKILL)
        health = SentRequest("health", "GET", "/health")
        while True:
            another = self.server.find_engine() not in (None, engine)
            if (await self.send(health)).fate == ANSWERED and another:
                break
            if self.record.over:
                return
            await asyncio.sleep(POLL)
        down.end = self.record.now()
        self.record.note("engine back")


async def wait_until_idle(server: SoakServer, record: SoakRecord, seconds: float = 30.0) -> bool:
    """Whether no request holds a block any more, some time after the last one."""
    end = record.now() + seconds
    while record.now() < end:
        busy = 0.0
        for model in MODELS:
            request = SentRequest("at the end", "GET", f"/debug/kv?model={model}", None,
                                  server.keys[0])  # fmt: skip
            outcome = record.add(
                await send(server.running.port, request, record.now), ["model_not_loaded"]
            )
            if outcome.fate == ANSWERED:
                busy += len(outcome.json["sequences"])
        if not busy:
            return True
        await asyncio.sleep(POLL)
    return False
