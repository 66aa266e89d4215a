"""What does not grow with replicas: the API server's core, the router's memory and time, series
of metrics, what `serve` allows, caches.

Each limit is worked out from what is measured here, by lines through it: bytes of a key in the
router's index, seconds of a choice among few and among many replicas.  What a streamed token and a
step of a replica take are constants, which were measured with a server.  What is allowed is a
convention, and the table shows it.

Invariant: bytes and series are the same on every machine; seconds are measured in processor time.
"""

import random
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf
from statistics import fmean, quantiles
from typing import NamedTuple

from flyweight.config import Limits
from flyweight.planning.replica_points import ReplicaPoint
from flyweight.planning.units import write_binary, write_seconds
from flyweight.routing.keys import RoutingKeys
from flyweight.routing.policies import make_policy
from flyweight.routing.prefix_index import PrefixIndex
from flyweight.routing.router import Router
from flyweight.server.observability.counters import ServerCounters
from flyweight.server.observability.metric_names import COUNTERS, DRAFTS, HISTOGRAMS, OURS
from flyweight.validation.replicas import MOST_REPLICAS

ROUTER_BYTES = 8 << 30
DECISION = 1e-3  # seconds
MOST_SERIES = 10_000_000
REPLICA_SERIES = 6  # of one replica: `server.observability.replica_metrics`
# Seconds of the API server for a streamed token, all of it: `bench/front_end.py` on a Xeon, with
# one engine and 64 streams (docs/log/server.md).
STREAMED = 27.8e-6
# Seconds of its event loop to receive a step of a replica from Ray, and each of its tokens:
# `bench/ray_hop.py --streams 1 --step 1`, and `--streams 64`, on a Xeon with other work.
ITEM = 189e-6
RECEIVED = 12.2e-6
FEW, MANY = 16, 256
PROMPTS, TURNS = 100, 10  # prompts that are routed, and how often: less than makes blocks popular
KEY, SAMPLE = 32, 4096  # bytes of a key; keys that are measured


class ReplicaLine(NamedTuple):
    """An amount, and `each` more for each replica."""

    fixed: float
    each: float

    @classmethod
    def through(cls, few: float, many: float) -> "ReplicaLine":
        """The line through the amounts among `FEW` and among `MANY`."""
        each = max(0.0, (many - few) / (MANY - FEW))
        return cls(max(0.0, few - each * FEW), each)

    def compute(self, replicas: int) -> float:
        return self.fixed + self.each * replicas

    def count_replicas(self, allowed: float) -> int | None:
        """As many as that amount allows; None: any number."""
        if allowed < self.fixed:
            return 0
        return floor((allowed - self.fixed) / self.each) if self.each else None


class LowerLine(NamedTuple):
    """The less of two amounts."""

    one: ReplicaLine
    other: ReplicaLine

    def compute(self, replicas: int) -> float:
        return min(line.compute(replicas) for line in self)

    def count_replicas(self, allowed: float) -> int | None:
        found = [line.count_replicas(allowed) for line in self]
        return None if None in found else max(one for one in found if one is not None)


class RouterCost(NamedTuple):
    """`key` bytes of a key in an index; seconds of a choice with the keys of its prompt, the mean
    and the 99th percentile.
    """

    key: float
    mean: ReplicaLine
    p99: ReplicaLine


class FrontLoad(NamedTuple):
    """Requests and tokens of answers, a second, and `steps` of each replica, at most."""

    requests: float
    tokens: float
    steps: float

    @property
    def streaming(self) -> LowerLine:
        """The part of a core that receives the tokens and passes them on.  A step brings those of
        all streams of a replica at once; with many replicas, each token may come alone.
        """
        each = self.tokens * (STREAMED + RECEIVED)
        return LowerLine(
            ReplicaLine(each, ITEM * self.steps), ReplicaLine(each + ITEM * self.tokens, 0.0)
        )


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
    routing: str, blocks: int, lengths: Sequence[int], block_size: int
) -> RouterCost:
    """For prompts of such lengths, and caches of so many blocks."""
    prompts = make_prompts(lengths)
    few, many = (time_choices(routing, n, blocks, prompts, block_size) for n in (FEW, MANY))
    tails = (quantiles(found, n=100, method="inclusive")[98] for found in (few, many))
    return RouterCost(
        measure_key(), ReplicaLine.through(fmean(few), fmean(many)), ReplicaLine.through(*tails)
    )


def make_prompts(lengths: Sequence[int]) -> list[bytes]:
    """Random tokens, as requests have them, of lengths that are spread evenly over those given."""
    held, draw = sorted(lengths), random.Random(0)
    found = [draw.randbytes(4 * held[(2 * i + 1) * len(held) // (2 * PROMPTS)])
             for i in range(PROMPTS)]  # fmt: skip
    draw.shuffle(found)
    return found


def measure_key() -> float:
    """Bytes of a key in an index of a replica."""
    index, draw = PrefixIndex(SAMPLE), random.Random(0)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    index.use([draw.randbytes(KEY) for _ in range(SAMPLE)])
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / SAMPLE


def time_choices(
    routing: str, replicas: int, blocks: int, prompts: Sequence[bytes], block_size: int
) -> list[float]:
    """Processor seconds of the keys, `begin` and `finish` of each prompt that has come before, as
    `server.replicas.replica_set` has them on the API server's event loop.
    """
    router, keys = Router(make_policy(routing), block_size), RoutingKeys("", b"key", block_size)
    for number in range(replicas):
        router.add_replica(str(number), blocks)
    found = []
    for number in range(TURNS * len(prompts)):
        prompt = prompts[number % len(prompts)]
        start = time.thread_time()
        chain = keys.make_keys(memoryview(prompt).cast("i").tolist()) if routing == "prefix" else []
        router.begin(str(number), chain, len(prompt) // 4)
        router.finish(str(number))
        found.append(time.thread_time() - start)
    return found[len(prompts) :]


def count_series(longest: int) -> int:
    """Series of metrics of a server of one model with so long a context: histograms and counters,
    which are most of them.
    """
    counts = ServerCounters(longest)
    histograms = sum(len(of(counts).counts) + 2 for _, _, of in HISTOGRAMS)  # sum and count
    return histograms + len(COUNTERS) + len(DRAFTS) + len(OURS)


def list_limits(
    router: RouterCost, limits: Limits, load: FrontLoad, recommended: int, largest: int
) -> list[ScaleLimit]:
    """Limits that more replicas reach, for such a load."""
    index, series = router.key * limits.blocks, count_series(limits.max_model_len)
    mean = router.mean
    core = LowerLine(
        *(ReplicaLine(line.fixed + load.requests * mean.fixed,
                      line.each + load.requests * mean.each) for line in load.streaming)
    )  # fmt: skip

    def make(
        name: str, line: ReplicaLine | LowerLine, allowed: float, write: Callable[[float], str]
    ) -> ScaleLimit:
        now, most = line.compute(recommended), line.compute(largest)
        return ScaleLimit(name, now, most, allowed, line.count_replicas(allowed), write)

    return [
        make("API server's core", core, 1.0, write_part),
        make("router's choice, p99", router.p99, DECISION, write_seconds),
        make("router's index", ReplicaLine(0.0, index), ROUTER_BYTES, write_binary),
        make("series of metrics", ReplicaLine(series, REPLICA_SERIES), MOST_SERIES, write_number),
        make("serve --replicas", ReplicaLine(0.0, 1.0), MOST_REPLICAS, write_number),
    ]


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
    return f"{100 * share:.3g} %" if share < 10 else f"{100 * share:,.0f} %"


def write_number(count: float) -> str:
    return f"{ceil(count):,}"
