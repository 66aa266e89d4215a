"""The output of a batch: a line for each answered row, appended; on a restart it says what is done.

Invariant: a line that ends in a line feed is whole, so a process that is killed at any byte loses
at most the line it was writing.  Nothing but such a line is ever removed: a file with any other
content is refused.  One process writes at a time.
"""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, Self

import msgspec

from flyweight.batch.rows import RowIndex, parse_row_id
from flyweight.errors import ConfigError

BEGINS = b'{"id":"batch_req_'
OWNER_WRITES = 0o666  # less what the umask removes


class _WrittenLine(msgspec.Struct):
    """What is read of a line that was written before."""

    id: str
    error: Any = None


class OutputFile:
    """Opened to append; `failed` are the lines with an error that it has."""

    def __init__(self, path: Path) -> None:
        """Raises `ConfigError` where it cannot be written, or another process writes it."""
        self.path, self.failed = path, 0
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        with name_output(path):
            self._file = os.open(path, flags, OWNER_WRITES)
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            self.close()
            raise ConfigError("is not a regular file", "output", value=str(path))
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            problem = "is being written by another process"
            raise ConfigError(problem, "output", value=str(path)) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._file)

    def recover(self, index: RowIndex) -> None:
        """Marks the rows that are answered, and removes a line that was not written to its end.
        Raises `ConfigError` where the file is not an output for these rows.
        """
        size = 0
        with name_output(self.path), open(os.dup(self._file), "rb") as file:
            file.seek(0)
            for number, line in enumerate(_read_lines(file), 1):
                where = f"output {str(self.path)!r}, line {number}"
                found = self._read_line(line, where)
                if found is not None:
                    id = parse_row_id(found.id)
                    if id is None:
                        raise self._make_refusal(where)
                    self.failed += index.mark(*id, where) and found.error is not None
                    size += len(line)
            if size < os.fstat(self._file).st_size:
                os.ftruncate(self._file, size)
            elif size and not line.endswith(b"\n"):
                self.append(b"\n")

    def append(self, line: bytes) -> None:
        """Writes a line.  Raises `ConfigError`."""
        with name_output(self.path):
            while line:
                line = line[os.write(self._file, line) :]

    def finish(self) -> None:
        """All rows are answered."""

    def _read_line(self, line: bytes, where: str) -> _WrittenLine | None:
        """A line that was written before; None if it was not written to its end."""
        try:
            return msgspec.json.decode(line, type=_WrittenLine)
        except msgspec.DecodeError:
            torn = not line.endswith(b"\n")
            if torn and (line.startswith(BEGINS) or BEGINS.startswith(line)):
                return None
            raise self._make_refusal(where) from None

    def _make_refusal(self, where: str) -> ConfigError:
        return ConfigError(f"{where}: this is not a line of a batch's output; give another output")


def _read_lines(file: BufferedReader) -> Iterator[bytes]:
    while line := file.readline():
        yield line


@contextmanager
def name_output(path: Path) -> Iterator[None]:
    """Errors of the system name the output."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f": {error.strerror}", "output", value=str(path)) from None
