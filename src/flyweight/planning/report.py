"""What a command of `plan`, `prove` or `advise` has found: tables with notes, and a plot.

Invariant: a report holds plain values, so that the terminal, JSON and SVG say the same; how a value
is written for people is its column's `show`.  A value that is not known is None, never 0.  Prints
nothing and knows no terminal; `cli/reports.py` renders.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flyweight.planning.plots import LinePlot

Value = str | int | float | bool | None
UNKNOWN = "-"  # how a value that is not known is written, unless its column says otherwise


def show_plain(value: Any) -> str:
    """Text unchanged, numbers with at most four significant digits, yes and no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class Column:
    """`key` names the value in JSON, `title` heads the column, `show` writes a value that is known;
    numbers are aligned to the right.
    """

    key: str
    title: str
    show: Callable[[Any], str] = show_plain
    unknown: str = UNKNOWN

    def write(self, value: Value) -> str:
        return self.unknown if value is None else self.show(value)


@dataclass(frozen=True, slots=True)
class ReportTable:
    """Rows of values, one a column.  `name` is the table's in JSON; `strong` rows are what a reader
    should see first.
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Value]]
    notes: Sequence[str] = ()
    strong: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), self.name

    def list_records(self) -> list[dict[str, Value]]:
        """The rows as JSON has them."""
        keys = [column.key for column in self.columns]
        return [dict(zip(keys, row, strict=True)) for row in self.rows]


@dataclass(frozen=True, slots=True)
class Report:
    """`notes` are sentences about everything: sources, what was assumed."""

    title: str
    tables: Sequence[ReportTable]
    notes: Sequence[str] = ()
    plot: LinePlot | None = None

    def make_document(self) -> dict[str, Any]:
        """The report for scripts."""
        tables = {
            table.name: {
                "title": table.title,
                "rows": table.list_records(),
                "notes": list(table.notes),
            }
            for table in self.tables
        }
        document: dict[str, Any] = {"title": self.title, "tables": tables}
        document["notes"] = list(self.notes)
        if self.plot is not None:
            document["plot"] = self.plot.make_document()
        return document
