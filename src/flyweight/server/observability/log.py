"""The server's log: a line a request and a line an event, on stderr or in a file, as text or JSON.

Invariant: whoever says something never waits for whoever reads: lines go through a queue of bounded
length, and what does not fit is counted.  A value is one word of printable ASCII, whatever it was;
prompts, answers, keys and query strings are never given to this room.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import SimpleQueue
from typing import Protocol
from urllib.parse import quote

import msgspec

LONGEST = 200  # characters of a value
QUEUE = 10_000  # lines
PLAIN = "/:@+,;=*()[]<>'!"  # what a value may hold besides letters, digits and -._~
Told = Mapping[str, object]


class WritesLines(Protocol):
    """Where lines go: a text file, as far as it is used here."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> None: ...
    def fileno(self) -> int: ...


class ServerLog:
    """One server's log; `form` is one of `settings.LOG_FORMATS`."""

    def __init__(
        self,
        form: str = "text",
        to: WritesLines | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.form, self.to, self.clock = form, to, clock
        self.lost = 0  # lines there was no room for
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._writer: threading.Thread | None = None

    def event(self, name: str, /, **facts: object) -> None:
        """`name` is what happened; facts that are None are left out."""
        if self._lines.qsize() >= QUEUE:
            self.lost += 1
            return
        if self.lost:
            lost, self.lost = self.lost, 0
            self._lines.put(format_line(self.form, self.clock(), "log_lost", {"lines": lost}))
        self._lines.put(format_line(self.form, self.clock(), name, facts))
        if self._writer is None:
            self._writer = threading.Thread(target=self._write, name="log", daemon=True)
            self._writer.start()

    def close(self, seconds: float = 1.0) -> None:
        """Waits until what was said is written, for so long at most."""
        if self._writer is not None:
            self._lines.put(None)
            self._writer.join(seconds)
        _flush(self.to or sys.stderr)

    def _write(self) -> None:
        to = self.to or sys.stderr
        while (text := self._lines.get()) is not None:
            try:
                to.write(text)
                to.flush()
            except (OSError, ValueError):
                self.lost += 1  # nobody reads any more


def _flush(to: WritesLines) -> None:
    """What cannot be written is dropped: an exit code tells of the server, not of a full disk."""
    try:
        to.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), to.fileno())


def format_line(form: str, when: float, name: str, facts: Told) -> str:
    """An entry as it is written."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(when)) + f".{int(when % 1 * 1000):03d}Z"
    known = {key: value for key, value in facts.items() if value is not None}
    if form == "json":
        clean = {
            key: value if isinstance(value, bool | int | float) else escape(str(value))
            for key, value in known.items()
        }
        return msgspec.json.encode({"time": stamp, "event": name, **clean}).decode() + "\n"
    words = " ".join(f"{key}={format_value(value)}" for key, value in known.items())
    return f"{stamp} {name} {words}\n"


def format_value(value: object) -> str:
    """A value without spaces, quotes, control characters or anything a terminal would act on."""
    if isinstance(value, bool | int | float):
        return str(value)
    text = str(value)[:LONGEST]
    if " " in text and text.isascii() and text.isprintable():
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return quote(text, safe=PLAIN, errors="backslashreplace")


def escape(text: str) -> str:
    """Text without control characters, and not too long."""
    text = text[:LONGEST]
    return text if text.isascii() and text.isprintable() else quote(text, safe=PLAIN + " ")
