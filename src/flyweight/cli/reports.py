"""A report on stdout: tables for people, JSON, a plot in characters; a plot as an SVG file.

Invariant: stdout holds one of the forms, and all of them hold the same values.  Computes nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flyweight.errors import ConfigError

if TYPE_CHECKING:  # commands import what computes when they run
    from rich.console import Console

    from flyweight.planning.report import Report, ReportTable, Value

WIDEST_PLOT = 100  # characters


@dataclass(frozen=True, slots=True)
class ReportOutput:
    """The form of a report without a plot."""

    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False

    def show(self, report: Report) -> None:
        """Prints the report."""
        if self.as_json:
            print(json.dumps(report.make_document(), indent=1, ensure_ascii=False))
        else:
            print_tables(report)


@dataclass(frozen=True, slots=True)
class PlotOutput:
    """The form of a report with a plot."""

    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False
    plot: Annotated[bool, typer.Option("--plot", help="Draw the plot below the tables.")] = False
    svg: Annotated[
        str | None, typer.Option("--svg", metavar="FILE", help="File to write the plot to, as SVG.")
    ] = None

    def check(self) -> None:
        """Raises `ConfigError`; to be called before anything is computed."""
        if self.as_json and self.plot:
            raise ConfigError("json and plot exclude each other; the JSON has the plot's points")
        if self.svg is not None and not Path(self.svg).expanduser().parent.is_dir():
            raise ConfigError("is in a folder that does not exist", "svg", value=self.svg)

    def show(self, report: Report) -> None:
        """Prints the report, and writes its plot."""
        ReportOutput(self.as_json).show(report)
        if self.plot:
            print_plot(report)
        if self.svg is not None:
            write_svg(report, self.svg)


def print_tables(report: Report) -> None:
    """Every table with its notes; the report's own notes are last."""
    from flyweight.cli.show import make_console

    console = make_console()
    for table in report.tables:
        print_table(console, table)
    for note in report.notes:
        console.print(note, highlight=False)


def print_table(console: Console, table: ReportTable) -> None:
    from flyweight.cli.show import make_table

    drawn = make_table(table.title, *(column.title for column in table.columns))
    for shown, column in zip(drawn.columns, range(len(table.columns)), strict=True):
        if is_numeric([row[column] for row in table.rows]):
            shown.justify = "right"
    for i, row in enumerate(table.rows):
        words = [column.write(value) for column, value in zip(table.columns, row, strict=True)]
        drawn.add_row(*words, style="bold" if i in table.strong else None)
    console.print(drawn if table.rows else f"{table.title}: none")
    for note in table.notes:
        console.print(note, highlight=False, style="dim")
    if table.notes:
        console.print()


def is_numeric(values: list[Value]) -> bool:
    """Whether every known value is a number."""
    known = [value for value in values if value is not None]
    return bool(known) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in known
    )


def print_plot(report: Report) -> None:
    from flyweight.cli.show import make_console
    from flyweight.planning.text_plot import draw_text

    if report.plot is None:
        print("There is no plot of these values.")
        return
    console = make_console()
    drawn = draw_text(report.plot, min(console.width, WIDEST_PLOT))
    console.print(drawn, highlight=False, soft_wrap=True)


def write_svg(report: Report, file: str) -> None:
    """Raises `ConfigError` where the file cannot be written."""
    from flyweight.planning.svg import draw_lines

    if report.plot is None:
        raise ConfigError("cannot be written: there is no plot of these values", "svg", value=file)
    try:
        Path(file).expanduser().write_text(draw_lines(report.plot), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", "svg", value=file) from None
