"""What an exchange between two ranks of this machine takes, over the collectives that models use.

    python -m flyweight.bench.rank_link FOLDER

is the second of the two processes, which `measure_link` starts.

Invariant: both processes make the same calls, and the second ends with its standard input.  What is
measured includes the sum of the arrays.  torch is imported when something is measured.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Never

import numpy as np

from flyweight.errors import ConfigError
from flyweight.parallel.processes import end_processes
from flyweight.parallel.sharding import import_collectives
from flyweight.wire import F32

SMALL, LARGE = 64, 512 * 1024  # floats of an array: a latency, and a bandwidth
COUNTS = {SMALL: 200, LARGE: 20}  # exchanges of each that are timed
FLOAT = 4
LEAST = 1e-9  # seconds that a clock may not resolve


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """An exchange takes `latency` seconds, and one for each `rate` bytes."""

    latency: float
    rate: float

    @classmethod
    def of(cls, small: float, large: float) -> "LinkSpeed":
        """From the seconds of both sizes."""
        more = max(large - small, LEAST)
        return cls(small, FLOAT * (LARGE - SMALL) / more)

    def compute_seconds(self, nbytes: float) -> float:
        return self.latency + nbytes / self.rate


ASSUMED = LinkSpeed(100e-6, 1e9)  # about what gloo takes on loopback, where it is not measured


def measure_link() -> LinkSpeed:
    """About a second after torch is imported.  Raises `ConfigError` where it is missing."""
    import_collectives()
    with TemporaryDirectory(prefix="flyweight-link-") as folder:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "flyweight.bench.rank_link", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert child.stdout is not None
            if not child.stdout.readline():
                raise ConfigError("torch is installed, but a process cannot import it")
            return time_reduces(_connect(Path(folder), 0))
        finally:
            end_processes([child])


def time_reduces(reduce: Callable[[F32], F32]) -> LinkSpeed:
    """Sums over both ranks, of small and of large arrays."""
    return LinkSpeed.of(time_reduce(reduce, SMALL), time_reduce(reduce, LARGE))


def time_reduce(reduce: Callable[[F32], F32], size: int) -> float:
    """The median of some calls, after one that is not counted."""
    x = np.ones(size, np.float32)
    reduce(x)
    seconds = []
    for _ in range(COUNTS[size]):
        began = time.perf_counter()
        reduce(x)
        seconds.append(time.perf_counter() - began)
    return median(seconds)


def _connect(folder: Path, rank: int) -> Callable[[F32], F32]:
    from flyweight.parallel.comm import RankGroup, open_file_store

    return RankGroup(open_file_store(folder / "ranks", 2), rank, 2).all_reduce


def end_with_input() -> Never:
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> None:
    import_collectives()
    Thread(target=end_with_input, daemon=True).start()
    print("ready", flush=True)  # the other process waits until torch is imported here
    time_reduces(_connect(Path(sys.argv[1]), 1))
    os._exit(0)  # the thread reads on


if __name__ == "__main__":
    main()
