"""A log in a file of bounded size: when it is full it becomes the older one, and a new one begins.

Invariant: the file and the older one, PATH.1, hold so many bytes each at most; only this user reads
them; one process writes, which a lock on the file says to others.  The file is there at any time,
so that no other writer can come in between.  What is written is not known here.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from flyweight.errors import ConfigError

OPTION = "--log-file"
FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK  # no waiting for a pipe's reader
OWNER = 0o600
STDERR = 2


class LogFile:
    """As much of a text file as `Log` writes to."""

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
        """Nothing is held back."""

    def fileno(self) -> int:
        return self._file

    def close(self) -> None:
        os.close(self._file)

    def _rotate(self) -> None:
        """Begins a new file.  Where that cannot be, what there is goes: the bound holds."""
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
        """A standard error that was the same file is the new one too, as a description of its own:
        what inherits it inherits no lock.
        """
        if os.path.sameopenfile(was, STDERR):
            own = os.open(self.path, FLAGS)
            os.dup2(own, STDERR)
            os.close(own)


def open_locked(path: Path) -> int:
    """The open file, which no other process has locked.  Raises `ConfigError`."""
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
