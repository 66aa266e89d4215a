"""A line plot in characters, for a terminal.

Invariant: no line is wider than `width`; every series has a mark of its own, named below the plot.
Knows no colours.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from flyweight.planning.plots import Axis, LinePlot, Series

MARKS = "●▲■◆○△□◇+x"
ROWS = 16
LINE, LIMIT = "·", "╌"


def draw_text(plot: LinePlot, width: int = 80) -> str:
    """The plot, its axes and its legend."""
    across, up = plot.make_axes()
    labels = [_write(tick) for tick in up.ticks]
    left = max(map(len, labels))
    columns = max(20, width - left - 3)
    cells = [[" "] * columns for _ in range(ROWS)]
    for limit in plot.list_limits(up):
        cells[_find_row(up, limit.y)] = _make_limit(limit.name, columns)
    for mark, series in zip(_repeat_marks(), plot.series, strict=False):
        _draw_series(cells, series, mark, (across, up))
    rows = {_find_row(up, tick): label for tick, label in zip(up.ticks, labels, strict=True)}
    lines = [plot.title, plot.y]
    for i, row in enumerate(cells):
        side = "┤" if i in rows else "│"
        lines.append(f"{rows.get(i, ''):>{left}} {side}{''.join(row)}")
    lines.append(f"{'':>{left}} └{'─' * columns}")
    lines.append(" " * (left + 2) + _label_columns(across, columns))
    lines.append(f"{plot.x:>{left + 2 + columns}}")
    legend = (f"{mark} {one.name}" for mark, one in zip(_repeat_marks(), plot.series, strict=False))
    lines += _wrap(legend, width)
    return "\n".join(line.rstrip() for line in lines)


def _repeat_marks() -> Iterator[str]:
    while True:
        yield from MARKS


def _write(value: float) -> str:
    """1,000,000 too, which `g` alone would write as 1e+06."""
    return f"{value:,.10g}" if abs(value) < 1e9 else f"{value:.0e}"


def _find_row(axis: Axis, value: float) -> int:
    return ROWS - 1 - round(axis.place(value) * (ROWS - 1))


def _make_limit(name: str, columns: int) -> list[str]:
    """A dashed line that begins with its name."""
    return list(f"{f'{LIMIT} {name} ':{LIMIT}<{columns}}"[:columns])


def _draw_series(
    cells: list[list[str]], series: Series, mark: str, axes: tuple[Axis, Axis]
) -> None:
    """Dots between its points, then the points over them."""
    across, up = axes
    last = len(cells[0]) - 1
    places = [(round(across.place(x) * last), up.place(y)) for x, y in series.points]
    for (begin, low), (end, high) in pairwise(places):
        for column in range(begin + 1, end):
            height = low + (high - low) * (column - begin) / (end - begin)
            row = ROWS - 1 - round(height * (ROWS - 1))
            if cells[row][column] in (" ", LIMIT):
                cells[row][column] = LINE
    for column, height in places:
        cells[ROWS - 1 - round(height * (ROWS - 1))][column] = mark


def _label_columns(axis: Axis, columns: int) -> str:
    """The ticks' labels, without those that would touch the one before."""
    line = ""
    for tick in axis.ticks:
        label = _write(tick)
        begin = min(round(axis.place(tick) * (columns - 1)), columns - len(label))
        if not line or begin > len(line):
            line = line.ljust(begin) + label
    return line


def _wrap(words: Iterator[str], width: int) -> Sequence[str]:
    """Entries of the legend, as many in a line as fit."""
    lines = [""]
    for word in words:
        joined = f"{lines[-1]}   {word}" if lines[-1] else word
        if len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(word[:width])
    return lines
