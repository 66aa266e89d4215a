"""What a person sees while a server starts, and once it is ready: among it a small table of the
effective configuration, and a line each of what is on and off by default.

Invariant: on stderr; the last line of the banner holds the address, so that scripts can wait for
it.  `--json` puts the same on stdout, as one object.  Every feature is in the table or in a line,
13 lines at most; /v1/engine/effective has all of it.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from flyweight.arguments.draft import DEFAULT
from flyweight.cli.serve.choices import ServeChoice
from flyweight.passport import UNKNOWN
from flyweight.server.lifecycle.running import measure_age
from flyweight.server.observability.features import FeatureRow
from flyweight.validation.untrusted import printable

if TYPE_CHECKING:  # heavy modules are imported while the engine loads
    from flyweight.describe import ModelDescription
    from flyweight.plan.memory import MemoryPlan
    from flyweight.server import pipe
    from flyweight.server.api_server import ApiServer

PATIENT = 2.0  # seconds of loading before its progress is worth a line
EVERY = {True: 0.2, False: 5.0}  # seconds between lines, at a terminal and in a log


DECIDED = ("activations", "K/V cache", "context", "memory", "threads", "API key")  # always a row
MOST_ROWS = 9
WIDEST = 44  # characters of a request: a JSON object may be longer
NARROW = 20  # characters of a column that is cut, at least
GAP = 2  # characters between columns
ON, OFF = ("on", "always"), ("off", "none")


class ConfigRow(NamedTuple):
    feature: str
    requested: str
    effective: str
    reason: str


HEAD = ConfigRow("feature", "requested", "effective", "reason")


def sort_features(features: Sequence[FeatureRow]) -> tuple[list[ConfigRow], dict[str, str]]:
    """Rows, and lines of what has none, by their names."""
    own = [f for f in features if f.requested != DEFAULT or f.name in DECIDED]
    rows = [_row(feature) for feature in own]
    shared = [f for f in features if f not in own]
    off = [f.name for f in shared if f.effective in OFF]
    on = [f.name if f.effective in ON else f"{f.name} ({f.effective})"
          for f in shared if f.effective not in OFF]  # fmt: skip
    more = [f"{row.feature} {row.effective}" for row in rows[MOST_ROWS:]]
    lines = {"also": more, "on by default": on, "off by default": off}
    return rows[:MOST_ROWS], {name: ", ".join(words) for name, words in lines.items() if words}


def write_table(rows: Sequence[ConfigRow], lines: dict[str, str]) -> list[str]:
    """For a log: columns as wide as what is in them."""
    wide = _widths(rows)
    found = [
        "  ".join(f"{cell:<{size}}" for cell, size in zip(row, wide, strict=True)).rstrip()
        for row in (HEAD, *rows)
    ]
    return found + [f"{name}: {words}" for name, words in lines.items()]


def draw_table(rows: Sequence[ConfigRow], lines: dict[str, str], width: int) -> list[str]:
    """For a terminal of that width; in a narrow one, requests and reasons are cut."""
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
    """A row; an option that is a row of its own is shown by its value."""
    shown = feature.requested
    if feature.name.startswith("--"):
        shown = shown.removeprefix(feature.name).strip(" =") or "yes"
    if len(shown) > WIDEST:
        shown = shown[: WIDEST - 1] + "\u2026"
    return ConfigRow(*map(printable, (feature.name, shown, feature.effective, feature.reason)))


class Banner:
    """A `Shows` for people."""

    def __init__(self, choice: ServeChoice, out: TextIO | None = None) -> None:
        self.choice = choice
        self.out = out or sys.stderr
        self.began = time.monotonic()
        self.shown = 0.0  # when progress was last shown
        self.model = ""
        self.drawn = False  # whether the last line at the terminal is to be written over

    # --- while it loads ---

    def found(self, path: Path) -> None:
        self.model = printable(os.path.basename(os.path.abspath(path)))

    def show_plan(self, plan: MemoryPlan, found: ModelDescription) -> None:
        from flyweight.plan.memory import summarize

        self.say(f"{self.model}: {summarize(plan)}")

    def report_progress(self, done: int, total: int) -> None:
        self._bar("loading", done, total)

    def show_download(self, file: str, done: int, total: int) -> None:
        self._bar(f"fetching {printable(file)[-40:]}", done, total)

    def warn(self, message: str) -> None:
        self.say(f"warning: {printable(message)}")

    def note(self, message: str) -> None:
        self.say(printable(message))

    def show_progress(self, message: pipe.LoadingProgress) -> None:
        """What the engine's process says."""
        if message.what == "progress":
            self.report_progress(message.done, message.total)
        elif message.what == "plan":
            self.say(f"{self.model}: {message.text}")
        elif message.what == "warning":
            self.warn(message.text)
        else:
            self.note(message.text)

    def _bar(self, what: str, done: int, total: int) -> None:
        from flyweight.plan.memory import format_size

        now = time.monotonic()
        if now - self.began < PATIENT or now - self.shown < EVERY[self.out.isatty()]:
            return
        self.shown = now
        line = f"{what}: {format_size(done)} of {format_size(total)}"
        if self.out.isatty():
            self._write(f"\r{line}\x1b[K")
            self.drawn = True
        else:
            self.say(line)

    def say(self, line: str) -> None:
        begin = "\r\x1b[K" if self.drawn else ""
        self.drawn = False
        self._write(f"{begin}{line}\n")

    def _write(self, text: str) -> None:
        try:
            self.out.write(text)
            self.out.flush()
        except (OSError, ValueError):  # the reader is gone; the server goes on
            self.out = open(os.devnull, "w")  # noqa: SIM115

    # --- once it is ready ---

    def ready(self, server: ApiServer, port: int) -> None:
        model = server.directory.loaded[0]
        effective = model.effective
        summary, facts = effective.summary, effective.facts
        self.say(
            printable(
                f"{', '.join(model.names)}: {summary.family}, {summary.size} parameters, "
                f"{summary.quantisation}"
            )
        )
        if summary.quality != UNKNOWN:
            self.say(printable(f"quality: {summary.quality.describe()}"))
        rows, lines = sort_features(effective.features)
        at_terminal = self.out.isatty()
        columns = shutil.get_terminal_size().columns
        for line in draw_table(rows, lines, columns) if at_terminal else write_table(rows, lines):
            self.say(line)
        others = [entry.name for entry in server.directory.entries if entry.model is None]
        if others:
            self.say(printable(f"loaded when a request names them: {', '.join(others)}"))
        url = self.choice.server.url(port)
        seconds = measure_age(os.getpid())
        self.say(f"ready after {seconds:.2f} s on {url}")
        if self.choice.as_json:
            document = effective.document(model.counts)
            print(json.dumps(self._document(url, port, seconds, document, facts)))
            sys.stdout.flush()

    def _document(
        self, url: str, port: int, seconds: float, effective: dict[str, Any], facts: Any
    ) -> dict[str, Any]:
        return {
            "url": url,
            "port": port,
            "pid": os.getpid(),
            "ready_seconds": round(seconds, 3),
            "engine": facts,
            "effective": effective,
        }
