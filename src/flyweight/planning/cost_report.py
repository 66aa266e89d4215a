"""The reports of `plan cost` and `plan breakeven`.

Invariant: figures that the founding documents print are next to ours, also where they round.
"""

from flyweight.planning.cost import (
    CloudPrice,
    EdgePrice,
    compute_breakeven,
    compute_token_cost,
)
from flyweight.planning.plots import LinePlot, Series
from flyweight.planning.report import Column, Report, ReportTable, Value

SEED_BREAKEVEN = 483_000
DAYS = 30  # of a month, as the course has it
# Queries a day, and what the course recommends there.
RULES = ((5_000, "below: cloud"), (10_000, "above: edge"), (50_000, "above: several GPUs"))
POINTS = 10


def write_dollars(amount: float) -> str:
    """$483.33, $0.001, $0.00000278."""
    if amount >= 1:
        return f"${amount:,.2f}"
    return f"${amount:.3g}" if amount >= 1e-3 else f"${amount:.8f}".rstrip("0")


def report_cost(hourly: float, latency: float, tokens: float) -> Report:
    """The price of a token, and of what is easier to imagine."""
    token = compute_token_cost(hourly, latency, tokens)
    rows = [
        ("a token", token),
        ("1,000 tokens", 1000 * token),
        ("1,000,000 tokens", 1e6 * token),
        ("an answer", token * tokens),
    ]
    columns = (Column("amount", "of"), Column("dollars", "cost", write_dollars))
    notes = (
        "Cost of a token = price a second x latency / tokens.",
        f"{write_dollars(hourly)} an hour, {latency:g} s an answer of {tokens:g} tokens, one at a "
        "time; a batch divides it.",
    )
    return Report("Cost", [ReportTable("cost", "Cost of tokens", columns, rows, notes)])


def report_breakeven(cloud: CloudPrice, edge: EdgePrice) -> Report:
    monthly = compute_breakeven(cloud, edge)
    rows: list[tuple[Value, ...]] = [
        ("a query in the cloud", write_dollars(cloud.query), None),
        ("hardware, a month", write_dollars(edge.hardware / edge.months), "$333"),
        ("all of the edge, a month", write_dollars(edge.month), "~$483"),
        ("break-even, queries a month", f"{monthly:,.0f}", f"{SEED_BREAKEVEN:,}"),
        ("break-even, queries a day", f"{monthly / DAYS:,.0f}", "~16K"),
    ]
    columns = (
        Column("what", "what"),
        Column("value", "ours"),
        Column("seed", "the course", unknown=""),
    )
    notes = (
        "Break-even = a month of the edge / the price of a query in the cloud.",
        "The course rounds $2000 / 6 to $333: $483 / $0.001 = 483,000 with its own inputs.",
    )
    table = ReportTable("breakeven", "Cloud or edge", columns, rows, notes)
    return Report("Break-even", [table, check_rules(cloud, edge)], plot=plot_costs(cloud, edge))


def check_rules(cloud: CloudPrice, edge: EdgePrice) -> ReportTable:
    """The course's thresholds, and what the prices say there."""
    rows: list[tuple[Value, ...]] = []
    for daily, rule in RULES:
        api, devices = DAYS * daily * cloud.query, edge.count_devices(daily)
        own = devices * edge.month
        rows.append((daily, rule, api, own, devices, "cloud" if api < own else "edge"))
    columns = (
        Column("daily", "queries a day"),
        Column("rule", "the course rule"),
        Column("cloud", "cloud", write_dollars),
        Column("edge", "edge", write_dollars),
        Column("devices", "devices"),
        Column("cheaper", "cheaper"),
    )
    note = f"A month; a device answers one query in {edge.latency:g} s."
    return ReportTable("rules", "The course's thresholds", columns, rows, (note,))


def plot_costs(cloud: CloudPrice, edge: EdgePrice) -> LinePlot:
    """Dollars a month against queries a day, up to twice the break-even."""
    most = 2 * compute_breakeven(cloud, edge) / DAYS
    days = [most * i / POINTS for i in range(POINTS + 1)]
    series = [
        Series("cloud", [(n, DAYS * n * cloud.query) for n in days]),
        Series("edge", [(n, edge.count_devices(n) * edge.month) for n in days]),
    ]
    return LinePlot("Cost of a month", "queries a day", "dollars a month", series)
