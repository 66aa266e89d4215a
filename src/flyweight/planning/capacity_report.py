"""Capacity as a report: the rate that is served, and what requests see around it."""

from collections.abc import Sequence
from statistics import median

from flyweight.planning.capacity import SHARE, Capacity, LatencyTargets
from flyweight.planning.capacity_check import ValidatedRate, find_knee
from flyweight.planning.plots import Limit, LinePlot, Series
from flyweight.planning.queueing import ArrivalLoad
from flyweight.planning.report import Column, Report, ReportTable
from flyweight.planning.units import write_rate, write_ratio, write_seconds, write_share

POINTS = (
    Column("requests_per_second", "req/s", write_ratio),
    Column("share_of_capacity", "load", write_share),
    Column("ttft_seconds", "TTFT p50", write_seconds),
    Column("ttft_p90_seconds", "p90", write_seconds),
    Column("itl_p90_seconds", "ITL p90", write_seconds),
    Column("concurrency", "under way", write_ratio),
    Column("output_tokens_per_second", "tokens/s", write_rate),
    Column("met", "met", write_share),
)
VALIDATION = (
    Column("requests_per_second", "req/s", write_ratio),
    Column("ttft_p90_seconds", "TTFT", write_seconds),
    Column("measured_ttft_p90_seconds", "measured", write_seconds),
    Column("itl_p90_seconds", "ITL", write_seconds),
    Column("measured_itl_p90_seconds", "measured", write_seconds),
    Column("met", "met", write_share),
    Column("measured_met", "measured", write_share),
)


def report_capacity(
    found: Capacity,
    load: ArrivalLoad,
    targets: LatencyTargets,
    think: float,
    notes: tuple[str, ...],
) -> Report:
    """The tables of `plan capacity`."""
    rows = [
        (
            point.rate,
            point.rate / found.rate,
            point.ttft,
            point.ttft_p90,
            point.itl_p90,
            point.concurrency,
            point.output,
            point.met,
        )
        for point in found.points
    ]
    best = found.best
    users = best.concurrency + think * found.rate
    wanted = f"TTFT {write_seconds(targets.ttft)} and ITL {write_seconds(targets.itl)}"
    alone = found.alone
    summary = (
        f"Capacity: {write_ratio(found.rate)} requests/s, {write_ratio(users)} users, within "
        f"{wanted} for {SHARE:.0%} of the requests; above it, "
        f"{found.find_binding(targets)} fails first.",
        f"A user sends the next request {write_seconds(think)} after an answer. One request alone: "
        f"TTFT {write_seconds(alone.ttft)}, ITL {write_seconds(alone.itl_p90)}.",
    )
    title = f"Requests of {load.prompt} tokens in, {load.output} out, at random times"
    strong = frozenset(i for i, point in enumerate(found.points) if point.rate == found.rate)
    table = ReportTable("capacity", title, POINTS, rows, summary, strong)
    return Report("Capacity", [table], notes, plot_capacity(found, targets))


def make_validation_table(
    rates: Sequence[ValidatedRate], capacity: float, drift: float
) -> ReportTable:
    """Simulated and measured rates, and the highest that is served by either; after them steps took
    `drift` times as long as predicted with.
    """
    rows = [
        (
            one.predicted.rate,
            one.predicted.ttft_p90,
            one.measured.ttft_p90,
            one.predicted.itl_p90,
            one.measured.itl_p90,
            one.predicted.met,
            one.measured.met,
        )
        for one in rates
    ]
    client, others = max(one.client for one in rates), median(one.others for one in rates)
    notes = [
        describe_knees(capacity, rates),
        "Measured over HTTP as `flyweight bench serve` does, with the same arrivals as simulated; "
        f"its client used up to {client:.2f} cores of this machine, other processes {others:.2f}.",
        f"Costs of steps, timed again after the loads, were {drift:.2f} times those before.",
    ]
    failures = [one for one in rates if one.failed]
    if failures:
        first = failures[0]
        notes.append(
            f"From {write_ratio(first.measured.rate)} requests/s on, requests failed, and have "
            f"missed the targets: {first.failed} there, as in {first.why}."
        )
    title = "Simulated and measured (p90)"
    return ReportTable("validation", title, VALIDATION, rows, notes)


def describe_knees(capacity: float, rates: Sequence[ValidatedRate]) -> str:
    """The highest rate that is served, as it was predicted and as it was measured."""
    simulated = find_knee([one.predicted for one in rates])
    measured = find_knee([one.measured for one in rates])
    text = f"Knee: predicted {write_ratio(capacity)} requests/s"
    if simulated:
        text += f" ({write_ratio(simulated)} by these loads)"
    if measured is None:
        most = rates[-1].measured
        side = f"above {write_ratio(most.rate)}"
        if most.met < SHARE:
            side = f"below {write_ratio(rates[0].measured.rate)}"
        return f"{text}, measured {side}."
    ratio = capacity / measured
    return f"{text}, measured {write_ratio(measured)}; predicted ÷ measured {ratio:.2f}."


def plot_capacity(found: Capacity, targets: LatencyTargets) -> LinePlot:
    """TTFT by rate, with the target."""
    points = [(point.rate, point.ttft_p90) for point in found.points]
    return LinePlot(
        title="TTFT by rate",
        x="requests a second",
        y="TTFT p90, seconds",
        series=[Series("TTFT p90", points)],
        limits=[Limit("target", targets.ttft)],
        log_x=False,
        log_y=True,
    )
