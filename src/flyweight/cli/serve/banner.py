"""What a person sees while a server starts, and once it is ready.

Invariant: on stderr; the last line of the banner holds the address, so that scripts can wait for
it.  `--json` puts the same on stdout, as one object.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from flyweight.cli.serve.choices import ServeChoice
from flyweight.cli.serve.effective import drawn, plain, table
from flyweight.server.lifecycle.running import measure_age
from flyweight.validation.untrusted import printable

if TYPE_CHECKING:  # what is heavy is imported beside the engine
    from flyweight.describe import ModelDescription
    from flyweight.plan.memory import MemoryPlan
    from flyweight.server import pipe
    from flyweight.server.api_server import ApiServer

PATIENT = 2.0  # seconds of loading before its progress is worth a line
EVERY = {True: 0.2, False: 5.0}  # seconds between lines, at a terminal and in a log


class Banner:
    """A `Shows` for people."""

    def __init__(self, choice: ServeChoice, out: TextIO | None = None) -> None:
        self.choice = choice
        self.out = out or sys.stderr
        self.began = time.monotonic()
        self.shown = 0.0  # when progress was last told of
        self.model = ""
        self.drawn = False  # whether the last line at the terminal is to be written over

    # --- while it loads ---

    def found(self, path: Path) -> None:
        self.model = printable(os.path.basename(os.path.abspath(path)))

    def planned(self, plan: MemoryPlan, found: ModelDescription) -> None:
        from flyweight.plan.memory import summarize

        self.say(f"{self.model}: {summarize(plan)}")

    def progress(self, done: int, total: int) -> None:
        self._bar("loading", done, total)

    def fetching(self, file: str, done: int, total: int) -> None:
        self._bar(f"fetching {printable(file)[-40:]}", done, total)

    def warn(self, message: str) -> None:
        self.say(f"warning: {printable(message)}")

    def note(self, message: str) -> None:
        self.say(printable(message))

    def show_progress(self, message: pipe.LoadingProgress) -> None:
        """What the engine's process says."""
        if message.what == "progress":
            self.progress(message.done, message.total)
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
        except (OSError, ValueError):  # nobody reads any more; the server goes on
            self.out = open(os.devnull, "w")  # noqa: SIM115

    # --- once it is ready ---

    def ready(self, server: ApiServer, port: int) -> None:
        model = server.find()
        ledger = model.effective
        portrait, facts = ledger.portrait, ledger.facts
        self.say(
            printable(
                f"{', '.join(model.names)}: {portrait.family}, {portrait.size} parameters, "
                f"{portrait.quantisation}"
            )
        )
        rows, lines = table(ledger.features)
        at_terminal = self.out.isatty()
        columns = shutil.get_terminal_size().columns
        for line in drawn(rows, lines, columns) if at_terminal else plain(rows, lines):
            self.say(line)
        url = self.choice.server.url(port)
        seconds = measure_age(os.getpid())
        self.say(f"ready after {seconds:.2f} s on {url}")
        if self.choice.as_json:
            effective = ledger.document(model.counts)
            print(json.dumps(self._document(url, port, seconds, effective, facts)))
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
