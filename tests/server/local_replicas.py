"""Runs `flyweight serve --replicas` with a cluster in the place of Ray: programs of replicas run in
the server's own process, and their engines are processes as always.  Frames are all that passes.

The variable `SECOND_REPLICA` has what the second one reports in place of its own, as JSON: its
version, or facts of its engine.
"""

import asyncio
import json
import os
import sys
import types
from collections.abc import AsyncIterator, Callable

import msgspec

from flyweight.cli.main import main
from flyweight.parallel.cluster import GONE, ReplicaPlan, ReplicaProgram
from flyweight.server.lifecycle import start
from flyweight.server.replicas.reports import ReplicaReport

CHANGES = "SECOND_REPLICA"


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
        changes = json.loads(os.environ.get(CHANGES, "{}"))
        return {
            name: change_report(program.report(), changes if name == "r1" else {})
            for name, program in self.programs.items()
        }

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


def change_report(data: bytes, changes: dict[str, str]) -> bytes:
    """A report with another version or other facts."""
    if not changes:
        return data
    report = msgspec.msgpack.decode(data, type=ReplicaReport)
    facts = {name: value for name, value in changes.items() if name != "version"}
    assert report.facts is not None, "it is listed once its engine is loaded"
    report.facts = {**report.facts, **facts}
    report.version = changes.get("version", report.version)
    return msgspec.msgpack.encode(report)


if __name__ == "__main__":
    start._is_installed = lambda module: True
    module = types.ModuleType("flyweight.parallel.ray_serve")
    module.RayCluster = LocalCluster  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    sys.exit(main(["serve", *sys.argv[1:]]))
