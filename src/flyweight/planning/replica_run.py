"""Replicas of a model in virtual time, behind the router: arrivals, steps, and replicas that fail.

A request is routed when it arrives.  A replica begins a step when the one before has ended and it
has requests.  One that fails loses its cache: requests that have sent no token are routed again,
the others end with an error.  It is back after its restart, with an empty cache.

Invariant: every request that arrived is answered, broken off or refused in the end, and the same
requests, costs and policy give the same figures; only `decision` is measured.  Knows no trace.
"""

import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from flyweight.planning.queueing import GREEDY, Cost, ServerShape, VirtualEngine
from flyweight.routing.keys import RoutingKeys
from flyweight.routing.policies import RoutingPolicy
from flyweight.routing.router import Router
from flyweight.types import Event, Request

TURN, FAILURE, RETURN = 0, 1, 2
REFUSED, BROKEN = "refused", "broken"


@dataclass(frozen=True, slots=True)
class ReplicaRequest:
    """A request that arrives `at` so many seconds."""

    at: float
    tokens: tuple[int, ...]
    output: int
    salt: str = ""


@dataclass(frozen=True, slots=True)
class FailurePlan:
    """Replicas fail at random: `mean` seconds after their start on average, exponentially.  One is
    away for `restart` seconds.
    """

    mean: float = inf
    restart: float = 60.0
    seed: int = 0

    def open_draws(self, replica: int) -> random.Random:
        """The draws of one replica, whatever the number of the others."""
        return random.Random(f"{self.seed} {replica}")


NEVER = FailurePlan()


@dataclass(frozen=True, slots=True)
class QueueBound:
    """What may wait at a replica, as in `serve`: requests, and tokens of their prompts.  A request
    that waits alone may be of any length.
    """

    requests: int
    tokens: int


UNBOUNDED = QueueBound(1 << 62, 1 << 62)


@dataclass(slots=True, eq=False)
class RequestOutcome:
    """What became of a request: times of its first and last token (None: it has none), prompt
    tokens, those found in the cache and those that the router expected there, its replica, and how
    often it was routed again.  `error` is "" for an answer, or why there is none.  `decision` are
    the seconds that the router took.
    """

    at: float
    prompt: int
    output: int
    expected: int = 0
    cached: int = 0
    replica: int = -1
    first: float | None = None
    last: float | None = None
    retries: int = 0
    error: str = ""
    decision: float = 0.0


@dataclass(slots=True, eq=False)
class RunningReplica:
    """One replica: `life` counts its starts, `busy` seconds in `steps`, `ends` when the newest step
    does; it is `awake` while it has a turn to come.
    """

    engine: VirtualEngine
    draws: random.Random
    life: int = 0
    awake: bool = False
    busy: float = 0.0
    steps: int = 0
    ends: float = 0.0


class ReplicaRun:
    """One run over requests, which come in the order of their arrivals."""

    def __init__(
        self,
        shape: tuple[ServerShape, Cost],
        replicas: int,
        policy: RoutingPolicy,
        failures: FailurePlan = NEVER,
        queue: QueueBound = UNBOUNDED,
    ) -> None:
        (self.server, self.cost), self.failures, self.queue = shape, failures, queue
        limits = self.server.limits
        self.router = Router(policy, limits.block_size)
        self.keys = RoutingKeys("", b"", limits.block_size)
        self.replicas = [
            RunningReplica(self._make_engine(), failures.open_draws(i)) for i in range(replicas)
        ]
        self.records: list[RequestOutcome] = []
        self.failed = 0  # replicas, until the last request ended
        self._live: dict[int, ReplicaRequest] = {}
        self._events: list[tuple[float, int, int, int]] = []  # time, replica, kind, life
        for place in range(replicas):
            self._begin_life(place, 0.0)

    @property
    def in_flight(self) -> int:
        """Requests that have arrived, and neither ended nor been refused."""
        return len(self._live)

    def run(self, requests: Iterable[ReplicaRequest]) -> list[RequestOutcome]:
        """Until all have ended.  An arrival comes before what replicas do at the same time."""
        for number, one in enumerate(requests):
            self._advance(one.at)
            self.records.append(RequestOutcome(one.at, len(one.tokens), one.output))
            self._live[number] = one
            self._route(number, one.at)
        self._advance(inf)
        return self.records

    def _make_engine(self) -> VirtualEngine:
        return VirtualEngine(self.server, self.cost)

    def _begin_life(self, place: int, now: float) -> None:
        self.router.add_replica(str(place), self.server.limits.blocks)
        if self.failures.mean < inf:
            one = self.replicas[place]
            fails = now + one.draws.expovariate(1 / self.failures.mean)
            heappush(self._events, (fails, place, FAILURE, one.life))

    def _advance(self, until: float) -> None:
        """Everything before a time; with no time, until no request is left."""
        events = self._events
        while events and events[0][0] < until and (self._live or until < inf):
            now, place, kind, life = heappop(events)
            if kind == FAILURE:
                self._fail(place, now)
            elif kind == RETURN:
                self._begin_life(place, now)
            elif life == self.replicas[place].life:
                self._take_turn(place, now)

    def _route(self, number: int, now: float) -> None:
        record, one = self.records[number], self._live[number]
        chain = self.keys.make_keys(one.tokens, one.salt)
        start = time.perf_counter()
        route = self.router.begin(str(number), chain, len(one.tokens))
        record.decision += time.perf_counter() - start
        if route is None:
            self._end(number, REFUSED)
            return
        place = record.replica = int(route.replica.name)
        record.expected = route.cached * self.router.block_size
        replica = self.replicas[place]
        if self._is_full(replica.engine, len(one.tokens)):
            self._end(number, REFUSED)
            return
        replica.engine.now = now
        replica.engine.scheduler.add(
            Request(str(number), one.tokens, GREEDY, max_tokens=one.output, salt=one.salt)
        )
        if not replica.awake:
            replica.awake = True
            heappush(self._events, (now, place, TURN, replica.life))

    def _is_full(self, engine: VirtualEngine, tokens: int) -> bool:
        waiting = engine.scheduler.waiting
        if not waiting or self.queue is UNBOUNDED:
            return False
        held = sum(len(seq.tokens) for seq in waiting)
        return len(waiting) >= self.queue.requests or held + tokens > self.queue.tokens

    def _end(self, number: int, error: str = "") -> None:
        self.records[number].error = error
        del self._live[number]
        self.router.finish(str(number))

    def _take_turn(self, place: int, now: float) -> None:
        replica = self.replicas[place]
        engine = replica.engine
        if engine.plan is not None:
            for event in engine.end_step(now):
                self._record(event, now)
        replica.awake = engine.scheduler.busy
        if replica.awake:
            replica.ends = engine.begin_step(now)
            replica.busy += replica.ends - now
            replica.steps += 1
            heappush(self._events, (replica.ends, place, TURN, replica.life))

    def _record(self, event: Event, now: float) -> None:
        number = int(event.id)
        record = self.records[number]
        if record.first is None:
            record.first, record.cached = now, event.cached
        if event.finish:
            record.last = now
            self._end(number)

    def _fail(self, place: int, now: float) -> None:
        """The replica is gone at once, in the middle of a step."""
        replica = self.replicas[place]
        if replica.engine.plan is not None:
            replica.busy -= replica.ends - now
        replica.life, replica.awake, replica.engine = replica.life + 1, False, self._make_engine()
        self.failed += 1
        lost = self.router.remove_replica(str(place))
        heappush(self._events, (now + self.failures.restart, place, RETURN, replica.life))
        for id in lost:
            number = int(id)
            if self.records[number].first is not None:
                self._end(number, BROKEN)
            else:
                self.records[number].retries += 1
                self._route(number, now)
