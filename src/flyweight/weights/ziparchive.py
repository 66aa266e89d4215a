"""The places of the members of a zip archive, for archives whose members are stored as they are.

Invariant: every size and offset of the archive's directory is checked against the file before use,
and no member reaches out of it.  Format: PKWARE's APPNOTE 6.3.9, ZIP64 included.  Reads no member.
"""

from collections.abc import Iterator
from struct import unpack_from

from flyweight.errors import CheckpointError
from flyweight.validation.untrusted import shown
from flyweight.weights.mapped import MappedFile

MAGIC = b"PK\x03\x04"
END, END64, LOCATOR, ENTRY = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07", b"PK\x01\x02"
MOST_MEMBERS = 1 << 17
MOST_DIRECTORY = 64 << 20
MOST_COMMENT = 0xFFFF
FULL16, FULL32 = 0xFFFF, 0xFFFFFFFF  # "see ZIP64"
ENCRYPTED = 1
ZIP64 = 1  # the kind of extra field


def list_members(file: MappedFile) -> dict[str, tuple[int, int]]:
    """Name to (offset, bytes) of every member."""
    count, size, start = _find_directory(file)
    if count > MOST_MEMBERS or not 46 * count <= size <= MOST_DIRECTORY:
        raise _fail(
            file,
            f"{count} members in a directory of {size} bytes; at most {MOST_MEMBERS} members and "
            f"{MOST_DIRECTORY} bytes",
        )
    raw = file.copy(start, size, "the archive's directory")
    found: dict[str, tuple[int, int]] = {}
    for name, offset, length in _read_entries(file, raw, count):
        if name in found:
            raise _fail(file, f"{shown(name)} is twice in the archive")
        found[name] = _find_data(file, name, offset), length
        file.copy(found[name][0] + length, 0, shown(name))
    return found


def _find_directory(file: MappedFile) -> tuple[int, int, int]:
    """(members, bytes, offset) of the archive's directory."""
    first = max(0, file.size - 22 - MOST_COMMENT)
    tail = file.copy(first, file.size - first, "the archive's end")
    at = tail.rfind(END)
    if at < 0 or len(tail) - at < 22:
        raise _fail(file, "the archive has no end; the file is truncated or damaged")
    count, size, start = unpack_from("<HII", tail, at + 10)
    if count == FULL16 or FULL32 in (size, start):
        locator = file.copy(first + at - 20, 20, "the ZIP64 locator")
        place = unpack_from("<Q", locator, 8)[0] if locator[:4] == LOCATOR else 0
        whole = file.copy(place, 56, "the ZIP64 end")
        if whole[:4] != END64:
            raise _fail(file, "the archive's ZIP64 end is not where it should be")
        count, size, start = unpack_from("<QQQ", whole, 32)
    return count, size, start


def _read_entries(file: MappedFile, raw: bytes, count: int) -> Iterator[tuple[str, int, int]]:
    """(name, offset of its header, bytes) of every member, which must be stored as it is."""
    at = 0
    for _ in range(count):
        if raw[at : at + 4] != ENTRY or len(raw) - at < 46:
            raise _fail(file, "the archive's directory is damaged")
        flags, method = unpack_from("<HH", raw, at + 8)
        packed, size, name_size, extra_size, comment = unpack_from("<IIHHH", raw, at + 20)
        offset = unpack_from("<I", raw, at + 42)[0]
        name = raw[at + 46 : at + 46 + name_size].decode("utf-8", "backslashreplace")
        extra = raw[at + 46 + name_size : at + 46 + name_size + extra_size]
        at += 46 + name_size + extra_size + comment
        if at > len(raw):
            raise _fail(file, "the archive's directory is damaged")
        if method or flags & ENCRYPTED:
            how = "encrypted" if flags & ENCRYPTED else f"compressed (method {method})"
            raise _fail(file, f"{shown(name)} is {how}; members that are stored as they are, only")
        size, packed, offset = _read_wide_sizes(extra, [size, packed, offset])
        if size != packed:
            raise _fail(file, f"{shown(name)} has {size} bytes in {packed}; it is damaged")
        yield name, offset, size


def _read_wide_sizes(extra: bytes, values: list[int]) -> list[int]:
    """Sizes and offsets beyond 32 bits are in an extra field, in this order."""
    at = 0
    while at + 4 <= len(extra):
        kind, size = unpack_from("<HH", extra, at)
        field = extra[at + 4 : at + 4 + size]
        if kind == ZIP64:
            longs = iter(unpack_from(f"<{len(field) // 8}Q", field))
            return [next(longs, v) if v == FULL32 else v for v in values]
        at += 4 + size
    return values


def _find_data(file: MappedFile, name: str, offset: int) -> int:
    """Where a member's bytes begin: after its header, its name and its extra field."""
    header = file.copy(offset, 30, f"the header of {shown(name)}")
    if header[:4] != MAGIC:
        raise _fail(file, f"{shown(name)} has no header at byte {offset}; the file is damaged")
    name_size, extra_size = unpack_from("<HH", header, 26)
    return offset + 30 + int(name_size) + int(extra_size)


def _fail(file: MappedFile, message: str) -> CheckpointError:
    return CheckpointError(f"{file.path}: {message}")
