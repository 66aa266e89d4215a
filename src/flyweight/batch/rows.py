"""The input of a batch: a file's rows with their numbers, and which of them are answered.

Invariant: a row has the same number and the same bytes each time a file is read, and memory for a
few rows at a time is enough, whatever the file's size.  Knows no model.
"""

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, Protocol

from flyweight.errors import ConfigError

MAX_ROW = 8 << 20  # bytes; of a longer row the beginning is kept, and refused
BOM = b"\xef\xbb\xbf"


class Row(NamedTuple):
    """`data` is one JSON text; `position` is where its file is read from to get it first."""

    number: int
    position: int
    data: bytes

    @property
    def digest(self) -> int:
        """Of its bytes, 64 bits; never 0."""
        return int.from_bytes(blake2b(self.data, digest_size=8).digest()) or 1

    @property
    def id(self) -> str:
        return make_row_id(self.number, self.digest)


class RowAnswer(NamedTuple):
    """A row's line of the output, whether it is an error, and its tokens."""

    number: int
    line: bytes
    failed: bool
    prompt_tokens: int = 0
    completion_tokens: int = 0


class RowFile(Protocol):
    """A file of rows.  `read` starts with row `number`, at its `position`.  Raises `ConfigError`
    where the file cannot be read.
    """

    path: Path

    def read(self, number: int = 1, position: int = 0) -> Iterator[Row]: ...


class JsonLines:
    """A file with a row in each line, numbered as its lines are; blank lines are no rows."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, number: int = 1, position: int = 0) -> Iterator[Row]:
        with name_input(self.path), self.path.open("rb") as file:
            file.seek(position)
            while line := file.readline(MAX_ROW + 1):
                at, position = position, position + len(line)
                part = line
                while not part.endswith(b"\n") and (part := file.readline(MAX_ROW)):
                    position += len(part)
                if number == 1:
                    line = line.removeprefix(BOM)
                if line.strip():
                    yield Row(number, at, line.rstrip(b"\r\n"))
                number += 1


class RowIndex:
    """A digest for each row of a file, and whether it is answered: 8 bytes and a bit a row."""

    def __init__(self, file: RowFile) -> None:
        """Reads all of the file.  Raises `ConfigError`."""
        self.file = file
        self._digests = array("Q")
        for row in file.read():
            self._digests.extend([0] * (row.number - len(self._digests) - 1))
            self._digests.append(row.digest)
        self.rows = len(self._digests) - self._digests.count(0)
        self.done = 0
        self._done = bytearray(len(self._digests) // 8 + 1)

    def mark(self, number: int, digest: int, where: str) -> bool:
        """Notes that a row is answered; False if that was known.  Raises `ConfigError` where the
        file has no such row; `where` names the line with the answer.
        """
        if not self._has(number, digest):
            raise ConfigError(
                f"{where}: it answers a row {number} that {str(self.file.path)!r} does not have; "
                "give the input that the output was made from, or another output"
            )
        return self.finish(number)

    def finish(self, number: int) -> bool:
        """Notes that a row of the file is answered; False if that was known."""
        if self.is_done(number):
            return False
        self._done[number // 8] |= 1 << number % 8
        self.done += 1
        return True

    def is_done(self, number: int) -> bool:
        return bool(self._done[number // 8] >> number % 8 & 1)

    def read_pending(self) -> Iterator[Row]:
        """The rows that are not answered; rows that were added since are left out.  Raises
        `ConfigError` where a row has changed or is missing.
        """
        left = self.rows
        for row in self.file.read():
            if not left:
                return
            if not self._has(row.number, row.digest):
                raise self._make_change()
            left -= 1
            if not self.is_done(row.number):
                yield row
        if left:
            raise self._make_change()

    def _has(self, number: int, digest: int) -> bool:
        return 1 <= number <= len(self._digests) and self._digests[number - 1] == digest

    def _make_change(self) -> ConfigError:
        hint = "run the command again once no process writes the file"
        return ConfigError(
            "changed while it was read", "input", value=str(self.file.path), hint=hint
        )


def make_row_id(number: int, digest: int) -> str:
    """The `id` of an output line: it says which row it answers, and what that row was."""
    return f"batch_req_{number}_{digest:016x}"


def parse_row_id(text: str) -> tuple[int, int] | None:
    """The number and the digest of a row; None if this is no id of `make_row_id`."""
    name, _, rest = text.removeprefix("batch_req_").partition("_")
    if not name.isdecimal() or not name.isascii() or len(name) > 15 or len(rest) != 16:
        return None
    try:
        number, digest = int(name), int(rest, 16)
    except ValueError:
        return None
    return (number, digest) if make_row_id(number, digest) == text else None


@contextmanager
def name_input(path: Path) -> Iterator[None]:
    """Errors of the system name the input."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f": {error.strerror}", "input", value=str(path)) from None
