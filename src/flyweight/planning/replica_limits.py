"""What does not grow with replicas: the router's memory and time, series of metrics, caches.

Each limit is worked out from what is measured here, by lines through it: bytes of a key in the
router's index, seconds of a choice among few and among many replicas.  What is allowed is a
convention, and the table shows it.

Invariant: bytes and series are the same on every machine; seconds are measured in processor time.
"""

import random
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf
from statistics import median

from flyweight.config import Limits
from flyweight.planning.replica_points import ReplicaPoint
from flyweight.planning.units import write_binary, write_seconds
from flyweight.routing.policies import RoutingPolicy
from flyweight.routing.prefix_index import PrefixIndex
from flyweight.routing.router import Router
from flyweight.server.observability.counters import ServerCounters
from flyweight.server.observability.metric_names import COUNTERS, DRAFTS, HISTOGRAMS, OURS

ROUTER_BYTES = 8 << 30
DECISION = 1e-3  # seconds
MOST_SERIES = 10_000_000
FEW, MANY, CHOICES = 16, 128, 200
KEY, SAMPLE = 32, 4096  # bytes of a key; keys that are measured


@dataclass(frozen=True, slots=True)
class RouterCost:
    """`key` bytes of a key in an index; a choice takes `choice` seconds, and `each` more for each
    replica.
    """

    key: float
    choice: float
    each: float

    def compute_seconds(self, replicas: int) -> float:
        return self.choice + self.each * replicas


@dataclass(frozen=True, slots=True)
class ScaleLimit:
    """`now` and `most` are amounts with the recommended and with the largest number of replicas;
    beyond `replicas` the amount is above `allowed`.  None: with no number.
    """

    name: str
    now: float
    most: float
    allowed: float
    replicas: int | None
    write: Callable[[float], str]


def measure_router(
    make_policy: Callable[[], RoutingPolicy], blocks: int, chain: int, block_size: int
) -> RouterCost:
    """For prompts of `chain` blocks."""
    few, many = (time_choice(make_policy(), n, blocks, chain, block_size) for n in (FEW, MANY))
    each = max(0.0, (many - few) / (MANY - FEW))
    return RouterCost(measure_key(), max(0.0, few - each * FEW), each)


def measure_key() -> float:
    """Bytes of a key in an index of a replica."""
    index, draw = PrefixIndex(SAMPLE), random.Random(0)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    index.use([draw.randbytes(KEY) for _ in range(SAMPLE)])
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / SAMPLE


def time_choice(
    policy: RoutingPolicy, replicas: int, blocks: int, chain: int, block_size: int
) -> float:
    """Processor seconds of `begin` and `finish`, the median, for prompts that have come before."""
    router, draw = Router(policy, block_size), random.Random(0)
    for number in range(replicas):
        router.add_replica(str(number), blocks)
    talks = [[draw.randbytes(KEY) for _ in range(chain)] for _ in range(32)]
    found = []
    for number in range(CHOICES):
        keys = talks[number % len(talks)]
        start = time.thread_time()
        router.begin(str(number), keys, chain * block_size + 1)
        router.finish(str(number))
        found.append(time.thread_time() - start)
    return median(found[len(talks) :])


def count_series(longest: int) -> int:
    """Series of metrics of a server of one model with so long a context: histograms and counters,
    which are most of them.
    """
    counts = ServerCounters(longest)
    histograms = sum(len(of(counts).counts) + 2 for _, _, of in HISTOGRAMS)  # sum and count
    return histograms + len(COUNTERS) + len(DRAFTS) + len(OURS)


def list_limits(
    router: RouterCost, limits: Limits, rate: float, recommended: int, largest: int
) -> list[ScaleLimit]:
    """Limits that more replicas reach, for so many requests a second."""
    index, series = router.key * limits.blocks, count_series(limits.max_model_len)
    busy = 1 / rate
    free = inf if not router.each else 1 / router.each
    # fmt: off
    return [
        ScaleLimit("router's index", index * recommended, index * largest, ROUTER_BYTES,
                   floor(ROUTER_BYTES / index), write_binary),
        ScaleLimit("router's choice", router.compute_seconds(recommended),
                   router.compute_seconds(largest), DECISION,
                   count_replicas((DECISION - router.choice) * free), write_seconds),
        ScaleLimit("router's core", rate * router.compute_seconds(recommended),
                   rate * router.compute_seconds(largest), 1.0,
                   count_replicas((busy - router.choice) * free), write_part),
        ScaleLimit("series of metrics", series * recommended, series * largest, MOST_SERIES,
                   MOST_SERIES // series, write_number),
    ]
    # fmt: on


def count_replicas(number: float) -> int | None:
    return None if number == inf else max(0, floor(number))


def find_calm(
    points: Sequence[ReplicaPoint], capacity: int, returns: float | None
) -> tuple[float, int | None]:
    """Seconds in which the last point's cache of `capacity` tokens is written once, and the
    smallest number of replicas whose caches last as long as half of the conversations pause.
    """
    lasts = [capacity / one.written if one.written else inf for one in points]
    calm = (one.replicas for one, last in zip(points, lasts, strict=True)
            if returns is not None and last >= returns)  # fmt: skip
    return lasts[-1], next(calm, None)


def write_part(share: float) -> str:
    return f"{100 * share:.3g} %"


def write_number(count: float) -> str:
    return f"{ceil(count):,}"
