"""A trace of requests on replicas in virtual time: the engine's own scheduler and prefix cache,
with a cost model of steps.

Nothing is computed: answers are of one token over and over, so that no prompt of a trace goes on
from blocks of an answer.

Invariant: the same requests, costs and policy give the same figures; only `decisions` are measured.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

from flyweight.bench.serving.traces import BLOCK, TraceRequest
from flyweight.config import whole
from flyweight.errors import ConfigError
from flyweight.planning.queueing import MADE, Cost, ServerShape
from flyweight.planning.replica_run import ReplicaRequest, ReplicaRun, RequestOutcome
from flyweight.routing.policies import RoutingPolicy

OWN = max(MADE.tokens) + 1  # the token of hash 0: no answer has it


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
        return [
            self.make_request(number, at / self.speed, one)
            for number, (at, one) in enumerate(spread_arrivals(trace))
        ]

    def make_request(
        self, number: int, at: float, one: TraceRequest, salt: str = ""
    ) -> ReplicaRequest:
        """The request `number` of a trace, which arrives `at` so many seconds."""
        length, output = self.count_tokens(one)
        size = BLOCK // self.factor
        tokens = [OWN + block for block in one.blocks for _ in range(size)][:length]
        tokens += [-1 - number] * (length - len(tokens))
        return ReplicaRequest(at, tuple(tokens), output, salt)

    def count_tokens(self, one: TraceRequest) -> tuple[int, int]:
        """Of the prompt and of the answer."""
        return max(1, one.input // self.factor), max(1, one.output // self.factor)


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
        run = ReplicaRun((self.server, self.cost), self.replicas, policy)
        return summarize_run(run.run(requests), [one.busy for one in run.replicas])


def summarize_run(records: Sequence[RequestOutcome], busy: Sequence[float]) -> RoutedTimes:
    """Of a run in which no replica failed and none refused a request."""
    firsts = [one.first for one in records if one.first is not None]
    lasts = [one.last for one in records if one.last is not None]
    assert len(firsts) == len(lasts) == len(records), "all are answered"
    return RoutedTimes(
        ttft=tuple(at - one.at for at, one in zip(firsts, records, strict=True)),
        e2el=tuple(at - one.at for at, one in zip(lasts, records, strict=True)),
        prompts=tuple(one.prompt for one in records),
        cached=tuple(one.cached for one in records),
        expected=tuple(one.expected for one in records),
        placed=tuple(one.replica for one in records),
        busy=tuple(busy),
        seconds=max(lasts) - records[0].at,
        decisions=tuple(one.decision for one in records),
    )
