"""Capacity as a report: the rate that is served, and what requests see around it."""

from collections.abc import Sequence

from flyweight.planning.capacity import SHARE, Capacity, LatencyTargets, RatePoint
from flyweight.planning.liveload import ValidatedRate, find_knee
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


def make_validation_table(rates: Sequence[ValidatedRate]) -> ReportTable:
    """Simulated and measured, and the highest rate that is served by both."""
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
    notes = (
        describe_knees([one.predicted for one in rates], [one.measured for one in rates]),
        "The engine in this process, the same arrivals; these loads are shorter than those that "
        "the capacity is found with.",
    )
    title = "Simulated and measured (p90)"
    return ReportTable("validation", title, VALIDATION, rows, notes)


def describe_knees(simulated: Sequence[RatePoint], measured: Sequence[RatePoint]) -> str:
    """The highest rates of the same loads, where they are within those that were tried."""
    rates = find_knee(simulated), find_knee(measured)
    words = [f"{write_ratio(rate)} requests/s" if rate else "outside these rates" for rate in rates]
    text = f"Served: simulated {words[0]}, measured {words[1]}"
    if rates[0] and rates[1]:
        text += f"; simulated ÷ measured {rates[0] / rates[1]:.2f}"
    return f"{text}."


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
