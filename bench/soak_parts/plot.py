"""A soak as SVG: memory, answers per second, running and waiting sequences over time, and events.

Invariant: valid XML on a white ground; all panels have one time axis.  No library draws it.
"""

from collections.abc import Sequence
from html import escape
from itertools import pairwise
from typing import Any

from flyweight.planning.plots import Axis, make_axis

WIDTH, LEFT, RIGHT, TOP = 900, 70, 130, 46
PANEL, GAP = 150, 46  # pixels of a panel, and between two
LEGEND, WORDS = 18, 11  # pixels of a line of the legend; of an event's name
COLOURS = ("#2f6fde", "#d1495b", "#2a9d6f")
MIB = 1 << 20
STYLE = """text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;
fill:#5b6673}.title{fill:#1f2933;font-weight:600}.event{font-size:10px}"""

Points = list[tuple[float, float]]  # minutes and values
Panel = tuple[str, dict[str, Points]]  # title, and series by name


def make_panels(samples: Sequence[dict[str, Any]]) -> list[Panel]:
    """What the panels show; a process that had ended has no point."""
    parts = {"server": "API server", "engine": "engine", "others": "schema checks"}
    memory = {
        name: [(x["time"] / 60, x[part]["rss"] / MIB) for x in samples if x[part] is not None]
        for part, name in parts.items()
    }
    rates = [
        (b["time"] / 60, (b["answered"] - a["answered"]) / max(0.001, b["time"] - a["time"]))
        for a, b in pairwise(samples)
    ]
    counts = {name: [(x["time"] / 60, x[name]) for x in samples] for name in ("running", "waiting")}
    return [
        ("resident memory, MiB", memory),
        ("answers per second", {"answers": rates}),
        ("sequences", counts),
    ]


def draw_soak(samples: Sequence[dict[str, Any]], events: Sequence[tuple[float, str]]) -> str:
    """An SVG document; there are at least two samples."""
    panels = make_panels(samples)
    height = TOP + len(panels) * (PANEL + GAP)
    time = make_axis([0.0, samples[-1]["time"] / 60], log=False, most=12)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img">',
        "<title>A soak of flyweight serve with three models</title>",
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
    ]
    for i, panel in enumerate(panels):
        parts += draw_panel(panel, time, TOP + i * (PANEL + GAP))
    parts += draw_events(events, time, height - GAP)
    parts.append(write((LEFT + WIDTH - RIGHT) / 2, height - 8, "minutes", anchor="middle"))
    return "\n".join([*parts, "</svg>", ""])


def place(axis: Axis, minutes: float) -> float:
    return round(LEFT + axis.place(minutes) * (WIDTH - LEFT - RIGHT), 1)


def draw_panel(panel: Panel, time: Axis, top: float) -> list[str]:
    title, series = panel
    values = [y for points in series.values() for _, y in points]
    up = make_axis([0.0, *values], log=False, most=4)
    parts = [write(LEFT, top - 8, title, "title")]
    for tick in up.ticks:
        y = round(top + PANEL * (1 - up.place(tick)), 1)
        parts.append(f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="#e4e7eb"/>')
        parts.append(write(LEFT - 8, y + 4, f"{tick:,g}", anchor="end"))
    for tick in time.ticks:
        x = place(time, tick)
        parts.append(f'<path d="M{x} {top}V{top + PANEL}" stroke="#f1f3f5"/>')
        parts.append(write(x, top + PANEL + 16, f"{tick:,g}", anchor="middle"))
    for i, (name, points) in enumerate(series.items()):
        line = "L".join(
            f"{place(time, x)} {round(top + PANEL * (1 - up.place(y)), 1)}" for x, y in points
        )
        if line:
            parts.append(f'<path d="M{line}" fill="none" stroke="{COLOURS[i]}"/>')
        y, begin = top + 8 + i * LEGEND, WIDTH - RIGHT + 10
        parts.append(f'<path d="M{begin} {y}h14" stroke="{COLOURS[i]}" stroke-width="3"/>')
        parts.append(write(begin + 20, y + 4, name))
    return parts


def draw_events(events: Sequence[tuple[float, str]], time: Axis, bottom: float) -> list[str]:
    """Dashed lines through all panels; names that would overlap are in other rows."""
    parts = []
    for i, (seconds, name) in enumerate(events):
        x = place(time, seconds / 60)
        parts.append(f'<path d="M{x} {TOP}V{bottom}" stroke="#8792a2" stroke-dasharray="4 3"/>')
        parts.append(write(x + 3, TOP + WORDS * (1 + i % 6), name, "event"))
    return parts


def write(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{named} text-anchor="{anchor}">{escape(text)}</text>'
