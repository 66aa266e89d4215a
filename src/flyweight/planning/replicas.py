"""Replicas of a model in virtual time, behind the router: a trace of requests on the engine's own
scheduler and prefix cache, with a cost model of steps.

A request is routed when it arrives.  A replica begins a step when the one before has ended and it
has requests.  Nothing is computed: answers are of one token over and over, so that no prompt of a
trace goes on from blocks of an answer.

Invariant: the same requests, costs and policy give the same figures; only `decisions` are measured.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import groupby
from operator import attrgetter

from flyweight.bench.serving.traces import BLOCK, TraceRequest
from flyweight.config import whole
from flyweight.errors import ConfigError
from flyweight.planning.queueing import GREEDY, MADE, Cost, ServerShape, VirtualEngine
from flyweight.routing.keys import RoutingKeys
from flyweight.routing.policies import RoutingPolicy
from flyweight.routing.router import Router
from flyweight.types import Event, Request

OWN = max(MADE.tokens) + 1  # the token of hash 0: no answer has it


@dataclass(frozen=True, slots=True)
class ReplicaRequest:
    """A request that arrives `at` so many seconds."""

    at: float
    tokens: tuple[int, ...]
    output: int
    salt: str = ""


@dataclass(frozen=True, slots=True)
class TraceScale:
    """A trace in small: lengths are divided by `factor`, which divides a hash's 512 tokens, and
    times by `speed`.
    """

    factor: int = 16
    speed: float = 1.0

    def __post_init__(self) -> None:
        valid = [n for n in range(1, BLOCK + 1) if BLOCK % n == 0]
        if self.factor not in valid:
            near = min(valid, key=lambda n: abs(n - self.factor))
            raise ConfigError(
                f"does not divide the {BLOCK} tokens of a hash", "factor", value=self.factor,
                hint=f"nearest valid: {near}",
            )  # fmt: skip

    def make_requests(self, trace: Iterable[TraceRequest]) -> list[ReplicaRequest]:
        """All tokens of a block are its hash; what has no hash is not shared."""
        found, size = list[ReplicaRequest](), BLOCK // self.factor
        for number, (at, one) in enumerate(spread_arrivals(trace)):
            length = max(1, one.input // self.factor)
            tokens = [OWN + block for block in one.blocks for _ in range(size)][:length]
            tokens += [-1 - number] * (length - len(tokens))
            output = max(1, one.output // self.factor)
            found.append(ReplicaRequest(at / self.speed, tuple(tokens), output))
        return found


def spread_arrivals(trace: Iterable[TraceRequest]) -> list[tuple[float, TraceRequest]]:
    """Requests of the same time, evenly over the time up to the next ones; the last ones over as
    much as those before.  Traces round their times, which would make bursts.
    """
    groups = [list(group) for _, group in groupby(trace, key=attrgetter("at"))]
    found, gap = list[tuple[float, TraceRequest]](), 0.0
    for i, group in enumerate(groups):
        begin = group[0].at
        gap = groups[i + 1][0].at - begin if i + 1 < len(groups) else gap
        found += [(begin + gap * j / len(group), one) for j, one in enumerate(group)]
    return found


@dataclass(frozen=True, slots=True)
class RoutedTimes:
    """What became of the requests, in order: seconds to the first token and to the last, prompt
    tokens, those found in the cache, those that the router `expected` there, and the replica.
    `busy` are seconds in steps of each replica, of `seconds` in all; `decisions` those of the wall
    clock that each choice took.
    """

    ttft: tuple[float, ...]
    e2el: tuple[float, ...]
    prompts: tuple[int, ...]
    cached: tuple[int, ...]
    expected: tuple[int, ...]
    placed: tuple[int, ...]
    busy: tuple[float, ...]
    seconds: float
    decisions: tuple[float, ...] = field(compare=False)

    @property
    def cached_share(self) -> float:
        """Of all prompt tokens."""
        return sum(self.cached) / sum(self.prompts)

    @property
    def expected_share(self) -> float:
        """Of all prompt tokens, those that the router expected to be cached."""
        return sum(self.expected) / sum(self.prompts)

    @property
    def busiest_share(self) -> float:
        """Of the seconds in steps, those of the busiest replica."""
        return max(self.busy) / sum(self.busy)

    @property
    def utilization(self) -> float:
        """The share of the time that a replica is in a step, on average."""
        return sum(self.busy) / len(self.busy) / self.seconds


class ReplicaSimulator:
    """So many replicas of one shape."""

    def __init__(self, server: ServerShape, cost: Cost, replicas: int) -> None:
        whole("replicas", replicas, 1)
        self.server, self.cost, self.replicas = server, cost, replicas

    def run(self, requests: Sequence[ReplicaRequest], policy: RoutingPolicy) -> RoutedTimes:
        """All requests, which are in the order of their arrivals."""
        engines = [VirtualEngine(self.server, self.cost) for _ in range(self.replicas)]
        return ReplicaRun(requests, policy, engines).run()


class ReplicaRun:
    """One run: `_turns` are the times at which replicas end a step, or may begin one."""

    def __init__(
        self,
        requests: Sequence[ReplicaRequest],
        policy: RoutingPolicy,
        engines: Sequence[VirtualEngine],
    ) -> None:
        limits = engines[0].scheduler.limits
        self.requests, self.engines = requests, engines
        self.router = Router(policy, limits.block_size)
        for i in range(len(engines)):
            self.router.add_replica(str(i), limits.blocks)
        self.keys = RoutingKeys("", b"", limits.block_size)
        self._turns: list[tuple[float, int]] = []
        self._awake = [False] * len(engines)  # has a turn
        self.busy = [0.0] * len(engines)
        self.placed: list[int] = []
        self.expected: list[int] = []
        self.decisions: list[float] = []
        self.first: dict[int, float] = {}
        self.last: dict[int, float] = {}
        self.cached: dict[int, int] = {}

    def run(self) -> RoutedTimes:
        """Until all have finished.  An arrival comes before what replicas do at the same time."""
        for number, one in enumerate(self.requests):
            while self._turns and self._turns[0][0] < one.at:
                self._take_turn()
            self._route(number, one)
        while self._turns:
            self._take_turn()
        return self._summarize()

    def _route(self, number: int, one: ReplicaRequest) -> None:
        chain = self.keys.make_keys(one.tokens, one.salt)
        start = time.perf_counter()
        route = self.router.begin(str(number), chain, len(one.tokens))
        self.decisions.append(time.perf_counter() - start)
        assert route is not None, "replicas stay"
        place = route.replica.number
        self.placed.append(place)
        self.expected.append(route.cached * self.router.block_size)
        self.engines[place].scheduler.add(
            Request(str(number), one.tokens, GREEDY, max_tokens=one.output, salt=one.salt)
        )
        if not self._awake[place]:
            self._awake[place] = True
            heappush(self._turns, (one.at, place))

    def _take_turn(self) -> None:
        now, place = heappop(self._turns)
        engine = self.engines[place]
        if engine.plan is not None:
            for event in engine.end_step(now):
                self._record(event, now)
        self._awake[place] = engine.scheduler.busy
        if engine.scheduler.busy:
            ends = engine.begin_step(now)
            self.busy[place] += ends - now
            heappush(self._turns, (ends, place))

    def _record(self, event: Event, now: float) -> None:
        number = int(event.id)
        self.first.setdefault(number, now)
        self.cached.setdefault(number, event.cached)
        if event.finish:
            self.last[number] = now
            self.router.finish(event.id)

    def _summarize(self) -> RoutedTimes:
        arrivals = [one.at for one in self.requests]
        return RoutedTimes(
            ttft=tuple(self.first[i] - at for i, at in enumerate(arrivals)),
            e2el=tuple(self.last[i] - at for i, at in enumerate(arrivals)),
            prompts=tuple(len(one.tokens) for one in self.requests),
            cached=tuple(self.cached[i] for i in range(len(arrivals))),
            expected=tuple(self.expected),
            placed=tuple(self.placed),
            busy=tuple(self.busy),
            seconds=max(self.last.values()) - arrivals[0],
            decisions=tuple(self.decisions),
        )
