"""What Ray adds to a request of `flyweight serve --replicas`: a message there and back, and tokens.

    python bench/ray_hop.py [--calls 500] [--streams 16] [--step 20] [--seconds 5] [--json FILE]

Starts the cluster of this machine that the server would start, with one replica whose program
computes nothing, and calls it as the server does.  Timed are

- `first frame`: from a request to the first frame of its answer, one at a time;
- `answer`: from a question to its answer, one at a time;
- `token`: from a frame that the replica sends to its arrival here, with streams that all have one
  at each step, every 20 ms; and this process's time for each, of all threads and of the event
  loop's.

Requests have the size of a prompt of 1,024 tokens, frames that of a step with one token.  Needs the
extra `distributed`.
"""

import argparse
import asyncio
import json
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import quantiles
from typing import Any

from flyweight.parallel.cluster import END, ReplicaPlan
from flyweight.parallel.ray_serve import RayCluster

ORDER = "<Id"  # of a request: frames to answer with, and seconds between them
SENT = "<d"  # of a frame: when it was sent, of the clock that all processes share
REQUEST, FRAME = 4096 + 200, 250  # bytes
WAIT = 120.0  # seconds for the replica to start


class EchoProgram:
    """See `ReplicaProgram`: answers with as many frames as a request says.  Ray sends this class to
    the replica with what it uses of this file.
    """

    healthy = True

    def __init__(self, setup: bytes, patience: float) -> None:
        self._step: asyncio.Task[None] | None = None

    async def start(self) -> None:
        pass

    async def compute(self, frame: bytes) -> AsyncIterator[bytes]:
        count, gap = struct.unpack_from(ORDER, frame)
        for _ in range(count):
            if gap:
                await self._finish_step(gap)
            yield struct.pack(SENT, time.monotonic()).ljust(FRAME, b"\0")
        yield END

    async def _finish_step(self, gap: float) -> None:
        if self._step is None or self._step.done():
            self._step = asyncio.get_running_loop().create_task(asyncio.sleep(gap))
        await asyncio.shield(self._step)

    async def tell(self, frame: bytes) -> bytes:
        return frame

    def report(self) -> bytes:
        return b"ready"

    async def close(self) -> None:
        pass


def order(count: int, gap: float = 0.0) -> bytes:
    return struct.pack(ORDER, count, gap).ljust(REQUEST, b"\0")


async def wait_for_replica(cluster: RayCluster) -> str:
    """Its name, once calls reach it."""
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        for name in await cluster.list():
            if await cluster.tell(name, b"frame") == b"frame":
                return name
        await asyncio.sleep(0.1)
    raise SystemExit(f"no replica was ready in {WAIT:g} s")


async def time_first_frames(cluster: RayCluster, name: str, calls: int) -> list[float]:
    found = []
    for _ in range(calls):
        start = time.monotonic()
        answer = cluster.compute(name, order(1))
        await anext(answer)
        found.append(time.monotonic() - start)
        assert [data async for data in answer] == [END]
    return found


async def time_answers(cluster: RayCluster, name: str, calls: int) -> list[float]:
    found = []
    for _ in range(calls):
        start = time.monotonic()
        await cluster.tell(name, order(0))
        found.append(time.monotonic() - start)
    return found


async def time_tokens(
    cluster: RayCluster, name: str, streams: int, gap: float, seconds: float
) -> tuple[list[float], dict[str, float]]:
    """One way, and processor time for each: microseconds of all threads, and of this one.  A frame
    of each stream comes every `gap` seconds.
    """
    found = []

    async def read() -> None:
        async for data in cluster.compute(name, order(max(1, round(seconds / gap)), gap)):
            if data != END:
                (sent,) = struct.unpack_from(SENT, data)
                found.append(time.monotonic() - sent)

    clocks = {"process": time.process_time, "event loop": time.thread_time}
    before = {what: clock() for what, clock in clocks.items()}
    await asyncio.gather(*(read() for _ in range(streams)))
    return found, {
        what: round(1e6 * (clock() - before[what]) / len(found), 1)
        for what, clock in clocks.items()
    }


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    cluster = RayCluster(EchoProgram, ReplicaPlan(1, 1, cores=1))
    try:
        await cluster.start(b"")
        name = await wait_for_replica(cluster)
        await time_first_frames(cluster, name, 20)  # warm-up
        times = {
            "first frame": await time_first_frames(cluster, name, options.calls),
            "answer": await time_answers(cluster, name, options.calls),
        }
        times["token"], costs = await time_tokens(
            cluster, name, options.streams, options.step / 1e3, options.seconds
        )
    finally:
        await cluster.close()
    rows = {what: summarize(found) for what, found in times.items()}
    return {"milliseconds": rows, "us_per_token": costs}


def summarize(seconds: list[float]) -> dict[str, float]:
    cuts = quantiles([1e3 * one for one in seconds], n=100, method="inclusive")
    return {"p50": round(cuts[49], 3), "p99": round(cuts[98], 3), "count": len(seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--step", type=float, default=20, help="milliseconds of a step")
    parser.add_argument("--seconds", type=float, default=5, help="that the streams last")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if min(options.calls, options.streams * options.seconds * 1e3 / options.step) < 2:
        parser.error("at least two of each are timed")
    found = asyncio.run(measure(options))
    print(f"{'milliseconds':14}{'p50':>10}{'p99':>10}{'times':>10}")
    for what, row in found["milliseconds"].items():
        print(f"{what:14}{row['p50']:>10}{row['p99']:>10}{row['count']:>10}")
    for what, cost in found["us_per_token"].items():
        print(f"{cost} us of the server's {what} for each token")
    if options.json:
        options.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
