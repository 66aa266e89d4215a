"""The help of a command: its usage line, its arguments, and where lines break.

Invariant: an argument is `MODEL`, or `[MODEL]` if it may be left out; no line breaks inside a word,
such as the name of an option.  Knows no option.
"""

from collections.abc import Iterable
from typing import Any

import typer
from typer.core import TyperCommand

UNBROKEN = "\u2011"  # a hyphen that the formatter breaks no line at


def make_group(**given: Any) -> typer.Typer:
    """A group of commands."""
    settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
    return typer.Typer(rich_markup_mode=None, context_settings=settings, **given)


class WholeWords:
    """A formatter of typer that breaks lines between words only."""

    def __init__(self, formatter: Any) -> None:
        self._formatter = formatter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._formatter, name)

    def write_text(self, text: str) -> None:
        self._formatter.write_text(text.replace("-", UNBROKEN))

    def write_dl(self, rows: Iterable[tuple[str, str]], **given: Any) -> None:
        kept = [(name, text.replace("-", UNBROKEN)) for name, text in rows]
        self._formatter.write_dl(kept, **given)

    def getvalue(self) -> str:
        return str(self._formatter.getvalue()).replace(UNBROKEN, "-")


class HelpCommand(TyperCommand):
    """A command whose help has its arguments and options in sections."""

    REST = "Options"  # the section of options that name none

    def get_help(self, ctx: Any) -> str:
        formatter = WholeWords(ctx.make_formatter())
        self.format_help(ctx, formatter)  # type: ignore[arg-type]
        return formatter.getvalue().rstrip("\n")

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [param for param in self.params if param.param_type_name == "argument"]
        return ["[OPTIONS]", *map(format_argument, arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            title, name = getattr(param, "rich_help_panel", None) or self.REST, record[0]
            if param.param_type_name == "argument":
                title, name = "Arguments", format_argument(param)
            sections.setdefault(title, []).append((name, record[1]))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def format_argument(param: Any) -> str:
    """How the usage line writes an argument."""
    name = str(param.metavar)
    return name if param.required or name.startswith("[") else f"[{name}]"
