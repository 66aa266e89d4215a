"""The server's log: a line per request and event, as text or JSON, on stderr or in a bounded file.

Invariant: logging never waits for the reader: lines go through a bounded queue, and lost ones are
counted.  A value is one word of printable ASCII; prompts, answers, keys and query strings are never
logged.  A log file and the one before it (PATH.1) are bounded, readable by this user only, and
locked by the process that writes them.
"""

import fcntl
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol
from urllib.parse import quote

import msgspec

from flyweight.errors import ConfigError

LONGEST = 200  # characters of a value
QUEUE = 10_000  # lines
PLAIN = "/:@+,;=*()[]<>'!"  # what a value may hold besides letters, digits and -._~
LogFields = Mapping[str, object]
OPTION = "--log-file"
FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK  # no waiting for a pipe's reader
OWNER = 0o600
STDERR = 2


class WritesLines(Protocol):
    """Where lines go: the used part of a text file."""

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
        """Waits for the written lines, for so long at most."""
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
                self.lost += 1  # the reader is gone


def _flush(to: WritesLines) -> None:
    """Drops what cannot be written, so that a full disk does not change the exit code."""
    try:
        to.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), to.fileno())


def format_line(form: str, when: float, name: str, facts: LogFields) -> str:
    """An entry as a line."""
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


class LogFile:
    """The part of a text file that `ServerLog` uses."""

    def __init__(self, path: Path, most: int) -> None:
        """Raises `ConfigError` where it cannot be written, or another process writes it."""
        self.path, self.most = path, most
        self._file = open_locked(path)

    def write(self, text: str) -> None:
        """Raises `OSError`."""
        raw = text.encode("utf-8", "backslashreplace")
        if os.fstat(self._file).st_size + len(raw) > self.most:
            self._rotate()
        while raw:
            raw = raw[os.write(self._file, raw) :]

    def flush(self) -> None:
        """Nothing is buffered."""

    def fileno(self) -> int:
        return self._file

    def close(self) -> None:
        os.close(self._file)

    def _rotate(self) -> None:
        """Begins a new file.  If that fails, the file is emptied: the limit holds."""
        new, older = (self.path.with_name(self.path.name + end) for end in (".new", ".1"))
        with suppress(OSError):
            new.unlink(missing_ok=True)
            file = os.open(new, FLAGS | os.O_EXCL, OWNER)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                older.unlink(missing_ok=True)
                os.link(self.path, older)
                os.rename(new, self.path)
            except OSError:
                os.close(file)
                raise
            was, self._file = self._file, file
            self._follow(was)
            os.close(was)
            return
        os.ftruncate(self._file, 0)

    def _follow(self, was: int) -> None:
        """If stderr is the same file, makes it the new one, as a separate open file: child
        processes inherit no lock.
        """
        if os.path.sameopenfile(was, STDERR):
            own = os.open(self.path, FLAGS)
            os.dup2(own, STDERR)
            os.close(own)


def open_locked(path: Path) -> int:
    """The open file, locked by this process.  Raises `ConfigError`."""
    while True:
        try:
            file = os.open(path, FLAGS, OWNER)
        except OSError as error:
            raise ConfigError(
                f"{OPTION} {path}: {error.strerror}; give a file in a folder you may write to"
            ) from None
        try:
            if not os.path.isfile(path):
                raise ConfigError(f"{OPTION} {path} is no plain file; give one, or a new name")
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file), os.stat(path)):
                return file
        except BlockingIOError:
            os.close(file)
            raise ConfigError(
                f"{OPTION} {path} is written by another server; give each a file of its own"
            ) from None
        except FileNotFoundError:  # taken away meanwhile
            pass
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # it has just become the older one
