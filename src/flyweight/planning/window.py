"""The report of `bench window`: the timeline of dynamic batching, and what it saves.

Invariant: where the requests are those of the founding document, its figures are printed next to
ours, with why they differ.  Simulates nothing itself.
"""

from collections.abc import Sequence

from flyweight.bench.batch_window import (
    BatchTimeline,
    BatchWindow,
    TimelineEvent,
    simulate_window,
)
from flyweight.planning.report import Column, Report, ReportTable, Value

SEED_ARRIVALS = (0.0, 2.0, 3.0, 4.0, 5.0)
# What the founding document ("seed") prints for them, by the key of our figure.
SEED_FIGURES = {
    "first": 1005.0, "last": 1000.0, "mean": 1001.0, "alone_total": 2000.0, "saved_total": 50.0,
}  # fmt: skip
SEED_NOTES = (
    "The course's 1001 ms is the mean of no set of its figures: 1005 and 1000 have the mean "
    "1002.5, all five requests 1002.2.",
    "Its 50 % are saved of the time until all are answered; the mean latency is 16 % lower.",
)


def write_number(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")


def report_window(window: BatchWindow, arrivals: Sequence[float]) -> Report:
    """The timeline, and the same requests one after the other."""
    found = simulate_window(window, arrivals)
    alone = simulate_window(BatchWindow(0.0, 1, window.single, window.single), arrivals)
    plain = window == BatchWindow() and tuple(arrivals) == SEED_ARRIVALS
    tables = [_list_events(window, found), _compare(found, alone, seed=plain)]
    return Report("Dynamic batching on a simulated clock", tables)


def _list_events(window: BatchWindow, found: BatchTimeline) -> ReportTable:
    columns = [
        Column("at", "ms", write_number),
        Column("event", "event"),
        Column("action", "action"),
        Column("queue", "queue"),
        Column("started", "started"),
    ]
    rows: list[list[Value]] = [
        [event.at, *_describe(event, window.wait), write_queue(event.queue), event.started]
        for event in found.events
    ]
    title = f"A window of {write_number(window.wait)} ms, or {window.preferred} requests"
    return ReportTable("timeline", title, columns, rows)


def _describe(event: TimelineEvent, wait: float) -> tuple[str, str]:
    """The event, and what follows."""
    left = wait - event.waited
    if event.started:
        action = "start"
    elif left > 0:
        action = f"wait {write_number(left)} ms"
    else:
        action = "engine is busy"
    if len(event.arrived) == 1:
        return f"request {event.arrived[0]} arrives", action
    if event.arrived:
        return f"{write_queue(event.arrived)} arrive", action
    return "window ends" if abs(left) < 1e-6 else "engine is free", action


def write_queue(numbers: Sequence[int]) -> str:
    """[R1, R2], [R1-R4]: numbers that follow one another."""
    if len(numbers) > 3:
        return f"[R{numbers[0]}-R{numbers[-1]}]"
    return f"[{', '.join(f'R{number}' for number in numbers)}]"


def _compare(found: BatchTimeline, alone: BatchTimeline, *, seed: bool) -> ReportTable:
    first, last = found.latencies[0], found.latencies[-1]
    figures: list[tuple[str, str, float]] = [
        ("first", "latency of the first request, ms", first),
        ("last", "latency of the last request, ms", last),
        ("ends", "mean of these two, ms", (first + last) / 2),
        ("mean", "mean latency of all, ms", found.mean),
        ("alone_mean", "mean latency, one after the other, ms", alone.mean),
        ("saved_mean", "mean latency saved, %", 100 * (1 - found.mean / alone.mean)),
        ("total", "all answered after, ms", found.last),
        ("alone_total", "all answered, one after the other, ms", alone.last),
        ("saved_total", "time for all saved, %", 100 * (1 - found.last / alone.last)),
    ]
    columns = [Column("figure", "figure"), Column("value", "ours", write_number)]
    rows: list[list[Value]] = [[what, value] for _, what, value in figures]
    if seed:
        columns.append(Column("document", "the course", write_number))
        for row, (key, _, _) in zip(rows, figures, strict=True):
            row.append(SEED_FIGURES.get(key))
    return ReportTable("figures", "Latency", columns, rows, SEED_NOTES if seed else ())
