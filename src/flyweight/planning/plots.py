"""Line plots as data: named series over two axes, and where values are on an axis.

Invariant: an axis covers every point of its series; a logarithmic one takes only values above 0.
Draws nothing: `svg.py` and `text_plot.py` do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log10
from typing import Any

STEPS = (1, 2, 2.5, 5, 10)  # of ticks, times a power of ten
MOST_LOG_TICKS = 10


@dataclass(frozen=True, slots=True)
class Series:
    """Points (x, y) by rising x, joined by lines."""

    name: str
    points: Sequence[tuple[float, float]]

    def __post_init__(self) -> None:
        assert all(a[0] <= b[0] for a, b in pairwise(self.points)), self.name


@dataclass(frozen=True, slots=True)
class Limit:
    """A horizontal line, such as the memory of a device."""

    name: str
    y: float


@dataclass(frozen=True, slots=True)
class LinePlot:
    """`x` and `y` are the axes' labels; either may be logarithmic."""

    title: str
    x: str
    y: str
    series: Sequence[Series]
    limits: Sequence[Limit] = ()
    log_x: bool = False
    log_y: bool = False

    def make_axes(self) -> "tuple[Axis, Axis]":
        points = [point for one in self.series for point in one.points]
        assert points, self.title
        xs, ys = [x for x, _ in points], [y for _, y in points]
        return make_axis(xs, self.log_x), make_axis(ys, self.log_y)

    def list_limits(self, axis: "Axis") -> list[Limit]:
        """Those that the y axis covers."""
        return [limit for limit in self.limits if axis.low <= limit.y <= axis.high]

    def make_document(self) -> dict[str, Any]:
        """The plot for scripts."""
        return {
            "title": self.title,
            "x": self.x,
            "y": self.y,
            "series": {one.name: [list(point) for point in one.points] for one in self.series},
            "limits": {limit.name: limit.y for limit in self.limits},
        }


@dataclass(frozen=True, slots=True)
class Axis:
    """From `low` to `high`, with ticks at round values."""

    low: float
    high: float
    log: bool
    ticks: tuple[float, ...]

    def place(self, value: float) -> float:
        """Where a value is, from 0 to 1."""
        if self.log:
            return log10(value / self.low) / log10(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def make_axis(values: Sequence[float], log: bool, most: int = 6) -> Axis:
    """An axis around values; one that is not logarithmic begins at 0 unless values are below."""
    low, high = min(values), max(values)
    if log:
        assert low > 0
        return _make_log_axis(low, high)
    low = min(0.0, low)
    step = round_step((high - low or 1.0) / most)
    first, last = floor(low / step), max(ceil(high / step), floor(low / step) + 1)
    ticks = tuple(i * step for i in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], False, ticks)


def _make_log_axis(low: float, high: float) -> Axis:
    """Its ends are 1, 2 or 5 times a power of ten; over many decades, ticks are powers only."""
    powers = range(floor(log10(low)) - 1, ceil(log10(high)) + 2)
    marks = [mark * 10.0**power for power in powers for mark in (1, 2, 5)]
    begin = max(mark for mark in marks if mark <= low * 1.0001)
    end = min(mark for mark in marks if mark >= high * 0.9999 and mark > begin)
    ticks = [mark for mark in marks if begin <= mark <= end]
    if len(ticks) > MOST_LOG_TICKS:
        ticks = [10.0**power for power in powers if begin <= 10.0**power <= end]
    return Axis(begin, end, True, tuple(ticks))


def round_step(step: float) -> float:
    """1, 2, 2.5 or 5 times a power of ten, at least the step."""
    power = 10.0 ** floor(log10(step))
    return next(power * by for by in STEPS if power * by >= step * 0.9999)
