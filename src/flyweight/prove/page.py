"""Outcomes as one page of HTML: tables, plots, the machine and the commands.

Invariant: self-contained: no script, no network, nothing from a file unescaped.
"""

from collections.abc import Callable, Sequence
from html import escape
from math import floor, log2

from flyweight.planning.plots import LinePlot, Series
from flyweight.planning.report import Report, ReportTable
from flyweight.planning.svg import draw_lines
from flyweight.prove.outcome import ProveOutcome
from flyweight.prove.proved import ProvedSuite
from flyweight.prove.report import describe_machine, describe_outcome
from flyweight.prove.technique import SIDES

STYLE = (
    "body{font:14px/1.5 system-ui,sans-serif;margin:2em auto;max-width:62em;padding:0 1em;"
    "color:#1a202c}h2{margin:1.6em 0 .2em}p,li{color:#4a5568}pre{white-space:pre-wrap;"
    "background:#f7fafc;padding:.6em 1em}table{border-collapse:collapse;margin:.6em 0}"
    "th,td{padding:.25em .8em;text-align:left;border-bottom:1px solid #e2e8f0}"
    "th.number,td.number{text-align:right}td.number{font-variant-numeric:tabular-nums}svg{max-width:100%;height:auto}"
    ".keep{color:#276749}.harmful{color:#c53030}"
)
NAME, PLOT, FIGURE, ROW, HEAD = 110, 480, 230, 26, 24  # pixels
COLOURS = {"keep": "#2f855a", "no effect": "#718096", "harmful": "#c53030"}


def write_page(suite: ProvedSuite, report: Report, command: str) -> str:
    """The report's tables, the speed-ups as a plot, and a section for each technique."""
    parts = [
        "<h1>flyweight prove</h1>",
        f"<p>{escape(describe_machine(suite))}</p><pre>{escape(command)}</pre>",
        *(write_table(table) for table in report.tables[:1]),
        draw_speeds(suite.outcomes),
        *(write_table(table) for table in report.tables[1:]),
    ]
    for one in suite.outcomes:
        parts.append(write_section(one))
    if suite.failures:
        parts.append("<h2>Not measured</h2>")
    for failure in suite.failures:
        parts.append(f"<p>{escape(failure.technique.name)}: {escape(failure.problem)}</p>")
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>flyweight prove'
        f"</title><style>{STYLE}</style></head>\n<body>{body}\n</body></html>\n"
    )


def write_table(table: ReportTable) -> str:
    """A table with its title."""
    kinds = [find_kind([row[i] for row in table.rows]) for i in range(len(table.columns))]
    heads = "".join(
        f'<th class="{kind}">{escape(column.title)}</th>'
        for column, kind in zip(table.columns, kinds, strict=True)
    )
    rows = []
    for row in table.rows:
        cells = []
        for column, kind, value in zip(table.columns, kinds, row, strict=True):
            word = kind if kind == "number" else str(value).rstrip("?")  # verdicts have colours
            cells.append(f'<td class="{escape(word)}">{escape(column.write(value))}</td>')
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f"<h2>{escape(table.title)}</h2><table><thead><tr>{heads}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
        + "".join(f"<p>{escape(note)}</p>" for note in table.notes)
    )


def find_kind(values: Sequence[object]) -> str:
    """Columns of numbers are aligned to the right."""
    numbers = (isinstance(value, int | float) for value in values if value is not None)
    return "number" if all(numbers) else "text"


def write_section(outcome: ProveOutcome) -> str:
    """How a technique was measured, and the times of its rounds."""
    technique = outcome.technique
    lines = "".join(f"<li>{escape(line.strip())}</li>" for line in describe_outcome(outcome))
    return (
        f"<h2>{escape(technique.name)}</h2><p>{escape(technique.what)}</p><ul>{lines}</ul>"
        f"<pre>flyweight prove {escape(technique.name)} --metric {outcome.metric}</pre>"
        f"{draw_lines(plot_rounds(outcome))}"
    )


def plot_rounds(outcome: ProveOutcome) -> LinePlot:
    """The compared time of each round, off and on."""
    series = [
        Series(side, [(i + 1, 1e3 * t) for i, t in enumerate(outcome.list_times(side))])
        for side in SIDES
    ]
    return LinePlot(f"{outcome.technique.name}: {outcome.metric}", "pair", "ms", series)


def draw_speeds(outcomes: Sequence[ProveOutcome]) -> str:
    """Speed-ups with their intervals on a logarithmic axis; a ring is the course's figure."""
    if not outcomes:
        return ""
    ends = [end for one in outcomes for end in (one.speed.low, one.speed.high)]
    low, high = floor(log2(min(0.9, *ends))), floor(log2(max(2.0, *ends))) + 1

    def place(value: float) -> float:
        return round(NAME + (log2(value) - low) / (high - low) * PLOT, 1)

    height = HEAD + ROW * len(outcomes) + 6
    width = NAME + PLOT + FIGURE
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"']
    parts[0] += f' width="{width}" height="{height}" role="img"><title>speed-ups</title>'
    for power in range(low, high + 1):
        x, colour = place(2.0**power), "#4a5568" if power == 0 else "#e2e8f0"
        parts.append(f'<path d="M{x} {HEAD}V{height}" stroke="{colour}"/>')
        parts.append(f'<text x="{x}" y="14" text-anchor="middle">{2.0**power:g}x</text>')
    for i, one in enumerate(outcomes):
        parts += draw_speed(one, HEAD + ROW * i + ROW / 2, place)
    ring = "<p>Dots are medians, lines 95 % intervals, rings the figures of the course.</p>"
    return "\n".join([*parts, "</svg>", ring])


def draw_speed(outcome: ProveOutcome, y: float, place: Callable[[float], float]) -> list[str]:
    """A row: the name, the interval as a line, the median as a dot, both in words."""
    speed, colour = outcome.speed, COLOURS[outcome.verdict]
    words = f"{speed}, {outcome.shown_verdict}"
    parts = [
        f'<text x="0" y="{y + 4}">{escape(outcome.technique.name)}</text>',
        f'<path d="M{place(speed.low)} {y}H{place(speed.high)}" stroke="{colour}" '
        'stroke-width="4" stroke-opacity=".45"/>',
        f'<circle cx="{place(speed.median)}" cy="{y}" r="5" fill="{colour}"/>',
        f'<text x="{NAME + PLOT + 10}" y="{y + 4}">{escape(words)}</text>',
    ]
    seed = outcome.seed.removesuffix("x")
    if seed:
        x = place(float(seed))
        parts.append(
            f'<circle cx="{x}" cy="{y}" r="4" fill="none" stroke="#2b6cb0" stroke-width="2"/>'
        )
    return parts
