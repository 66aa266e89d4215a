"""What users see with so many replicas: one simulation for each number.

Up to `LEAST` replicas are simulated whole.  Of more, some are: `LEAST` to `MOST` of them, with a
router of their own and their share of the conversations.  That is a service whose front end assigns
conversations to groups of replicas by a hash.  One router of all has more choice, so that waits are
taken to be no longer, and it keeps conversations together as well.

Invariant: a point depends on the load, the cost of steps and the settings alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import quantiles

from flyweight.planning.capacity import PATIENT, SHARE, LatencyTargets
from flyweight.planning.queueing import Cost, ServerShape
from flyweight.planning.replica_load import TraceLoad
from flyweight.planning.replica_run import (
    BROKEN,
    NEVER,
    REFUSED,
    FailurePlan,
    QueueBound,
    ReplicaRun,
    RequestOutcome,
)
from flyweight.routing.policies import RoutingPolicy

LEAST, MOST = 4, 64


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """How replicas run: `requests` are simulated for each number of replicas, at
    most about.
    """

    server: ServerShape
    make_policy: Callable[[], RoutingPolicy]
    queue: QueueBound
    targets: LatencyTargets
    requests: int = 1000
    failures: FailurePlan = NEVER
    least: int = LEAST


@dataclass(frozen=True, slots=True)
class LoadSlice:
    """`simulated` of the replicas, with this share of the conversations, for so many seconds."""

    simulated: int
    share: float
    seconds: float


@dataclass(frozen=True, slots=True)
class ReplicaPoint:
    """What was seen with `replicas`, of which `simulated` were: `arrived` requests in `seconds`,
    with shares of all requests or all time.  `written` are tokens a second that a replica's cache
    takes in, `steps` those of its engine in a second, `decisions` the seconds of the router's
    choices.  Percentiles are of answered requests; None: none was.
    """

    replicas: int
    simulated: int
    arrived: int
    completed: int
    seconds: float
    cached: float
    ttft: tuple[float, float] | None
    itl: tuple[float, float] | None
    utilization: float
    refused: int
    broken: int
    retried: int
    failed: int
    met: float
    under_way: float
    output_rate: float
    written: float
    steps: float = 0.0
    decisions: tuple[float, ...] = field(default=(), compare=False)

    @property
    def lost(self) -> float:
        """The share of requests without a whole answer."""
        return (self.refused + self.broken) / self.arrived


def choose_slice(replicas: int, load: TraceLoad, settings: ReplicaSettings) -> LoadSlice:
    """Fewer requests than wanted mean more replicas; more than wanted, less time."""
    each = load.rate * load.span / replicas
    wanted = min(max(round(settings.requests / each), settings.least), MOST)
    simulated = min(replicas, wanted)
    share = simulated / replicas
    return LoadSlice(simulated, share, min(load.span, settings.requests / (load.rate * share)))


def simulate_point(
    replicas: int, load: TraceLoad, cost: Cost, settings: ReplicaSettings
) -> ReplicaPoint | None:
    """None where no request comes to the sample.  Where targets seem to be met, the simulation
    lasts many times as long as the target of the first token, so that a queue that grows shows.
    """
    part = choose_slice(replicas, load, settings)
    point = simulate_slice(replicas, part, load, cost, settings)
    least = min(load.span, PATIENT * settings.targets.ttft)
    if point is None or point.met < SHARE or part.seconds >= least:
        return point
    return simulate_slice(replicas, replace(part, seconds=least), load, cost, settings)


def simulate_slice(
    replicas: int, part: LoadSlice, load: TraceLoad, cost: Cost, settings: ReplicaSettings
) -> ReplicaPoint | None:
    """Some of so many replicas, with their part of the load."""
    run = ReplicaRun(
        (settings.server, cost), part.simulated, settings.make_policy(), settings.failures,
        settings.queue,
    )  # fmt: skip
    records = run.run(load.draw(part.share, part.seconds))
    assert not run.in_flight, "all have ended"
    busy = sum(one.busy for one in run.replicas)
    steps = sum(one.steps for one in run.replicas)
    return summarize_records(replicas, part, records, (busy, steps, run.failed), settings)


def summarize_records(
    replicas: int,
    part: LoadSlice,
    records: Sequence[RequestOutcome],
    used: tuple[float, int, int],
    settings: ReplicaSettings,
) -> ReplicaPoint | None:
    """`used` are seconds in steps, their number, and replicas that failed."""
    if not records:
        return None
    done = [one for one in records if one.last is not None]
    ttft = [compute_ttft(one) for one in done]
    itl = [compute_itl(one) for one in done]
    limit = settings.targets
    met = sum(a <= limit.ttft and b <= limit.itl for a, b in zip(ttft, itl, strict=True))
    seconds = max([part.seconds, *(one.last or 0.0 for one in done)])
    prompts = sum(one.prompt for one in done)
    cached = sum(one.cached for one in done)
    output = sum(one.output for one in done)
    stay = sum((one.last or 0.0) - one.at for one in done)
    return ReplicaPoint(
        replicas, part.simulated, len(records), len(done), part.seconds,
        cached=cached / prompts if prompts else 0.0,
        ttft=pick_percentiles(ttft),
        itl=pick_percentiles([one for one, record in zip(itl, done, strict=True)
                              if record.output > 1]),
        utilization=used[0] / (part.simulated * seconds),
        refused=sum(one.error == REFUSED for one in records),
        broken=sum(one.error == BROKEN for one in records),
        retried=sum(one.retries for one in records),
        failed=used[2],
        met=met / len(records),
        under_way=stay / seconds / part.simulated,
        output_rate=output / seconds * replicas / part.simulated,
        written=(prompts - cached + output) / seconds / part.simulated,
        steps=used[1] / seconds / part.simulated,
        decisions=tuple(one.decision for one in records),
    )  # fmt: skip


def compute_ttft(one: RequestOutcome) -> float:
    assert one.first is not None
    return one.first - one.at


def compute_itl(one: RequestOutcome) -> float:
    """The mean time between the tokens of an answer."""
    assert one.first is not None and one.last is not None
    return (one.last - one.first) / max(1, one.output - 1)


def pick_percentiles(values: Sequence[float]) -> tuple[float, float] | None:
    """The median and the 99th."""
    if not values:
        return None
    cuts = quantiles([*values, *values[:1]] if len(values) == 1 else values, n=100,
                     method="inclusive")  # fmt: skip
    return cuts[49], cuts[98]
