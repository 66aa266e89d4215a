"""A GGUF file (version 3) that is laid out before its first tensor is known.

Invariant: header and offsets follow from names, types, shapes and metadata alone; tensors may
arrive in any order, in any pieces, over several runs of the program.  Format: ggml's docs/gguf.md.
Does not know what keys or tensors mean.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import pack
from typing import Any, Self

import numpy as np

from flyweight.errors import ConfigError
from flyweight.quantize.output.container import reserve, write_at
from flyweight.weights.formats import FORMATS
from flyweight.weights.gguf import (
    ARRAY,
    MAGIC,
    MOST_AXES,
    READABLE,
    SCALARS,
    STRING,
    GgufFile,
)

VERSION = 3
ALIGNMENT = 32
LONGEST_NAME = 63  # bytes of a tensor's name, as ggml allows
KINDS = {kind: code for code, kind in READABLE.items()}
CODES = {np.dtype(name): code for code, name in SCALARS.items()}
Metadata = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of the file: `kind` of `weights.formats.FORMATS`, shape [N, K], K whole blocks."""

    name: str
    kind: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return FORMATS[self.kind].count_bytes(self.shape)


class GgufWriter:
    """A file with these tensors; opened again with the same layout, it keeps what was written.

    Metadata values are what `weights.gguf` reads: NumPy scalars and arrays keep their type, int
    is written as the smallest of u32, i32, u64, i64 that holds it, float as f32, a sequence of
    strings as an array.  `room` are keys of strings that are filled later, and their bytes.
    """

    def __init__(
        self,
        path: Path,
        tensors: Iterable[GgufTensor],
        metadata: Metadata,
        room: Mapping[str, int] | None = None,
    ) -> None:
        self.path = path
        found = list(tensors)
        for tensor in found:
            _check_tensor(tensor)
        alignment = int(metadata.get("general.alignment", ALIGNMENT))  # type: ignore[call-overload]
        values = {**metadata, **{key: " " * size for key, size in (room or {}).items()}}
        head = MAGIC + pack("<IQQ", VERSION, len(found), len(values))
        self._room: dict[str, tuple[int, int]] = {}
        for key, value in values.items():
            head += _make_string(key) + make_value(value)
            if room and key in room:
                self._room[key] = len(head) - room[key], room[key]
        self._places: dict[str, tuple[int, int]] = {}
        end = 0
        for tensor in found:
            head += _make_entry(tensor, end)
            self._places[tensor.name] = end, tensor.nbytes
            end += -(-tensor.nbytes // alignment) * alignment
        assert len(self._places) == len(found), "two tensors have one name"
        head += b"\0" * (-len(head) % alignment)
        self._data, self.nbytes = len(head), len(head) + end
        self._file = reserve(path, self.nbytes)
        self._write_head(head)

    def write(self, name: str, data: bytes, offset: int = 0) -> None:
        """Bytes of a tensor, from an offset within it on."""
        begin, size = self._places[name]
        assert offset >= 0 and offset + len(data) <= size, name
        write_at(self._file, data, self._data + begin + offset)

    def fill(self, key: str, text: str) -> None:
        """Puts a text that ends in no space into its room, followed by spaces."""
        begin, size = self._room[key]
        write_at(self._file, _pad(key, text, size), begin)

    def sync(self) -> None:
        """Returns when everything written is on the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_head(self, head: bytes) -> None:
        """All but the room, which an earlier run may have filled."""
        at = 0
        for begin, size in sorted(self._room.values()):
            write_at(self._file, head[at:begin], at)
            if not os.pread(self._file, size, begin).strip(b"\0"):
                write_at(self._file, head[begin : begin + size], begin)
            at = begin + size
        write_at(self._file, head[at:], at)


def read_metadata(file: GgufFile) -> dict[str, object]:
    """A file's metadata with the types it has there, for a `GgufWriter`."""
    found: dict[str, object] = {}
    for key, value in file.metadata.items():
        at = file.places[key][0] + 8 + len(key.encode())
        code = int.from_bytes(file.file.copy(at, 4, key), "little")
        found[key] = value if code in (STRING, ARRAY) else np.dtype(SCALARS[code]).type(value)
    return found


def make_value(value: object) -> bytes:
    """Type and bytes of a metadata value."""
    if isinstance(value, str):
        return pack("<I", STRING) + _make_string(value)
    if isinstance(value, np.generic):
        return _make_scalar(value)
    if isinstance(value, bool):
        return _make_scalar(np.bool_(value))
    if isinstance(value, int):
        return _make_scalar(_fit(value))
    if isinstance(value, float):
        return _make_scalar(np.float32(value))
    if isinstance(value, np.ndarray):
        if value.dtype not in CODES or value.ndim != 1:
            raise TypeError(f"GGUF has no array of {value.dtype} with {value.ndim} axes")
        code, raw = CODES[value.dtype], value.astype(value.dtype.newbyteorder("<")).tobytes()
        return pack("<IIQ", ARRAY, code, len(value)) + raw
    if isinstance(value, Sequence):
        return pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(map(_make_string, value))
    raise TypeError(f"GGUF has no type for {type(value).__name__}")


def _make_scalar(value: np.generic) -> bytes:
    if value.dtype not in CODES:
        raise TypeError(f"GGUF has no type for {value.dtype}")
    raw = np.array(value).astype(value.dtype.newbyteorder("<")).tobytes()
    return pack("<I", CODES[value.dtype]) + raw


def _fit(value: int) -> np.generic:
    kinds: tuple[type[np.integer[Any]], ...] = (np.uint32, np.int32, np.uint64, np.int64)
    for kind in kinds:
        if np.iinfo(kind).min <= value <= np.iinfo(kind).max:
            return kind(value)
    raise TypeError(f"GGUF has no type for {value}")


def _make_string(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    return pack("<Q", len(raw)) + raw


def _make_entry(tensor: GgufTensor, offset: int) -> bytes:
    axes = b"".join(pack("<Q", n) for n in reversed(tensor.shape))
    head = _make_string(tensor.name) + pack("<I", len(tensor.shape)) + axes
    return head + pack("<IQ", KINDS[tensor.kind], offset)


def _check_tensor(tensor: GgufTensor) -> None:
    if len(tensor.name.encode()) > LONGEST_NAME:
        raise ConfigError(
            f"GGUF holds names of tensors of up to {LONGEST_NAME} bytes, not {tensor.name}"
        )
    fits = 1 <= len(tensor.shape) <= MOST_AXES and 0 not in tensor.shape
    assert fits and tensor.shape[-1] % FORMATS[tensor.kind].block == 0, tensor


def _pad(key: str, text: str, size: int) -> bytes:
    raw = text.encode()
    if len(raw) > size:
        raise ConfigError(f"{key} needs {len(raw)} bytes; the file has room for {size}")
    return raw + b" " * (size - len(raw))
