"""The report of `plan device`: GPU or CPU by requests a day, next to the course's rule.

Invariant: the choice printed is the cheaper one; whether it is fast enough is left to the reader,
who sees the time of an answer.
"""

from collections.abc import Sequence
from dataclasses import replace

from flyweight.planning.cost_report import write_dollars
from flyweight.planning.plots import LinePlot, Series
from flyweight.planning.report import Column, Report, ReportTable, Value
from flyweight.planning.workload_cost import (
    Bill,
    MonthlyCost,
    PricedDevice,
    compute_month,
    compute_per_token,
)

GPU_ABOVE, CPU_BELOW = 1000, 100  # requests a day, the course's rule
SEED_PER_MILLION = ("$1.50", "$300")  # its $0.0000015 and $0.0003 a token
LOADS = (10, 100, 1_000, 10_000, 100_000, 1_000_000)  # requests a day, of the curve


def report_devices(devices: Sequence[PricedDevice], bill: Bill) -> Report:
    costs = [compute_month(device, bill) for device in devices]
    rows = [
        make_row(device, cost, bill, seed)
        for device, cost, seed in zip(devices, costs, SEED_PER_MILLION, strict=True)
    ]
    columns = (
        Column("device", "device"),
        Column("latency", "s an answer"),
        Column("count", "count"),
        Column("busy", "busy", lambda share: f"{100 * share:.3g} %"),
        Column("dollars", "a month", write_dollars),
        Column("million", "1M tokens", write_dollars),
        Column("seed_million", "the course"),
    )
    cheaper = min(range(len(devices)), key=lambda i: costs[i].total)
    title = f"A month with {bill.daily:,.0f} requests a day"
    notes = (
        f"Cheaper: {devices[cheaper].name}. The course's rule: {apply_rule(bill.daily)} (a GPU "
        f"above {GPU_ABOVE:,} a day, a CPU below {CPU_BELOW}), which is about the time of an "
        "answer.",
        "The course's devices are an RTX 4090 and 64 CPU cores; its cost of tokens names no load.",
    )
    table = ReportTable("devices", title, columns, rows, notes, frozenset({cheaper}))
    return Report("Device", [table, list_loads(devices, bill)], plot=plot_loads(devices, bill))


def make_row(device: PricedDevice, cost: MonthlyCost, bill: Bill, seed: str) -> tuple[Value, ...]:
    million = 1e6 * compute_per_token(cost, bill)
    return device.name, device.latency, cost.count, cost.busy, cost.total, million, seed


def apply_rule(daily: float) -> str:
    """What the course recommends for so many requests a day."""
    if daily > GPU_ABOVE:
        return "GPU"
    return "CPU" if daily < CPU_BELOW else "either"


def list_loads(devices: Sequence[PricedDevice], bill: Bill) -> ReportTable:
    """Dollars a month at other loads."""
    rows: list[tuple[Value, ...]] = []
    for daily in LOADS:
        totals = [compute_month(one, replace(bill, daily=daily)).total for one in devices]
        cheaper = devices[totals.index(min(totals))].name
        rows.append((daily, *totals, cheaper, apply_rule(daily)))
    columns = (
        Column("daily", "requests a day"),
        *(Column(f"dollars_{i}", one.name, write_dollars) for i, one in enumerate(devices)),
        Column("cheaper", "cheaper"),
        Column("rule", "the course rule"),
    )
    return ReportTable("loads", "A month at other loads", columns, rows)


def plot_loads(devices: Sequence[PricedDevice], bill: Bill) -> LinePlot:
    series = [
        Series(
            one.name,
            [(n, compute_month(one, replace(bill, daily=n)).total) for n in LOADS],
        )
        for one in devices
    ]
    return LinePlot(
        "Cost of a month", "requests a day", "dollars a month", series, log_x=True, log_y=True
    )
