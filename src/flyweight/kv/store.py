"""Blocks of K/V outside the pool, by key: on disk for the next start, or in memory that is not the
pool's (swap).

Invariant: what `load` gives for a key is what was saved for it; anything else is a miss.  A block
goes before its parent does, as it cannot be found without it; else the one used longest ago.
An error of the disk ends writing, never a request.
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import takewhile

from flyweight.kv.records import Head, RecordFile
from flyweight.wire import U8

SPARE = 64  # entries of the queue beyond four for each block
DAMAGED = 1 << 62  # an age that no store reaches: no checksum covers it


@dataclass(slots=True)
class Entry:
    """A block that is stored: its place in the file, and what orders it."""

    place: int
    parent: bytes
    depth: int
    used: int


class BlockStore:
    """The blocks of one `file`, which has as many bytes as `allow` admits.  `name` is for logs."""

    def __init__(self, file: RecordFile, allow: Callable[[int], bool], name: str) -> None:
        self.file, self.allow, self.name = file, allow, name
        self.entries: dict[bytes, Entry] = {}
        self.writing = True  # until an error of the disk
        self.clock = 1
        self._free: list[int] = []
        self._queue: list[tuple[int, int, bytes]] = []  # the next to go first; old entries stay
        self._count = 0  # records of the file
        self._told = False
        self._open()

    @property
    def size(self) -> int:
        """Bytes of one block."""
        return self.file.size

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks that are stored, with their heads."""
        return len(self.entries) * self.file.record

    def __contains__(self, key: bytes) -> bool:
        return key in self.entries

    def advance(self) -> None:
        """What is used from now on is newer than anything before."""
        self.clock += 1

    def load(self, key: bytes, out: U8) -> bool:
        """Copies a block to `out`; False where there is none, or it is damaged."""
        entry = self.entries.get(key)
        if entry is None:
            return False
        with suppress(OSError):
            if self.file.read(entry.place, key, out):
                return True
        self._drop(key)
        if not self._told:
            self._told = True
            _log(f"{self.name}: a damaged block was left out")
        return False

    def count_stored(self, keys: Iterable[bytes]) -> int:
        """How many of these keys are stored, from the first on; for any thread."""
        return sum(1 for _ in takewhile(self.entries.__contains__, keys))

    def read_shared(self, key: bytes, out: U8) -> bool:
        """As `load`, for other threads than the one that writes: changes nothing.  A record that is
        written meanwhile fails its checksum, and is a miss.
        """
        entry = self.entries.get(key)
        with suppress(OSError):
            return entry is not None and self.file.read(entry.place, key, out)
        return False

    def touch(self, keys: Iterable[bytes]) -> None:
        """These blocks are in use now."""
        for key in keys:
            entry = self.entries.get(key)
            if entry is None or entry.used == self.clock:
                continue
            self._set_used(key, entry)
            if self.writing:
                self._attempt(partial(self.file.mark_used, entry.place, self.clock))

    def save(self, key: bytes, parent: bytes, depth: int, data: U8) -> bool:
        """Stores a block, in the place of another where there is no room; whether it is stored."""
        if key in self.entries:
            return True
        try:
            place = self._find_place() if self.writing else None
        except OSError as error:  # the directory is gone
            self._end_writing(error)
            return False
        if place is None:
            return False
        head = Head(key, parent, depth, self.clock)
        if not self._attempt(partial(self.file.write, place, head, data)):
            self._free.append(place)
            return False
        self._add(head, place)
        self._renew_parents(parent)
        return True

    def clear(self) -> None:
        """Forgets all blocks."""
        self.entries.clear()
        self._queue.clear()
        self._free.clear()
        self._count = 0
        self._attempt(self.file.clear)

    def close(self) -> None:
        """Gives up the file, and its lock; a second call does nothing."""
        self.entries.clear()
        self.writing = False
        self.file.file.close()

    def _open(self) -> None:
        """Finds the blocks that the file holds, as far as they are allowed."""
        self._count = self.file.count()
        while self._count and not self.allow(self.file.count_bytes(self._count)):
            self._count -= 1
        if not self._count:
            self._attempt(self.file.clear)
            return
        self._attempt(partial(self.file.cut, self._count))
        for place in range(self._count):
            head = self.file.read_head(place)
            known = None if head is None else self.entries.get(head.key)
            if head is None or (known is not None and known.used >= head.used):
                self._free.append(place)
                continue
            if known is not None:
                self._free.append(known.place)
            self._add(head, place)
        self.clock = 1 + max((entry.used for entry in self.entries.values()), default=0)

    def _add(self, head: Head, place: int) -> None:
        used = head.used if head.used < DAMAGED else 0
        self.entries[head.key] = Entry(place, head.parent, head.depth, used)
        self._push(head.key, self.entries[head.key])

    def _push(self, key: bytes, entry: Entry) -> None:
        heappush(self._queue, (entry.used, -entry.depth, key))
        if len(self._queue) > 4 * len(self.entries) + SPARE:
            self._queue = [(e.used, -e.depth, k) for k, e in self.entries.items()]
            heapify(self._queue)

    def _set_used(self, key: bytes, entry: Entry) -> None:
        entry.used = self.clock
        self._push(key, entry)

    def _renew_parents(self, key: bytes) -> None:
        """No block is newer than its parent."""
        while (entry := self.entries.get(key)) is not None and entry.used < self.clock:
            self._set_used(key, entry)
            key = entry.parent

    def _find_place(self) -> int | None:
        """Where a record may be written; None where there is no room for any."""
        if not self._free:
            if self.allow(self.file.count_bytes(self._count + 1)):
                self._count += 1
                return self._count - 1
            self._drop_oldest()
        return self._free.pop() if self._free else None

    def _drop_oldest(self) -> None:
        while self._queue:
            used, depth, key = heappop(self._queue)
            entry = self.entries.get(key)
            if entry is not None and (entry.used, -entry.depth) == (used, depth):
                self._drop(key)
                return

    def _drop(self, key: bytes) -> None:
        self._free.append(self.entries.pop(key).place)

    def _attempt(self, write: Callable[[], None]) -> bool:
        """Whether it could be written; the first error ends all writing."""
        try:
            write()
        except OSError as error:
            self._end_writing(error)
            return False
        return True

    def _end_writing(self, error: OSError) -> None:
        self.writing = False
        _log(f"{self.name}: no more blocks are written: {error.strerror or error}")


def _log(message: str) -> None:
    logging.getLogger("flyweight").warning(message)
