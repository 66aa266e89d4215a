"""Plots as SVG, without a library: points of speed and cost, with the front of the best marked.

Invariant: valid XML, readable on light and dark pages.  Knows no model.
"""

from collections.abc import Sequence
from html import escape
from math import floor, log10

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 150, 20, 50
LEAST = 1e-5  # costs below are drawn there
INK, FRONT, OTHER = "#808080", "#1f77b4", "#999999"

Point = tuple[str, float, float, bool]  # name, speed, cost, whether it is on the front


def draw_front(points: Sequence[Point], axes: tuple[str, str]) -> str:
    """An SVG document: speed to the right, cost upwards on a logarithmic axis."""
    most = max((speed for _, speed, _, _ in points), default=1.0) * 1.05
    costs = [max(cost, LEAST) for _, _, cost, _ in points] or [LEAST, 1.0]
    low, high = floor(log10(min(costs))), floor(log10(max(costs))) + 1

    def place(speed: float, cost: float) -> tuple[float, float]:
        x = LEFT + speed / most * (WIDTH - LEFT - RIGHT)
        share = (log10(max(cost, LEAST)) - low) / (high - low)
        return round(x, 1), round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">'
    ]
    for power in range(low, high + 1):
        _, y = place(0, 10.0**power)
        parts.append(f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="{INK}" stroke-opacity=".3"/>')
        parts.append(_write(LEFT - 8, y + 4, f"{10.0**power:g}", INK, "end"))
    for step in range(5):
        x, _ = place(most * step / 4, 1)
        parts.append(_write(x, HEIGHT - BOTTOM + 18, f"{most * step / 4:.0f}", INK, "middle"))
    parts.append(_write((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, axes[0], INK, "middle"))
    parts.append(
        f'<g transform="rotate(-90)">{_write(-HEIGHT / 2, 16, axes[1], INK, "middle")}</g>'
    )
    front = sorted(place(speed, cost) for _, speed, cost, best in points if best)
    if len(front) > 1:
        path = "L".join(f"{x} {y}" for x, y in front)
        parts.append(f'<path d="M{path}" fill="none" stroke="{FRONT}" stroke-dasharray="4 3"/>')
    for name, speed, cost, best in points:
        (x, y), colour = place(speed, cost), FRONT if best else OTHER
        parts.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"/>')
        parts.append(_write(x + 7, y + 4, name, colour, "start"))
    return "\n".join([*parts, "</svg>", ""])


def _write(x: float, y: float, text: str, colour: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y}" fill="{colour}" text-anchor="{anchor}">{escape(text)}</text>'
