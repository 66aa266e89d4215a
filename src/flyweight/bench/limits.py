"""What the machine can do at this moment, by native probes: bytes read, operations on int8, bf16
and float32.

Invariant: a probe uses as many threads as the engine does and a memory as large as its weights, up
to a bound.  The vector units' peaks are the limits; where the engine runs on a tile unit (amx), its
peaks are sampled too.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass

import numpy as np

from flyweight import _native
from flyweight.ops.cpu import available_isas
from flyweight.plan.roofline import MachineLimits

COLUMNS = 1024  # floats of a row of what is read
LEAST_BYTES, MOST_BYTES = 256 << 20, 1 << 30  # the first is beyond most caches
ROUNDS = 100_000  # of a compute probe: a few milliseconds
REPEATS = 3
TILE_UNITS = {"amx": "avx512"}  # target with a matrix unit: the vector target next to it


@dataclass(frozen=True, slots=True)
class LimitSample:
    """Limits of the vector units, and those with the tile unit in their place where there is
    one.
    """

    vector: MachineLimits
    tile: MachineLimits | None = None

    def average(self, other: "LimitSample") -> "LimitSample":
        """The middle of two samples, taken before and after."""
        tile = None
        if self.tile is not None and other.tile is not None:
            tile = _average(self.tile, other.tile)
        return LimitSample(_average(self.vector, other.vector), tile)


class LimitSampler:
    """Samples limits on demand."""

    def __init__(self, threads: int, isa: str, nbytes: int) -> None:
        vector = TILE_UNITS.get(isa, isa)
        self.pool = _native.Pool(threads, vector if vector in available_isas() else isa)
        self.tile = _native.Pool(threads, isa) if isa in TILE_UNITS else None
        size = min(max(nbytes, LEAST_BYTES), MOST_BYTES)
        self.memory = _fill_memory(self.pool, size // (4 * COLUMNS))

    def sample(self) -> LimitSample:
        """About a tenth of a second, and what reading the memory takes."""
        read = _measure_rate(lambda: _native.probe_read(self.pool, self.memory))
        tile = _probe_peaks(self.tile, read) if self.tile else None
        return LimitSample(_probe_peaks(self.pool, read), tile)

    def sample_best(self, count: int) -> MachineLimits:
        """The best of some samples, the tile unit's where there is one: other processes only lower
        them.
        """
        found = [self.sample() for _ in range(count)]
        return find_best([one.tile or one.vector for one in found])


def find_best(samples: Sequence[MachineLimits]) -> MachineLimits:
    """The highest rate of each kind."""
    return MachineLimits(*map(max, zip(*map(astuple, samples), strict=True)))


def _fill_memory(pool: _native.Pool, rows: int) -> _native.Tiles:
    """Memory that has been written: untouched pages would all be one page of zeros."""
    rows = rows // COLUMNS * COLUMNS
    memory = _native.Tiles(_native.Arena(), "f32", rows, COLUMNS)
    flat = np.ones(COLUMNS * COLUMNS, np.float32).view(np.uint8)
    for row in range(0, rows, COLUMNS):
        _native.pack_rows(pool, memory, row, COLUMNS, flat)
    return memory


def _probe_peaks(pool: _native.Pool, read: float) -> MachineLimits:
    f32 = _measure_rate(lambda: _native.probe_fma(pool, ROUNDS))
    int8 = _measure_rate(lambda: _native.probe_dot(pool, ROUNDS))
    bf16 = _measure_rate(lambda: _native.probe_bf16(pool, ROUNDS))
    return MachineLimits(read, int8, bf16, f32)


def _measure_rate(probe: Callable[[], int]) -> float:
    """Median of a few, a second."""
    rates = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        done = probe()
        rates.append(done / (time.perf_counter() - start))
    return statistics.median(rates)


def _average(a: MachineLimits, b: MachineLimits) -> MachineLimits:
    return MachineLimits(
        (a.read + b.read) / 2, (a.int8 + b.int8) / 2, (a.bf16 + b.bf16) / 2, (a.f32 + b.f32) / 2
    )
