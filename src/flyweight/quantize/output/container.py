"""A safetensors file that is laid out before its first tensor is known.

Invariant: the header is written first and never changes; every tensor has its place, and bytes may
arrive in any order.  Format: huggingface.co/docs/safetensors.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from flyweight.errors import ConfigError
from flyweight.weights.formats import FORMATS
from flyweight.weights.safetensors import BITS, KINDS

DTYPES = {kind: name for name, kind in KINDS.items() if name != "BOOL"}  # as headers spell them
ALIGNMENT = 8  # of the data section, as the format requires


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """A tensor of the file: its name, kind (`weights.tensorinfo`) and shape."""

    name: str
    kind: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        if self.kind in BITS:
            return math.prod(self.shape) * BITS[self.kind] // 8
        return FORMATS[self.kind].count_bytes(self.shape)  # GGUF's types


class SafetensorsWriter:
    """A file with these tensors; opened again, it keeps what was written."""

    def __init__(
        self, path: Path, entries: Iterable[OutputTensor], metadata: Mapping[str, str]
    ) -> None:
        self.path = path
        header: dict[str, object] = {"__metadata__": dict(metadata)}
        self._places: dict[str, tuple[int, int]] = {}
        end = 0
        for entry in entries:
            header[entry.name] = {
                "dtype": DTYPES[entry.kind],
                "shape": list(entry.shape),
                "data_offsets": [end, end + entry.nbytes],
            }
            self._places[entry.name] = (end, entry.nbytes)
            end += entry.nbytes
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % ALIGNMENT)
        self._data, self.nbytes = 8 + len(text), 8 + len(text) + end
        self._file = reserve(path, self.nbytes)
        os.pwrite(self._file, len(text).to_bytes(8, "little") + text, 0)

    def write(self, name: str, data: bytes, offset: int = 0) -> None:
        """Bytes of a tensor, from an offset within it on."""
        begin, size = self._places[name]
        assert offset + len(data) <= size, name
        write_at(self._file, data, self._data + begin + offset)

    def sync(self) -> None:
        """Returns when everything written is on the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def reserve(path: Path, nbytes: int) -> int:
    """Opens a file to be written in place, with space on the disk for all of it.  Raises
    `ConfigError` where the disk has less.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.posix_fallocate(file, 0, max(1, nbytes))
        os.ftruncate(file, nbytes)
    except OSError as error:
        os.close(file)
        raise ConfigError(
            f"needs {nbytes} bytes: {error.strerror}", "out", value=str(path.parent)
        ) from None
    return file


def write_at(file: int, data: bytes, offset: int) -> None:
    """All of the bytes: one call may write fewer."""
    view = memoryview(data)
    while view:
        done = os.pwrite(file, view, offset)
        view, offset = view[done:], offset + done
