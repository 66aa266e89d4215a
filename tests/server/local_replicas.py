"""Runs `flyweight serve --replicas` with a cluster in the place of Ray: programs of replicas run in
the server's own process, and their engines are processes as always.  Frames are all that passes.
"""

import asyncio
import sys
import types
from collections.abc import AsyncIterator, Callable

from flyweight.cli.main import main
from flyweight.parallel.cluster import GONE, ReplicaPlan, ReplicaProgram
from flyweight.server.lifecycle import start


class LocalCluster:
    """See `Cluster`; replicas are neither replaced nor scaled."""

    def __init__(self, make: Callable[[bytes, float], ReplicaProgram], plan: ReplicaPlan) -> None:
        self.make, self.plan = make, plan
        self.programs: dict[str, ReplicaProgram] = {}

    async def start(self, setup: bytes) -> None:
        for number in range(self.plan.least):
            program = self.programs[f"r{number}"] = self.make(setup, self.plan.engine_patience)
            await program.start()

    async def list(self) -> dict[str, bytes]:
        return {name: program.report() for name, program in self.programs.items()}

    async def compute(self, name: str, frame: bytes) -> AsyncIterator[bytes]:
        if name not in self.programs:
            yield GONE
            return
        async for data in self.programs[name].compute(frame):
            yield data

    async def tell(self, name: str, frame: bytes) -> bytes:
        return await self.programs[name].tell(frame) if name in self.programs else GONE

    async def drop(self, name: str) -> None:
        await self.programs.pop(name).close()

    async def stop(self) -> None:
        programs, self.programs = self.programs, {}
        await asyncio.gather(*(one.close() for one in programs.values()))

    async def close(self) -> None:
        await self.stop()


if __name__ == "__main__":
    start._is_installed = lambda module: True
    module = types.ModuleType("flyweight.parallel.ray_serve")
    module.RayCluster = LocalCluster  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    sys.exit(main(["serve", *sys.argv[1:]]))
