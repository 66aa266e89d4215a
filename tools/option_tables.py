"""Writes the tables of docs/sampling.md from the declarations of `SamplingParams`.

    python tools/option_tables.py

A table stands between `<!-- options: NAME to NAME -->` and `<!-- end -->`.
"""

import re
from dataclasses import MISSING, fields
from pathlib import Path

from flyweight.params.options import SwitchOption, format_words
from flyweight.sampling_params import OPTIONS, SamplingParams

PAGE = Path(__file__).parents[1] / "docs" / "sampling.md"
TABLE = re.compile(r"(<!-- options: (\w+) to (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
HEAD = "| option | default | range | meaning |\n|---|---|---|---|\n"


def describe_default(value: object) -> str:
    """A default as a cell of a table."""
    if isinstance(value, tuple):
        return " ".join(f"`{one}`" if one.strip() else "newline" for one in value) or "()"
    return "{}" if value is MISSING else format_words(value)


def write_row(name: str) -> str:
    option = OPTIONS[name]
    default = next(f.default for f in fields(SamplingParams) if f.name == name)
    values = "" if isinstance(option, SwitchOption) else option.range
    meaning = f"{option.doc} {option.details}".strip()
    return f"| `{name}` | {describe_default(default)} | {values} | {meaning} |\n"


def write_table(found: re.Match[str]) -> str:
    names = list(OPTIONS)
    rows = names[names.index(found[2]) : names.index(found[3]) + 1]
    return found[1] + HEAD + "".join(map(write_row, rows)) + found[4]


def write_page(text: str) -> str:
    """The page with its tables written anew."""
    return TABLE.sub(write_table, text)


if __name__ == "__main__":
    PAGE.write_text(write_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
