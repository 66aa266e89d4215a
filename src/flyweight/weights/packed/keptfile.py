"""A kept file: the offset of each packed matrix and the key that names it, its strict reader,
its checksums, and the writer that streams matrices into it.

    magic 8, boot 16, key 32, count 8, SHA-256 of key and checksums 32; a checksum of 32 a matrix
    zeros up to a huge page, then the tiles, each matrix on a cache line

Invariant: owner, size, key, count and checksums' digest are as expected, or the file is not used.
What was written in an earlier boot may not have reached the disk, so it is believed only once its
checksums were verified in this one.  Places follow from the model's plan alone: a file holds no
offset, no size and no name that would have to be trusted.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from mmap import ACCESS_READ, mmap
from pathlib import Path
from struct import Struct

import numpy as np

from flyweight import _native
from flyweight.errors import CheckpointError
from flyweight.spec import WeightPlan
from flyweight.wire import U8

HUGE_PAGE = 2 << 20  # bytes; data begin on one
CACHE_LINE = 64  # each matrix begins on one
HEAD = 96  # bytes before the checksums
DIGEST = 32  # bytes of a checksum

Matrix = tuple[str, tuple[int, int], str]  # slot, shape [N, K], kind


@dataclass(frozen=True, slots=True)
class MatrixPlace:
    """One packed matrix: `nbytes` bytes from `offset` on."""

    slot: str
    shape: tuple[int, int]
    kind: str
    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        return self.offset + self.nbytes

    @property
    def range(self) -> slice:
        return slice(self.offset, self.end)


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """A kept file: what it must be called by (`key`), and its matrices in loading order."""

    key: bytes
    places: tuple[MatrixPlace, ...]

    @property
    def start(self) -> int:
        """Where data begin."""
        return _round_up(HEAD + DIGEST * len(self.places), HUGE_PAGE)

    @property
    def size(self) -> int:
        """Bytes of the whole file, whole huge pages."""
        return _round_up(self.places[-1].end if self.places else self.start, HUGE_PAGE)

    @property
    def data(self) -> int:
        return sum(place.nbytes for place in self.places)


def lay_out(
    key: bytes, matrices: Iterable[Matrix], nbytes: Callable[[tuple[int, int], str], int]
) -> PackedLayout:
    """One matrix after the other."""
    found = list(matrices)
    at = _round_up(HEAD + DIGEST * len(found), HUGE_PAGE)
    places = []
    for slot, shape, kind in found:
        place = MatrixPlace(slot, shape, kind, at, nbytes(shape, kind))
        places.append(place)
        at = _round_up(place.end, CACHE_LINE)
    return PackedLayout(key, tuple(places))


def make_key(fingerprint: str, stamps: Iterable[int], plan: WeightPlan, packing: str) -> bytes:
    """What a kept file is made from: the model's files (their headers, sizes and samples are in the
    `fingerprint`; `stamps` are the times of their last change), the plan, and the layout of tiles.
    """
    found = sha256()
    for part in (fingerprint, ",".join(map(str, stamps)), repr(plan.slots), packing):
        found.update(f"{len(part)}:{part}".encode())
    return found.digest()


def _round_up(count: int, to: int) -> int:
    return -(-count // to) * to


MAGIC = b"FWTILES1"
FIELDS = Struct("<8s16s32sQ32s")
BOOT_AT = len(MAGIC)
NEVER = bytes(16)  # the boot of a file that was never verified
CHUNK = 8 << 20  # bytes written at once: whole huge pages, so that the file is kept in such
MOST_PIECES = 512  # in one call; systems take 1,024
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

assert FIELDS.size == HEAD


@dataclass(frozen=True, slots=True)
class PackedHead:
    """What a kept file says of itself."""

    boot: bytes
    checksums: tuple[bytes, ...]


def read_boot_id() -> bytes:
    """Names this run of the system; `NEVER` where it has no name."""
    try:
        return bytes.fromhex(BOOT_ID.read_text().strip().replace("-", "")).ljust(16, b"\0")[:16]
    except (OSError, ValueError):
        return NEVER


def read_head(file: int, layout: PackedLayout) -> PackedHead:
    """Raises `CheckpointError` unless the file is the one `layout` means, whole."""
    about = os.fstat(file)
    if not _is_trusted(about.st_uid):
        raise CheckpointError("it belongs to another user")
    if about.st_size != layout.size:
        raise CheckpointError(f"it has {about.st_size} bytes; {layout.size} expected")
    raw = os.pread(file, HEAD, 0)
    if len(raw) != HEAD:
        raise CheckpointError("its header is cut short")
    magic, boot, key, count, digest = FIELDS.unpack(raw)
    if magic != MAGIC or key != layout.key or count != len(layout.places):
        raise CheckpointError("its header is not that of this model")
    table = os.pread(file, DIGEST * count, HEAD)
    if sha256(key + table).digest() != digest:
        raise CheckpointError("its header is damaged")
    return PackedHead(boot, tuple(table[i : i + DIGEST] for i in range(0, len(table), DIGEST)))


def _is_trusted(owner: int) -> bool:
    """Who else could write a file would say what a model answers."""
    return owner in (os.geteuid(), 0)


def write_head(file: int, layout: PackedLayout, head: PackedHead) -> None:
    table = b"".join(head.checksums)
    digest = sha256(layout.key + table).digest()
    os.pwrite(
        file, FIELDS.pack(MAGIC, head.boot, layout.key, len(head.checksums), digest) + table, 0
    )


def mark_verified(path: Path) -> None:
    """The file is believed until the system restarts."""
    with suppress(OSError), _open_file(path, os.O_WRONLY) as file:
        os.pwrite(file, read_boot_id(), BOOT_AT)


def find_damaged(
    file: int, layout: PackedLayout, head: PackedHead, threads: int
) -> list[MatrixPlace]:
    """Matrices whose bytes are not those that were written."""
    held = np.frombuffer(mmap(file, layout.size, access=ACCESS_READ), np.uint8)
    with ThreadPoolExecutor(threads) as pool:  # sums and reading leave the interpreter free
        found = pool.map(lambda place: _native.checksum(held[place.range]), layout.places)
        pairs = zip(layout.places, found, head.checksums, strict=True)
        return [place for place, now, written in pairs if now != written]


class PackedWriter:
    """Writes a file's matrices in order, in chunks of whole huge pages."""

    def __init__(self, file: int, layout: PackedLayout) -> None:
        self._file, self._layout = file, layout
        self._at = layout.start  # of the file; what waits follows
        self._waiting: list[memoryview] = []
        self._fill = 0  # bytes that wait
        self._checksums: list[bytes] = []

    def add(self, tiles: U8) -> None:
        """The next matrix.  Raises `OSError`."""
        place = self._layout.places[len(self._checksums)]
        assert tiles.nbytes == place.nbytes, place.slot
        self._put(memoryview(bytes(place.offset - self._at - self._fill)))
        self._checksums.append(_native.checksum(tiles))
        self._put(tiles.data)

    def finish(self) -> None:
        """The file becomes whole.  Raises `OSError`."""
        assert len(self._checksums) == len(self._layout.places)
        self._flush()
        os.ftruncate(self._file, self._layout.size)
        write_head(self._file, self._layout, PackedHead(read_boot_id(), tuple(self._checksums)))

    def _put(self, raw: memoryview) -> None:
        while len(raw):
            count = min(len(raw), CHUNK - self._fill)
            self._waiting.append(raw[:count])
            self._fill += count
            raw = raw[count:]
            if self._fill == CHUNK or len(self._waiting) == MOST_PIECES:
                self._flush()

    def _flush(self) -> None:
        while self._waiting:
            count = os.pwritev(self._file, self._waiting, self._at)
            self._at += count
            while self._waiting and count >= len(self._waiting[0]):
                count -= len(self._waiting.pop(0))
            if count:
                self._waiting[0] = self._waiting[0][count:]
        self._fill = 0


@contextmanager
def _open_file(path: Path, flags: int) -> Iterator[int]:
    file = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield file
    finally:
        os.close(file)


def open_verified(
    path: Path, layout: PackedLayout, threads: int, use: Callable[[int], None]
) -> None:
    """Opens a file, checks it, and hands its descriptor to `use`.  Raises `OSError` where it cannot
    be read, `CheckpointError` where it must not be believed.
    """
    with _open_file(path, os.O_RDONLY) as file:
        head = read_head(file, layout)
        if head.boot == NEVER or head.boot != read_boot_id():
            refuse_damage(file, layout, head, threads)
            mark_verified(path)
        use(file)


def refuse_damage(file: int, layout: PackedLayout, head: PackedHead, threads: int) -> None:
    bad = find_damaged(file, layout, head, threads)
    if bad:
        slots = ", ".join(place.slot for place in bad[:5])
        raise CheckpointError(f"{len(bad)} of its matrices are damaged: {slots}")


def check_file(path: Path, layout: PackedLayout, threads: int) -> None:
    """Verifies every checksum.  Raises as `open_verified` does."""
    with _open_file(path, os.O_RDONLY) as file:
        refuse_damage(file, layout, read_head(file, layout), threads)
    mark_verified(path)
