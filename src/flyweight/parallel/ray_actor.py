"""What runs in the processes of a Ray cluster: replicas behind Ray Serve, the registry where they
report, and the router that sends a call to the replica which it names.

Invariant: a call names its replica, and another one refuses it.  A replica whose registry is gone,
because the server that made it is, ends its application.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import ray
from ray import serve
from ray.exceptions import ActorDiedError, RayError
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from flyweight.parallel.cluster import END, GONE, ReplicaProgram
from flyweight.parallel.ray_channel import Outlet

BEAT = 0.5  # seconds between two reports
STALE = 10.0  # seconds after the last one at which a replica counts as gone

LOG = logging.getLogger("ray.serve")
MakeProgram = Callable[[bytes, float], ReplicaProgram]


class ReplicaRegistry:
    """What replicas report, by name, and their actors' names."""

    def __init__(self) -> None:
        self._reports: dict[str, tuple[float, bytes]] = {}
        self._actors: dict[str, str] = {}

    def report(self, name: str, actor: str, data: bytes) -> None:
        self._reports[name] = time.monotonic(), data
        self._actors[name] = actor

    def list(self) -> dict[str, bytes]:
        """The replicas that reported lately."""
        oldest = time.monotonic() - STALE
        self._reports = {name: one for name, one in self._reports.items() if one[0] > oldest}
        return {name: data for name, (_, data) in self._reports.items()}

    def find_actor(self, name: str) -> str:
        """The actor of a replica; empty where it has none."""
        return self._actors.get(name, "")

    def forget(self, name: str) -> None:
        self._reports.pop(name, None)


class ReplicaActor:
    """A replica of the application `app`, as a deployment of Ray Serve: the program that `make`
    makes of `setup` and of the seconds after which a silent engine is ended.
    """

    async def __init__(  # type: ignore[misc]
        self, make: MakeProgram, setup: bytes, patience: float, app: str, registry: Any
    ) -> None:
        """Each start replaces the replicas of the one before."""
        self.app, self.registry = app, registry
        self.name = serve.get_replica_context().replica_id.unique_id
        self.actor = ray.get_runtime_context().get_actor_name() or ""
        self.program, self.outlet = make(setup, patience), Outlet()
        self._reporting = asyncio.get_running_loop().create_task(self._report())
        try:
            await self.program.start()
        except Exception:
            with suppress(RayError):
                await self._report_once()  # why it failed
            raise

    async def __del__(self) -> None:
        """Called, and awaited, by Ray Serve where it ends a replica whose requests are finished."""
        self._reporting.cancel()  # its server would count an engine that ends by plan as lost
        await self.program.close()

    async def compute(self, name: str, number: int, frame: bytes) -> bytes:
        """Returns when the request has ended; its frames go over the channel, with its number."""
        if name != self.name:
            return GONE
        await self.outlet.carry(number, self.program.compute(frame))
        return END

    async def stream(self, name: str) -> AsyncIterator[bytes]:
        """The channel, until it is idle."""
        if name != self.name:
            yield GONE
            return
        async for item in self.outlet.stream():
            yield item

    async def tell(self, name: str, frame: bytes) -> bytes:
        return await self.program.tell(frame) if name == self.name else GONE

    async def check_health(self) -> None:
        """Called by Ray Serve, which replaces a replica where this raises."""
        if not self.program.healthy:
            raise RuntimeError("the engine process ended")

    async def _report_once(self) -> None:
        await self.registry.report.remote(self.name, self.actor, self.program.report())

    async def _report(self) -> None:
        """Until the registry is dead.  One that is only unavailable may come back."""
        ended = False
        while not ended:
            try:
                ended = await self._report_or_end()
            except Exception as error:
                LOG.warning("the replica %s could not report: %s", self.name, error)
            await asyncio.sleep(BEAT)

    async def _report_or_end(self) -> bool:
        """Whether the registry is dead; then the application is deleted."""
        try:
            await self._report_once()
        except ActorDiedError:
            await asyncio.to_thread(serve.delete, self.app, _blocking=False)
            return True
        return False


class NamedReplicaRouter(RequestRouter):  # type: ignore[misc]
    """Sends a call to the replica whose name is its first argument; where that is not among those
    that take calls, to any, which refuses it.
    """

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        name = pending_request.args[0] if pending_request is not None else None
        named = [one for one in candidate_replicas if one.replica_id.unique_id == name]
        return [named or list(candidate_replicas)]
