"""A file of fixed-size records, each the K/V of one block under its key.

A record is its head (`HEAD` bytes) and its data.  Data is written first, then the head, whose
checksum covers both.  `used` is the one field that is written alone: it orders records by age.

Invariant: after a crash at any byte, and with any byte changed, a record is read as it was written,
or not at all.  Reads and writes are `pread` and `pwrite`: a file that others cut short, or a disk
with errors, gives an `OSError` or a short read, where a mapping would end the process.
"""

import os
import struct
from dataclasses import dataclass
from zlib import crc32

from flyweight.wire import U8

MAGIC = b"flyweight K/V 1\n"
START = 4096  # of the first record; before it, what the file is for
HEAD = 128
ABOUT = struct.Struct("<16s32sQ")  # magic, fingerprint, bytes of data
FIELDS = struct.Struct("<32s32sIII")  # key, parent, depth, checksums of data and of all before
USED = struct.Struct("<Q")
USED_AT = 96  # within a head
ALIGN = 64


@dataclass(frozen=True, slots=True)
class Head:
    """What a record says of its data: the key, its parent's, and how many blocks go before."""

    key: bytes
    parent: bytes
    depth: int
    used: int

    def pack(self, data_sum: int) -> bytes:
        named = FIELDS.pack(self.key, self.parent, self.depth, data_sum, 0)[:-4]
        whole = named + crc32(named).to_bytes(4, "little")
        return whole.ljust(USED_AT, b"\0") + USED.pack(self.used).ljust(HEAD - USED_AT, b"\0")


def read_head(raw: bytes) -> tuple[Head, int] | None:
    """A head and its data's checksum; None for bytes that are no head."""
    if len(raw) < HEAD:
        return None
    key, parent, depth, data_sum, own_sum = FIELDS.unpack_from(raw)
    if own_sum != crc32(raw[: FIELDS.size - 4]):
        return None
    return Head(key, parent, depth, USED.unpack_from(raw, USED_AT)[0]), data_sum


class OwnedFile:
    """An open file, with its locks, until it is closed, or has no user any more."""

    def __init__(self, number: int) -> None:
        self.number = number

    def close(self) -> None:
        number, self.number = self.number, -1
        if number >= 0:
            os.close(number)

    def __del__(self) -> None:
        self.close()


class RecordFile:
    """A file of records of `size` bytes of data; `fingerprint` (32 bytes) says whose they
    are.  Errors of the disk are raised as `OSError`.
    """

    def __init__(self, file: OwnedFile, size: int, fingerprint: bytes) -> None:
        self.file, self.size = file, size
        self.record = -(-(HEAD + size) // ALIGN) * ALIGN
        about = ABOUT.pack(MAGIC, fingerprint, size)
        self._about = about + crc32(about).to_bytes(4, "little")

    def count(self) -> int:
        """Records that the file has, of which the last may be cut; none where it is of anything
        else.
        """
        if os.pread(self.file.number, len(self._about), 0) != self._about:
            return 0
        beyond = max(0, os.fstat(self.file.number).st_size - START)
        return -(-beyond // self.record)

    def count_bytes(self, records: int) -> int:
        """The file's size with so many records."""
        return START + records * self.record

    def clear(self) -> None:
        """Removes all records."""
        os.ftruncate(self.file.number, 0)
        write_all(self.file.number, self._about, 0)

    def cut(self, records: int) -> None:
        """Removes the records from this one on."""
        os.ftruncate(self.file.number, self.count_bytes(records))

    def read_head(self, place: int) -> Head | None:
        """The head of a record whose data may be damaged."""
        found = read_head(os.pread(self.file.number, HEAD, self.count_bytes(place)))
        return found[0] if found else None

    def read(self, place: int, key: bytes, out: U8) -> bool:
        """Reads the data of a key; False where the record is not of this key, or damaged."""
        raw = bytearray(HEAD)
        got = os.preadv(self.file.number, [raw, out.data], self.count_bytes(place))
        found = read_head(bytes(raw))
        if got != HEAD + self.size or found is None:
            return False
        head, data_sum = found
        return head.key == key and crc32(out.data) == data_sum

    def write(self, place: int, head: Head, data: U8) -> None:
        """Raises `OSError`; what the record held before is then lost."""
        where = self.count_bytes(place)
        write_all(self.file.number, data.data, where + HEAD)
        write_all(self.file.number, head.pack(crc32(data.data)), where)

    def mark_used(self, place: int, used: int) -> None:
        """Sets the age of a record."""
        write_all(self.file.number, USED.pack(used), self.count_bytes(place) + USED_AT)


def write_all(descriptor: int, data: bytes | memoryview, where: int) -> None:
    """Writes all bytes at an offset.  Raises `OSError`."""
    view = memoryview(data)
    while len(view):
        done = os.pwrite(descriptor, view, where)
        view, where = view[done:], where + done
