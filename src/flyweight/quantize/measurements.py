"""Measurements of a choice of types, kept in the job's folder: a choice that was killed goes on.

Invariant: a measurement is found again only if its line was written whole; what follows the first
damaged line is measured again.  Does not know what is measured.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from flyweight.errors import ConfigError
from flyweight.quantize.journal import MEASURED, check_folder, refuse_other
from flyweight.validation.untrusted import read_bytes

Key = tuple[str, ...]


class MeasurementStore(Protocol):
    """What was measured, by key; a dict keeps it for one process."""

    def get(self, key: Key, /) -> float | None: ...
    def __setitem__(self, key: Key, value: float, /) -> None: ...
    def __len__(self) -> int: ...


class MeasurementFile:
    """Lines of JSON, each the words of a key and a number; the first names the job."""

    def __init__(self, file: int, end: int, found: dict[Key, float]) -> None:
        self._file, self._end, self._found = file, end, found

    def get(self, key: Key, /) -> float | None:
        return self._found.get(key)

    def __len__(self) -> int:
        return len(self._found)

    def __setitem__(self, key: Key, value: float, /) -> None:
        self.append([*key, value])
        self._found[key] = value

    def append(self, line: list[str | float]) -> None:
        """A line, on the disk when this returns."""
        data = json.dumps(line).encode() + b"\n"
        done = 0
        while done < len(data):  # a disk that fills takes a part
            done += os.pwrite(self._file, data[done:], self._end + done)
        os.fsync(self._file)
        self._end += len(data)


@contextmanager
def open_measurements(folder: Path, job: str) -> Iterator[MeasurementFile]:
    """The measurements of `job` in this folder, which is made where there is none.  Raises
    `ConfigError` for a folder of another job, and where it cannot be written.
    """
    try:
        folder.mkdir(exist_ok=True)
        check_folder(folder)
        path = folder / MEASURED
        data = read_bytes(path) if path.exists() else b""
        head, *rest = data.split(b"\n") if b"\n" in data else (b"",)
        if head and read_line(head) != ((job,), 0.0):
            raise refuse_other(folder)
        found, end = read_measurements(rest, len(head) + 1) if head else ({}, 0)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            os.ftruncate(file, end)
            made = MeasurementFile(file, end, found)
            if not end:
                made.append([job, 0.0])
            yield made
        finally:
            os.close(file)
    except OSError as error:
        raise ConfigError(
            f"cannot be written: {error.strerror or error}", "out", value=str(folder),
            hint="the same command goes on where it stopped",
        ) from error  # fmt: skip


def read_measurements(lines: list[bytes], start: int) -> tuple[dict[Key, float], int]:
    """Those of the whole lines, the last of which is followed by nothing; and where they end in the
    file that has them from `start` on.
    """
    found: dict[Key, float] = {}
    for line in lines[:-1]:
        read = read_line(line)
        if read is None:
            break
        found[read[0]] = read[1]
        start += len(line) + 1
    return found, start


def read_line(line: bytes) -> tuple[Key, float] | None:
    """None for what no measurement is."""
    try:
        *key, value = json.loads(line)
    except (ValueError, TypeError, RecursionError):
        return None
    whole = isinstance(value, float) and all(isinstance(word, str) for word in key)
    return (tuple(key), value) if whole else None
