"""The report of `plan capacity --replicas`: latencies, losses and money by the number of replicas,
how many are recommended, and what breaks first.

Invariant: the recommendation and the tables of points follow from the points alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from flyweight.config import Limits
from flyweight.planning.capacity import SHARE, LatencyTargets
from flyweight.planning.cost import HOUR
from flyweight.planning.cost_report import write_dollars
from flyweight.planning.plots import Limit, LinePlot, Series
from flyweight.planning.replica_limits import (
    ITEM,
    RECEIVED,
    STREAMED,
    FrontLoad,
    RouterCost,
    ScaleLimit,
    find_calm,
    list_limits,
)
from flyweight.planning.replica_load import TraceLoad
from flyweight.planning.replica_points import ReplicaPoint
from flyweight.planning.replica_run import FailurePlan
from flyweight.planning.report import Column, Report, ReportTable
from flyweight.planning.timed_costs import TimedCosts
from flyweight.planning.units import write_rate, write_ratio, write_seconds, write_share


def write_price(dollars: float) -> str:
    return f"${dollars:,.0f}" if dollars >= 100 else write_dollars(dollars)


POINTS = (
    Column("replicas", "replicas"),
    Column("cached_share", "cached", lambda share: f"{100 * share:.1f} %"),
    Column("ttft_p50_seconds", "TTFT p50", write_seconds),
    Column("ttft_p99_seconds", "p99", write_seconds),
    Column("itl_p50_seconds", "ITL p50", write_seconds),
    Column("itl_p99_seconds", "p99", write_seconds),
    Column("utilization", "busy", write_share),
    Column("met", "met", write_share),
)
LOSSES = (
    Column("replicas", "replicas"),
    Column("simulated", "sample"),
    Column("seconds", "for", write_seconds),
    Column("requests", "requests"),
    Column("refused", "refused"),
    Column("broken", "broken"),
    Column("retried", "retried"),
    Column("failures", "failed"),
    Column("dollars_per_hour", "an hour", write_price),
    Column("dollars_per_million_tokens", "1M tokens", write_price),
)
LIMITS = (
    Column("limit", "limit"),
    Column("recommended", "recommended"),
    Column("most", "most replicas"),
    Column("allowed", "allowed"),
    Column("replicas", "replicas it allows", unknown="any"),
)


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The replicas that meet the targets: with the median costs, with those of the quickest and of
    the slowest round; None: no requested number does.
    """

    least: int | None
    low: int | None
    high: int | None


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """What the points were simulated with; `served` says which model runs where."""

    trace: str
    load: TraceLoad
    limits: Limits
    targets: LatencyTargets
    hourly: float
    failures: FailurePlan
    router: RouterCost
    routing: str
    served: str
    timed: TimedCosts


def report_replicas(
    points: Sequence[ReplicaPoint], found: Recommendation, facts: ReplicaFacts
) -> Report:
    strong = frozenset(i for i, one in enumerate(points) if one.replicas == found.least)
    load = facts.load
    title = f"{write_rate(load.rate)} requests/s of {facts.trace}"
    tables = [
        ReportTable("replicas", title, POINTS, [make_row(one) for one in points],
                    describe_recommendation(found, facts), strong),
        ReportTable("losses", "Requests of the simulated replicas; dollars of all", LOSSES,
                    [make_loss_row(one, facts.hourly) for one in points],
                    describe_failures(points, facts), strong),
        make_limits(points, found, facts),
    ]  # fmt: skip
    return Report("Replicas", tables, describe_facts(facts), plot_points(points, facts.targets))


def make_row(one: ReplicaPoint) -> tuple[int | float | None, ...]:
    ttft, itl = one.ttft or (None, None), one.itl or (None, None)
    return (one.replicas, one.cached, *ttft, *itl, one.utilization, one.met)


def make_loss_row(one: ReplicaPoint, hourly: float) -> tuple[int | float | None, ...]:
    price = one.replicas * hourly
    tokens = price / (one.output_rate * HOUR) * 1e6 if one.output_rate else None
    return (one.replicas, one.simulated, one.seconds, one.arrived, one.refused, one.broken,
            one.retried, one.failed, price, tokens)  # fmt: skip


def describe_recommendation(found: Recommendation, facts: ReplicaFacts) -> list[str]:
    limit = facts.targets
    wanted = (
        f"TTFT {write_seconds(limit.ttft)} and ITL {write_seconds(limit.itl)} for {SHARE:.0%} of "
        "the requests"
    )
    if found.least is None:
        return [f"No requested number of replicas meets {wanted}."]
    timed = facts.timed
    low, high = (
        "none of the requested" if one is None else f"{one:,}" for one in (found.low, found.high)
    )
    return [
        f"Recommended: {found.least:,} replicas, for {wanted}.",
        f"Where steps take {timed.low:.2f} times as long, as at best: {low}; {timed.high:.2f} "
        f"times, as at worst: {high}.",
    ]


def describe_failures(points: Sequence[ReplicaPoint], facts: ReplicaFacts) -> list[str]:
    if facts.failures.mean == inf or not points:
        return []
    hours, last = facts.failures.mean / HOUR, points[-1]
    return [
        f"A replica fails every {write_ratio(hours)} hours on average and is away for "
        f"{write_seconds(facts.failures.restart)}: of {last.replicas:,}, "
        f"{write_ratio(last.replicas / hours)} an hour, with {write_ratio(last.under_way)} "
        "requests under way on each.",
        "Refused: its queue was full, or no replica was there. Broken: its replica failed after "
        "the first token. Retried: before it.",
    ]  # fmt: skip


def make_limits(
    points: Sequence[ReplicaPoint], found: Recommendation, facts: ReplicaFacts
) -> ReportTable:
    """What more replicas reach, and what caches need."""
    largest = points[-1].replicas if points else 1
    least = found.least or largest
    steps = max((one.steps for one in points), default=0.0)
    front = FrontLoad(facts.load.rate, facts.load.output_rate, steps)
    listed = list_limits(facts.router, facts.limits, front, least, largest)
    rows = [
        (one.name, one.write(one.now), one.write(one.most), one.write(one.allowed), one.replicas)
        for one in listed
    ]
    notes = [describe_first(listed, largest), *describe_router(facts.router, front, least)]
    return ReportTable("limits", "What breaks first", LIMITS, rows,
                       [*notes, *describe_caches(points, facts)])  # fmt: skip


def describe_first(listed: Sequence[ScaleLimit], largest: int) -> str:
    first = min(listed, key=lambda one: inf if one.replicas is None else one.replicas)
    if first.replicas is None or first.replicas >= largest:
        return "None of them is reached by the most replicas."
    where = f"beyond {first.replicas:,}" if first.replicas else "with any number of"
    return f"{first.name[0].upper()}{first.name[1:]} breaks first, {where} replicas."


def describe_router(router: RouterCost, front: FrontLoad, least: int) -> list[str]:
    """Where the amounts of the API server come from."""
    mean, tail = (
        f"{write_seconds(one.fixed)} and {write_seconds(one.each)} for each replica"
        for one in (router.mean, router.p99)
    )
    return [
        f"A choice, with the keys of its prompt, takes {mean} on average, {tail} at p99: processor "
        f"time, measured here, on one core. The router's index takes {router.key:.0f} bytes for "
        "each block of a replica's cache.",
        f"{write_rate(front.tokens)} tokens/s take up to "
        f"{write_share(front.streaming.compute(least))} of the API server's core if all are "
        f"streamed by {least:,} replicas, with up to {write_rate(front.steps)} steps/s each: "
        f"{write_seconds(ITEM)} to receive a step from Ray and {write_seconds(RECEIVED)} for each "
        f"of its tokens, and {write_seconds(STREAMED)} to pass it on, all measured on another "
        "machine. No more steps are counted than tokens.",
    ]  # fmt: skip


def describe_caches(points: Sequence[ReplicaPoint], facts: ReplicaFacts) -> list[str]:
    """Whether a conversation comes back before its blocks are evicted."""
    returns = facts.load.measure_returns()
    if returns is None or not points:
        return []
    shortest = min(one.seconds for one in points)
    soon = (
        [
            f"As little as {write_seconds(shortest)} are simulated, in which few conversations "
            "come back: more is cached in the long run. Simulate more with --requests."
        ]
        if shortest < returns
        else []
    )
    capacity = facts.limits.blocks * facts.limits.block_size
    lasts, calm = find_calm(points, capacity, returns)
    many = "with no number here" if calm is None else f"from {calm:,} replicas on"
    last = write_seconds(lasts) if lasts < inf else "any time"
    return [
        f"Cache churn: half of the requests of a conversation come {write_seconds(returns)} or "
        f"more after the one before; a cache of {capacity:,} tokens is not written over sooner "
        f"{many}, and with the most replicas after {last}.",
        *soon,
    ]  # fmt: skip


def describe_facts(facts: ReplicaFacts) -> list[str]:
    load, limits = facts.load, facts.limits
    lengths = "" if load.scale.factor == 1 else f" with lengths divided by {load.scale.factor},"
    left = f" {load.left_out:,} longer ones are left out." if load.left_out else ""
    return [
        f"{facts.served}; each replica has {limits.blocks:,} K/V blocks of {limits.block_size} "
        f"tokens, up to {limits.max_num_seqs} sequences and {limits.max_num_batched_tokens} tokens "
        f"in a step, a context of {limits.max_model_len:,}.",
        facts.timed.note,
        f"The load is {len(load.requests):,} requests of {load.span:,.0f} s,{lengths} in "
        f"{load.copies:,} copies that are moved in time and share no prefix, with "
        f"{100 * load.kept:.3g} % of their conversations.{left}",
        "Where fewer replicas are simulated than there are, they have a router of their own and "
        "their share of the conversations, by a hash. Caches are empty at the beginning.",
        f"Simulated: the scheduler, prefix cache and step budgets of `flyweight serve`, and the "
        f"routing policy {facts.routing!r}; HTTP and tokenising are not counted.",
    ]


def plot_points(points: Sequence[ReplicaPoint], targets: LatencyTargets) -> LinePlot | None:
    """TTFT by replicas, with the target."""
    seen = [(one.replicas, one.ttft) for one in points if one.ttft is not None]
    if not seen:
        return None
    return LinePlot(
        title="TTFT by replicas",
        x="replicas",
        y="TTFT, seconds",
        series=[
            Series(name, [(number, ttft[i]) for number, ttft in seen])
            for i, name in enumerate(("p50", "p99"))
        ],
        limits=[Limit("target", targets.ttft)],
        log_x=True,
        log_y=True,
    )
