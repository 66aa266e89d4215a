"""Plots as SVG, without a library: points of speed and cost, with the front of the best marked.

Invariant: valid XML on a white ground; every point has its name, placed where it covers least.
Knows no model.
"""

from collections.abc import Sequence
from html import escape
from itertools import product
from math import ceil, floor, log10

WIDTH, HEIGHT = 760, 460
LEFT, RIGHT, TOP, BOTTOM = 76, 28, 46, 56
LEAST = 1e-5  # costs below are drawn there
FRONT, OTHER = "#2f6fde", "#8792a2"
STYLE = """text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;
fill:#5b6673}.front{fill:#2f6fde;font-weight:600}.axis{fill:#1f2933;font-size:13px}"""
LETTER, LINE = 6.6, 13  # pixels of a letter, of a line
SIDES = ((11, 1), (-11, -1), (0, 0))
PLACES = [
    (side, dy) for dy, side in product((0, -16, 16, -30, 30, -44, 44), SIDES) if side[0] or dy
]  # of names, the nearest first
TICKS = 6

Point = tuple[str, float, float, bool]  # name, speed, cost, whether it is on the front
Box = tuple[float, float, float, float]  # left, top, right, bottom


def draw_front(points: Sequence[Point], axes: tuple[str, str]) -> str:
    """An SVG document: speed to the right, cost upwards on a logarithmic axis."""
    scale = PlotScale(points)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>',
        *scale.draw_grid(),
        _write((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, axes[0], "axis", "middle"),
        _write(LEFT - 56, 24, axes[1], "axis"),
        _write(
            WIDTH - RIGHT, 24, "right and below is better; blue: none is better in both", "", "end"
        ),
    ]
    front = sorted(scale.place(point) for point in points if point[3])
    if len(front) > 1:
        path = "L".join(f"{x} {y}" for x, y in front)
        parts.append(
            f'<path d="M{path}" fill="none" stroke="{FRONT}" stroke-width="2" '
            'stroke-opacity=".35" stroke-linejoin="round"/>'
        )
    for point in sorted(points, key=lambda one: one[3]):
        x, y = scale.place(point)
        size, colour = (5.5, FRONT) if point[3] else (4, OTHER)
        parts.append(f'<circle cx="{x}" cy="{y}" r="{size}" fill="{colour}" stroke="#fff"/>')
    return "\n".join([*parts, *_write_names(points, scale), "</svg>", ""])


class PlotScale:
    """Where speeds and costs are on the plot."""

    def __init__(self, points: Sequence[Point]) -> None:
        speeds = [speed for _, speed, _, _ in points] or [1.0]
        costs = [max(cost, LEAST) for _, _, cost, _ in points] or [LEAST]
        step = _round_step((max(speeds) - 0.8 * min(speeds)) / TICKS)
        self.first, self.step = floor(0.9 * min(speeds) / step) * step, step
        self.last = ceil(1.04 * max(speeds) / step) * step
        self.low, self.high = floor(log10(min(costs))), floor(log10(max(costs))) + 1

    def place(self, point: Point) -> tuple[float, float]:
        _, speed, cost, _ = point
        x = (speed - self.first) / (self.last - self.first)
        y = (log10(max(cost, LEAST)) - self.low) / (self.high - self.low)
        across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return round(LEFT + x * across, 1), round(HEIGHT - BOTTOM - y * down, 1)

    def draw_grid(self) -> list[str]:
        parts = []
        for power in range(self.low, self.high + 1):
            y = self.place(("", self.first, 10.0**power, False))[1]
            parts.append(f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="#e4e7eb"/>')
            least = "≤ " if 10.0**power <= LEAST else ""
            parts.append(_write(LEFT - 10, y + 4, f"{least}{10.0**power:g}", "", "end"))
        for i in range(round((self.last - self.first) / self.step) + 1):
            speed = self.first + i * self.step
            x = self.place(("", speed, 1.0, False))[0]
            parts.append(f'<path d="M{x} {TOP}V{HEIGHT - BOTTOM}" stroke="#f1f3f5"/>')
            parts.append(_write(x, HEIGHT - BOTTOM + 20, f"{speed:,g}", "", "middle"))
        return parts


def _write_names(points: Sequence[Point], scale: PlotScale) -> list[str]:
    """Those of the front first, which get the best places; a line leads to what is further away."""
    places = [scale.place(point) for point in points]
    taken: list[Box] = [(x - 8, y - 8, x + 8, y + 8) for x, y in places]
    parts = []
    for point in sorted(points, key=lambda one: not one[3]):
        x, y = scale.place(point)
        width = LETTER * len(point[0]) * (1.1 if point[3] else 1)
        best = min(
            (_make_box(x + dx, y + dy, width, side) for (dx, side), dy in PLACES),
            key=lambda box: _leave(box) + sum(_overlap(box, one) for one in taken),
        )
        taken.append(best)
        middle, base = (best[0] + best[2]) / 2, best[3] - 3
        if abs(base - 3 - y) > 2 * LINE:
            edge = best[1] if best[1] > y else best[3]
            path = f"M{x} {y}L{min(max(x, best[0]), best[2]):.1f} {edge:.1f}"
            parts.append(f'<path d="{path}" stroke="{OTHER}" stroke-width=".7"/>')
        parts.append(_write(middle, base, point[0], "front" if point[3] else "", "middle"))
    return parts


def _make_box(x: float, y: float, width: float, side: int) -> Box:
    """Of a name that begins (1), ends (-1) or is centred (0) at a point."""
    left = x - width * (1 - side) / 2
    return left, y - LINE / 2, left + width, y + LINE / 2


def _overlap(a: Box, b: Box) -> float:
    across, down = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return across * down if across > 0 and down > 0 else 0.0


def _leave(box: Box) -> float:
    """How far a box is outside of the axes."""
    over = max(0.0, box[2] - WIDTH + 4) + max(0.0, LEFT - box[0])
    return LINE * (over + max(0.0, TOP - box[1]) + max(0.0, box[3] - HEIGHT + BOTTOM))


def _round_step(step: float) -> float:
    """1, 2, 2.5 or 5 times a power of ten, at least the step."""
    power = 10.0 ** floor(log10(max(step, 1e-9)))
    return next(power * by for by in (1, 2, 2.5, 5, 10) if power * by >= step)


def _write(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{named} text-anchor="{anchor}">{escape(text)}</text>'
