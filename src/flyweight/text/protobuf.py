"""Fields out of a Protocol Buffers message: as much of the wire format as SentencePiece's files
use.

Invariant: every length is checked against the message before it is used; a damaged message is a
`CheckpointError`.  Does not know what fields mean.
"""

from collections.abc import Iterator
from struct import unpack

from flyweight.errors import CheckpointError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
LONGEST_VARINT = 10  # bytes

Field = tuple[int, int | float | bytes]


def read_fields(message: bytes) -> Iterator[Field]:
    """Every field as (number, value): a whole number, a float32, or the bytes of a string or a
    message.
    """
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = _read_varint(message, at)
            yield number, value
            continue
        size = {FIXED64: 8, FIXED32: 4}.get(kind)
        if kind == BYTES:
            size, at = _read_varint(message, at)
        if size is None or size > len(message) - at:
            raise CheckpointError(f"a field of kind {kind} at byte {at} does not fit the message")
        part, at = message[at : at + size], at + size
        yield number, unpack("<f", part)[0] if kind == FIXED32 else part


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for i, byte in enumerate(message[at : at + LONGEST_VARINT]):
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, at + i + 1
    raise CheckpointError(f"a number at byte {at} has no end")
