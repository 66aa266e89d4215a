"""The GGUF reader (versions 2 and 3, little-endian): metadata, the tensor table, and the place of
each tensor.

Invariant: every length, count, type, offset and alignment is checked against the file before it is
used, in integers that cannot overflow. Format: ggml's docs/gguf.md. Does not know what keys or
tensors mean.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flyweight.errors import CheckpointError
from flyweight.validation.strings import Strings
from flyweight.validation.untrusted import shown
from flyweight.weights.formats import FORMATS
from flyweight.weights.mapped import MappedFile
from flyweight.weights.tensorinfo import Span

READABLE = {
    0: "f32",
    1: "f16",
    2: "q4_0",
    3: "q4_1",
    6: "q5_0",
    7: "q5_1",
    8: "q8_0",
    10: "q2_k",
    11: "q3_k",
    12: "q4_k",
    13: "q5_k",
    14: "q6_k",
    16: "iq2_xxs",
    17: "iq2_xs",
    18: "iq3_xxs",
    19: "iq1_s",
    20: "iq4_nl",
    21: "iq3_s",
    22: "iq2_s",
    23: "iq4_xs",
    29: "iq1_m",
    30: "bf16",
    34: "tq1_0",
    35: "tq2_0",
    39: "mxfp4",
    40: "nvfp4",
}

NAMES = {
    9: "Q8_1",
    15: "Q8_K",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    41: "Q1_0",
}


MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_ENTRIES = 1 << 20  # keys, or tensors
MOST_ELEMENTS = 1 << 24  # of one metadata array; the largest vocabulary has 2^18
MOST_NAME = 1 << 16
MOST_STRING = 16 << 20  # bytes; the longest are chat templates
MOST_HEADER = 512 << 20  # bytes of metadata and tensor table; what fits a file need not fit memory
MOST_AXES = 4
MOST_ALIGNMENT = 1 << 16
HEAD = 24  # bytes before the first key: magic number, version, tensor count, key count
# Bytes: a key of one letter with one byte, a tensor of no letters with one axis.
LEAST_KEY, LEAST_TENSOR = 14, 32

SCALARS = {
    0: "u1",
    1: "i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
STRING, ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class GgufFile:
    """`metadata`: int, float, bool, str, `Strings`, or a NumPy array; `data` is where tensors
    begin, in bytes. Strings that are not valid UTF-8 carry their bytes as lone surrogates. Shapes
    are [N, K], ggml's order reversed. `places` are the bytes [begin, end) of each key with its
    value, the tensor table follows them and ends at `table`.
    """

    file: MappedFile
    data: int
    metadata: dict[str, object]
    spans: dict[str, Span]
    places: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    table: int = 0
    alignment: int = 32


def make_header(gguf: GgufFile, key: str, entry: bytes = b"") -> bytes:
    """The file's header, up to its data, without a key, or with `entry` in its place: the key as
    the last one, with its value.
    """
    place = gguf.places.get(key, (HEAD, HEAD))
    raw = gguf.file.copy(0, gguf.table, "the header")
    end = max((stop for _, stop in gguf.places.values()), default=HEAD)
    count = len(gguf.places) - (key in gguf.places) + bool(entry)
    keys = raw[HEAD : place[0]] + raw[place[1] : end]
    made = raw[: HEAD - 8] + count.to_bytes(8, "little") + keys + entry + raw[end:]
    return made + b"\0" * (-len(made) % gguf.alignment)


def make_string_entry(key: str, text: str) -> bytes:
    """A key with a string, as metadata has them."""
    name, value = key.encode(), text.encode()
    sizes = [len(part).to_bytes(8, "little") for part in (name, value)]
    return sizes[0] + name + STRING.to_bytes(4, "little") + sizes[1] + value


def read_gguf(path: Path, faults: list[str] | None = None) -> GgufFile:
    """Maps a file and checks metadata and tensor table; reads no tensor.  With `faults`, those of
    single tensors are added there, and the tensors left out.
    """
    file = MappedFile(path)
    try:
        cursor = _Cursor(file, faults)
        tensors, keys = _read_counts(cursor)
        metadata: dict[str, object] = {}
        places: dict[str, tuple[int, int]] = {}
        for _ in range(keys):
            begin = cursor.at
            key = _read_key(cursor, metadata)
            places[key] = begin, cursor.at
        alignment = _read_alignment(cursor, metadata)
        spans: dict[str, Span] = {}
        for _ in range(tensors):
            _read_tensor(cursor, spans)
        table = cursor.at
        data = -(-table // alignment) * alignment
        placed = _place(spans, cursor, data, alignment)
    except CheckpointError:
        file.close()
        raise
    file.drop(0, min(data, file.size))
    return GgufFile(file, data, metadata, placed, places, table, alignment)


class _Cursor:
    """Reads forward from `at`; every read is checked against the file's end."""

    def __init__(self, file: MappedFile, faults: list[str] | None = None) -> None:
        self.file, self.at, self.faults = file, 0, faults

    def report(self, message: str) -> None:
        """A fault of one tensor, after which the others can still be read."""
        if self.faults is None:
            raise self.fail(message)
        self.faults.append(message)

    def fail(self, message: str) -> CheckpointError:
        return CheckpointError(f"{self.file.path}: {message}")

    def take(self, count: int, what: str) -> bytes:
        if self.at + count > MOST_HEADER and count <= self.file.size - self.at:
            raise self.make_length_error(what)
        found = self.file.copy(self.at, count, what)
        self.at += count
        return found

    def read_u32(self, what: str) -> int:
        return int.from_bytes(self.take(4, what), "little")

    def read_u64(self, what: str) -> int:
        return int.from_bytes(self.take(8, what), "little")

    def make_length_error(self, what: str) -> CheckpointError:
        return self.fail(f"{what} ends past byte {MOST_HEADER}; metadata may not be longer")

    def read_string(self, what: str, most: int) -> bytes:
        length = self.read_u64(what)
        if length > most:
            raise self.fail(f"{what} of {length} bytes; at most {most}")
        return self.take(length, what)

    def read_name(self, what: str) -> str:
        try:
            return self.read_string(what, MOST_NAME).decode("utf-8")
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not valid UTF-8") from None

    def check_count(self, count: int, least: int, limit: int, what: str) -> None:
        """Refuses a count that cannot be true before anything is sized by it."""
        left = self.file.size - self.at
        if count > limit or count * least > left:
            raise self.fail(
                f"{what} = {count} cannot be true: {left} bytes are left, at most {limit} allowed"
            )


def _read_counts(cursor: _Cursor) -> tuple[int, int]:
    """(tensors, keys)"""
    magic = cursor.take(4, "the magic number")
    if magic != MAGIC:
        raise cursor.fail(f"begins with {magic!r}, not {MAGIC!r}: this is not a GGUF file")
    version = cursor.read_u32("the version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
        reason = "is big-endian" if swapped else f"has version {version}"
        raise cursor.fail(f"GGUF {reason}; readable: little-endian versions 2 and 3")
    tensors, keys = cursor.read_u64("the tensor count"), cursor.read_u64("the key count")
    cursor.check_count(tensors, LEAST_TENSOR, MOST_ENTRIES, "tensor count")
    cursor.check_count(keys, LEAST_KEY, MOST_ENTRIES, "key count")
    return tensors, keys


def _read_key(cursor: _Cursor, metadata: dict[str, object]) -> str:
    """Reads a key with its value, and returns its name."""
    key = cursor.read_name("a metadata key")
    if not key:
        raise cursor.fail("a metadata key is empty")
    if key in metadata:
        raise cursor.fail(f"metadata key {shown(key)} appears twice")
    where = f"metadata {shown(key)}"
    metadata[key] = _read_value(cursor, cursor.read_u32(where), where)
    return key


def _read_value(cursor: _Cursor, code: int, what: str) -> object:
    if code == STRING:
        return cursor.read_string(what, MOST_STRING).decode("utf-8", "surrogateescape")
    if code == ARRAY:
        return _read_array(cursor, what)
    return _read_numbers(cursor, code, 1, what)[0].item()


def _read_array(cursor: _Cursor, what: str) -> object:
    code, count = cursor.read_u32(what), cursor.read_u64(what)
    if code == STRING:
        return _read_strings(cursor, count, what)
    if code == ARRAY:
        raise cursor.fail(f"{what} is an array of arrays, which no model needs")
    return _read_numbers(cursor, code, count, what)


def _read_numbers(cursor: _Cursor, code: int, count: int, what: str) -> NDArray[Any]:
    if code not in SCALARS:
        raise cursor.fail(f"{what} has value type {code}; GGUF defines 0 to 12")
    dtype = np.dtype(SCALARS[code])
    cursor.check_count(count, dtype.itemsize, MOST_ELEMENTS, f"{what}: length")
    raw = cursor.take(count * dtype.itemsize, what)
    if dtype == np.bool_ and any(b > 1 for b in raw):
        raise cursor.fail(f"{what}: a truth value is neither 0 nor 1")
    return np.frombuffer(raw, dtype).astype(dtype.newbyteorder("="))


def _read_strings(cursor: _Cursor, count: int, what: str) -> Strings:
    """Scanned natively: vocabularies have 300,000 strings."""
    cursor.check_count(count, 8, MOST_ELEMENTS, f"{what}: length")
    end = min(cursor.file.size, MOST_HEADER)
    raw = np.frombuffer(cursor.file.buffer, np.uint8, max(0, end - cursor.at), cursor.at)
    found = Strings.scan(raw, 0, count, MOST_STRING)
    size = int(found.end[-1]) if len(found) else 0
    if len(found) < count:
        left = raw[size : size + 8].tobytes()
        length = int.from_bytes(left, "little") if len(left) == 8 else 0
        raise _cut_short(cursor, f"{what}: string {len(found)} of {count}", length)
    cursor.at += size
    return Strings(raw[:size].copy(), found.begin, found.end)


def _cut_short(cursor: _Cursor, what: str, length: int) -> CheckpointError:
    """Why a string of an array is not read: too long itself, past the file, or past our limit."""
    if length > MOST_STRING:
        return cursor.fail(f"{what} of {length} bytes; at most {MOST_STRING}")
    if cursor.file.size <= MOST_HEADER:
        size = cursor.file.size
        return cursor.fail(f"{what} ends past {size}; it is truncated or damaged")
    return cursor.make_length_error(what)


def _read_alignment(cursor: _Cursor, metadata: dict[str, object]) -> int:
    value = metadata.get("general.alignment", 32)
    if not isinstance(value, int) or not 0 < value <= MOST_ALIGNMENT or value & (value - 1):
        raise cursor.fail(
            f"general.alignment = {shown(value)}; a power of two up to {MOST_ALIGNMENT} expected"
        )
    return value


def _read_tensor(cursor: _Cursor, spans: dict[str, Span]) -> None:
    """One entry of the tensor table; its offset still counts from the data section."""
    name = cursor.read_name("a tensor's name")
    where = f"tensor {shown(name)}"
    axes = cursor.read_u32(where)
    if not 1 <= axes <= MOST_AXES:
        raise cursor.fail(f"{where} has {axes} axes; 1 to {MOST_AXES} expected")
    shape = tuple(cursor.read_u64(where) for _ in range(axes))[::-1]
    code, offset = cursor.read_u32(where), cursor.read_u64(where)
    if name in spans:
        cursor.report(f"{where} appears twice")
    elif 0 in shape:
        cursor.report(f"{where} has shape {list(shape)}; no axis may be empty")
    elif code not in READABLE:
        known = ", ".join(kind.upper() for kind in READABLE.values())
        cursor.report(f"{where} has type {NAMES.get(code, code)}; readable: {known}")
    elif shape[-1] % (form := FORMATS[READABLE[code]]).block:
        cursor.report(
            f"{where}: rows of {shape[-1]} elements are not whole {READABLE[code].upper()} "
            f"blocks of {form.block}"
        )
    else:
        spans[name] = Span(shape, READABLE[code], offset, form.count_bytes(shape))


def _place(spans: dict[str, Span], cursor: _Cursor, data: int, alignment: int) -> dict[str, Span]:
    """Offsets from the file's start, after checking that tensors are aligned, inside the file, and
    apart.
    """
    end, before = 0, ""
    placed: dict[str, Span] = {}
    for name, span in sorted(spans.items(), key=lambda item: item[1].offset):
        where = f"tensor {shown(name)}"
        ends = data + span.offset + span.nbytes
        if span.offset % alignment:
            cursor.report(
                f"{where} has offset {span.offset}, not a multiple of the alignment {alignment}"
            )
        elif span.offset < end:
            cursor.report(f"{where} overlaps {shown(before)}")
        elif ends > cursor.file.size:
            cursor.report(
                f"{where} ends at byte {ends}, but the file ends at {cursor.file.size}; "
                "it is truncated or damaged"
            )
        else:
            placed[name] = Span(span.shape, span.kind, data + span.offset, span.nbytes)
            end, before = span.offset + span.nbytes, name
    return {name: placed[name] for name in spans if name in placed}  # in the table's order
