"""The report of `plan energy`: kWh and dollars of queries on a GPU and a CPU, and what this machine
draws now.

Invariant: power that cannot be read is "unavailable".
"""

from collections.abc import Sequence
from dataclasses import dataclass

from flyweight.planning.cost_report import write_dollars
from flyweight.planning.energy import PowerDraw
from flyweight.planning.report import Column, Report, ReportTable, Value

# Seconds of 100 tokens in the course's own table of GPU and CPU, and its power there.
SEED_LATENCIES = (PowerDraw("GPU (RTX 4090)", 300, 0.4), PowerDraw("CPU (64 cores)", 120, 15.0))


SEED_DOLLARS = 5.775  # 38.5 kWh at $0.15
SEED_NOTE = "The course prints $5.80, where 38.5 kWh are $5.775, and so 18.6 times instead of 18.7."


@dataclass(frozen=True, slots=True)
class LivePower:
    """Watts of a source on this machine; None where it cannot be read."""

    source: str
    watts: float | None


def report_energy(
    draws: Sequence[PowerDraw], queries: float, price: float, live: Sequence[LivePower]
) -> Report:
    tables = [
        list_draws(draws, queries, price),
        list_latencies(queries, price),
        list_live(live),
    ]
    return Report("Energy", tables)


def list_draws(draws: Sequence[PowerDraw], queries: float, price: float) -> ReportTable:
    rows = [make_row(draw, queries, price) for draw in draws]
    ratio = draws[1].compute_kwh(queries) / draws[0].compute_kwh(queries)
    notes = [f"{draws[1].name} takes {ratio:.1f} times the energy of {draws[0].name}."]
    if abs(price * draws[0].compute_kwh(queries) - SEED_DOLLARS) < 1e-6:
        notes.append(SEED_NOTE)
    title = f"Energy of {queries:,.0f} queries at {write_dollars(price)} a kWh"
    return ReportTable("energy", title, list_columns(), rows, notes)


def list_latencies(queries: float, price: float) -> ReportTable:
    """The course's other table, which has another power and another time."""
    rows = [make_row(draw, queries, price) for draw in SEED_LATENCIES]
    note = "From the course's table of GPU and CPU: 100 tokens in 0.4 s and 15 s, 300 W and 120 W."
    title = "The same by the course's latencies"
    return ReportTable("latencies", title, list_columns(), rows, (note,))


def list_columns() -> tuple[Column, ...]:
    return (
        Column("device", "device"),
        Column("watts", "watts"),
        Column("seconds", "s a query"),
        Column("joules", "J a query"),
        Column("kwh", "kWh", lambda kwh: f"{kwh:,.1f}"),
        Column("dollars", "cost", write_dollars),
    )


def make_row(draw: PowerDraw, queries: float, price: float) -> tuple[Value, ...]:
    kwh = draw.compute_kwh(queries)
    return draw.name, draw.watts, draw.seconds, draw.joules, kwh, price * kwh


def list_live(live: Sequence[LivePower]) -> ReportTable:
    rows = [(one.source, one.watts) for one in live]
    columns = (
        Column("source", "source"),
        Column("watts", "watts now", lambda watts: f"{watts:.1f}", "unavailable"),
    )
    return ReportTable("live", "This machine", columns, rows)
