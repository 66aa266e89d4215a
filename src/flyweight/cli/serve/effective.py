"""The ledger of effective settings for people: a small table of what was asked for or decided, and
a line each of what is on and off by default.

Invariant: every feature of the ledger is in it once; it has 13 lines at most, however many options
were given.  The whole of it is at /v1/engine/effective.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import NamedTuple

from flyweight.arguments.wishes import DEFAULT
from flyweight.server.observability.effective_config import FeatureRow
from flyweight.validation.untrusted import printable

DECIDED = ("activations", "K/V cache", "context", "memory", "threads", "API key")  # always a row
MOST_ROWS = 9
WIDEST = 44  # characters of what was asked: a JSON object may be longer
NARROW = 20  # what is left of a column that gives way, at least
GAP = 2  # characters between columns
ON, OFF = ("on", "always"), ("off", "none")


class ConfigRow(NamedTuple):
    feature: str
    requested: str
    effective: str
    reason: str


HEAD = ConfigRow("feature", "requested", "effective", "reason")


def table(features: Sequence[FeatureRow]) -> tuple[list[ConfigRow], dict[str, str]]:
    """Rows, and lines of what has none, by their names."""
    told = [f for f in features if f.requested != DEFAULT or f.name in DECIDED]
    rows = [_row(feature) for feature in told]
    shared = [f for f in features if f not in told]
    off = [f.name for f in shared if f.effective in OFF]
    on = [f.name if f.effective in ON else f"{f.name} ({f.effective})"
          for f in shared if f.effective not in OFF]  # fmt: skip
    more = [f"{row.feature} {row.effective}" for row in rows[MOST_ROWS:]]
    lines = {"also": more, "on by default": on, "off by default": off}
    return rows[:MOST_ROWS], {name: ", ".join(words) for name, words in lines.items() if words}


def plain(rows: Sequence[ConfigRow], lines: dict[str, str]) -> list[str]:
    """For a log: columns as wide as what is in them."""
    wide = _widths(rows)
    found = [
        "  ".join(f"{cell:<{size}}" for cell, size in zip(row, wide, strict=True)).rstrip()
        for row in (HEAD, *rows)
    ]
    return found + [f"{name}: {words}" for name, words in lines.items()]


def drawn(rows: Sequence[ConfigRow], lines: dict[str, str], width: int) -> list[str]:
    """For a terminal of that width: where it is too narrow, what was asked and why give way."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    wide = _widths(rows)
    if sum(wide) + 3 * GAP > width:
        wide[1] = min(wide[1], NARROW)
        wide[3] = min(wide[3], max(NARROW, width - sum(wide[:3]) - 3 * GAP))
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name, style, size in zip(HEAD, ("bold", "", "green", "dim"), wide, strict=True):
        made.add_column(name, style=style, width=size, no_wrap=True, overflow="ellipsis")
    for row in rows:
        made.add_row(*row)
    out = io.StringIO()
    least = sum(wide) + 3 * GAP
    console = Console(file=out, force_terminal=True, width=least, markup=False, emoji=False)
    console.print(made, highlight=False)
    for name, words in lines.items():
        console.print(f"{name}: {words}", style="dim", highlight=False, soft_wrap=True)
    return out.getvalue().rstrip("\n").split("\n")


def _widths(rows: Sequence[ConfigRow]) -> list[int]:
    return [max(map(len, column)) for column in zip(HEAD, *rows, strict=True)]


def _row(feature: FeatureRow) -> ConfigRow:
    """An option that is a row of its own has its value beside it."""
    asked = feature.requested
    if feature.name.startswith("--"):
        asked = asked.removeprefix(feature.name).strip(" =") or "yes"
    if len(asked) > WIDEST:
        asked = asked[: WIDEST - 1] + "\u2026"
    return ConfigRow(*map(printable, (feature.name, asked, feature.effective, feature.reason)))
