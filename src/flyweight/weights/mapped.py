"""A read-only memory map that hands out checked bytes and whole rows, and gives its pages back
after each read.

Invariant: no byte outside the file is ever read, and what is returned is a copy, blocks apart.
Knows no file format.
"""

import math
import mmap
import os
import stat
from contextlib import suppress
from hashlib import blake2b, sha256
from pathlib import Path

import numpy as np

from flyweight.errors import CheckpointError
from flyweight.ops.grouped import BlockRows
from flyweight.validation.untrusted import shown
from flyweight.weights.formats import FORMATS, Rows
from flyweight.weights.tensorinfo import Span
from flyweight.wire import U8

SAMPLES, SAMPLE_BYTES = 64, 4096
WHOLE_PART = 4 << 20  # bytes
Shape = tuple[int, ...]


class MappedFile:
    """One file.  Raises `CheckpointError` where it cannot be mapped, or a range is outside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lent = 0, 0  # the range whose pages a caller may still read
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would block
                raise CheckpointError(f"{path}: not a regular file")
            with open(path, "rb") as file:
                about = os.fstat(file.fileno())
                self.size, self.stamp = about.st_size, about.st_mtime_ns
                if self.size == 0:
                    raise CheckpointError(f"{path}: the file is empty")
                self._map = mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: {getattr(error, 'strerror', None) or error}") from None

    def copy(self, offset: int, count: int, what: str) -> bytes:
        """A copy of `count` bytes; `what` names them in the error."""
        if offset < 0 or count < 0 or count > self.size - offset:
            raise CheckpointError(
                f"{self.path}: {what} needs {count} bytes at offset {offset}, "
                f"but the file ends at {self.size}; it is truncated or damaged"
            )
        return self._map[offset : offset + count]

    @property
    def buffer(self) -> mmap.mmap:
        """The map itself, for loops that check their own bounds."""
        return self._map

    def read_rows(self, name: str, span: Span, start: int, stop: int) -> Rows:
        """Rows [start, stop) of a tensor, in canonical form; elements when it has one axis, and
        leading axes count as rows when it has more than two.
        """
        shape, offset, count = self._find_range(name, span, start, stop)
        parsed = FORMATS[span.kind].parse(self._read_view(offset, count), shape)
        self.drop(offset, count)
        return parsed

    def read_blocks(self, name: str, span: Span, start: int, stop: int) -> BlockRows:
        """Rows [start, stop) of a tensor of whole blocks, unchanged: a view, whose
        pages are given back at the next call.
        """
        self.drop(*self._lent)
        shape, offset, count = self._find_range(name, span, start, stop)
        self._lent = offset, count
        raw = self._read_view(offset, count).reshape(shape[0], -1)
        return BlockRows((shape[0], shape[1]), span.kind, raw)

    def _find_range(self, name: str, span: Span, start: int, stop: int) -> tuple[Shape, int, int]:
        """The shape of rows [start, stop), their offset and their bytes."""
        shape = span.shape or (1,)
        if len(shape) > 2:
            shape = (math.prod(shape[:-1]), shape[-1])
        if FORMATS[span.kind].quantised and len(shape) != 2:
            raise CheckpointError(
                f"{self.path}: {shown(name)} is {span.kind} of shape {list(shape)}; "
                "only matrices are read"
            )
        if not 0 <= start <= stop <= shape[0]:
            raise IndexError(f"rows {start} to {stop} of {name}, which has {shape[0]}")
        row = span.nbytes // shape[0] if shape[0] else 0
        return (stop - start, *shape[1:]), span.offset + start * row, (stop - start) * row

    def compute_digest(self, data: int, header: bytes | None = None) -> bytes:
        """Hash of the size, the first `data` bytes (or of the `header` that a file would have in
        their place), and evenly spread samples of the rest.
        """
        head = self._map[:data] if header is None else header
        size = len(head) + max(0, self.size - data)
        found = blake2b(size.to_bytes(8, "little") + head, digest_size=16)
        step = max(SAMPLE_BYTES, (self.size - data) // SAMPLES)
        for offset in (*range(data, self.size, step), max(data, self.size - SAMPLE_BYTES)):
            found.update(self._map[offset : offset + SAMPLE_BYTES])
        self.drop(0, self.size)
        return found.digest()

    def compute_whole_digest(self) -> bytes:
        """SHA-256 of all bytes, read in parts."""
        found = sha256()
        for offset in range(0, self.size, WHOLE_PART):
            found.update(self._map[offset : offset + WHOLE_PART])
            self.drop(offset, min(WHOLE_PART, self.size - offset))
        return found.digest()

    def close(self) -> None:
        with suppress(BufferError):  # a traceback may still hold a view; the map then goes with it
            self._map.close()

    def _read_view(self, offset: int, count: int) -> U8:
        return np.frombuffer(self._map, np.uint8, count, offset) if count else np.empty(0, np.uint8)

    def drop(self, offset: int, count: int) -> None:
        """Unmaps the pages just read, so that loading never holds a whole file in this process."""
        start = offset - offset % mmap.PAGESIZE
        if count and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, start, offset + count - start)
