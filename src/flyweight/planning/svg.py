"""A line plot as SVG, without a library.

Invariant: valid XML on a white ground; every series has its name in the legend.
"""

from collections.abc import Sequence
from html import escape

from flyweight.planning.plots import Axis, LinePlot

WIDTH, HEIGHT = 760, 460
LEFT, RIGHT, TOP, BOTTOM = 76, 190, 60, 56
COLOURS = ("#2f6fde", "#d1495b", "#2a9d6f", "#e08e1b", "#7a5cc7", "#5b6673")
STYLE = """text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;
fill:#5b6673}.axis{fill:#1f2933;font-size:13px}.title{fill:#1f2933;font-size:15px;font-weight:600}"""
LINE = 20  # pixels of an entry of the legend


def draw_lines(plot: LinePlot) -> str:
    """An SVG document."""
    across, up = plot.make_axes()
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img">',
        f"<title>{escape(plot.title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>',
        *_draw_grid(across, up),
        _write(LEFT - 56, 24, plot.title, "title"),
        _write(LEFT - 56, TOP - 16, plot.y, "axis"),
        _write((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, plot.x, "axis", "middle"),
    ]
    for limit in plot.list_limits(up):
        y = _place_y(up, limit.y)
        parts.append(
            f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="#8792a2" stroke-dasharray="5 4"/>'
        )
        parts.append(_write(LEFT + 4, y - 4, limit.name, ""))
    for i, series in enumerate(plot.series):
        places = [(_place_x(across, x), _place_y(up, y)) for x, y in series.points]
        parts += _draw_series(places, COLOURS[i % len(COLOURS)], series.name, TOP + 10 + i * LINE)
    return "\n".join([*parts, "</svg>", ""])


def _place_x(axis: Axis, value: float) -> float:
    return round(LEFT + axis.place(value) * (WIDTH - LEFT - RIGHT), 1)


def _place_y(axis: Axis, value: float) -> float:
    return round(HEIGHT - BOTTOM - axis.place(value) * (HEIGHT - TOP - BOTTOM), 1)


def _draw_grid(across: Axis, up: Axis) -> list[str]:
    parts = []
    for tick in up.ticks:
        y = _place_y(up, tick)
        parts.append(f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="#e4e7eb"/>')
        parts.append(_write(LEFT - 10, y + 4, f"{tick:,g}", "", "end"))
    for tick in across.ticks:
        x = _place_x(across, tick)
        parts.append(f'<path d="M{x} {TOP}V{HEIGHT - BOTTOM}" stroke="#f1f3f5"/>')
        parts.append(_write(x, HEIGHT - BOTTOM + 20, f"{tick:,g}", "", "middle"))
    return parts


def _draw_series(
    places: Sequence[tuple[float, float]], colour: str, name: str, top: float
) -> list[str]:
    path = "L".join(f"{x} {y}" for x, y in places)
    parts = [f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>']
    parts += [f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}"/>' for x, y in places]
    begin = WIDTH - RIGHT + 14
    parts.append(f'<path d="M{begin} {top}h18" stroke="{colour}" stroke-width="3"/>')
    parts.append(_write(begin + 24, top + 4, name, ""))
    return parts


def _write(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{named} text-anchor="{anchor}">{escape(text)}</text>'
