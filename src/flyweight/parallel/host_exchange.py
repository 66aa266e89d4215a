"""Collectives between ranks of one host: arrays in shared memory, and a byte through a pipe when
they are there.

Each rank has two slots of the memory, which it uses in turn.  It writes its array, sends all other
ranks a byte, waits for theirs, and reads their arrays.  It writes to the same slot two exchanges
later: by then every rank has sent the byte of the exchange between, and so has read this one.  The
byte orders memory and wakes a rank that sleeps; a pipe that is closed is a rank that has ended.

Invariant: every rank makes the same calls in the same order; sums are added in the order of ranks.
Knows no torch and no model.
"""

import os
import select
import shutil
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from mmap import mmap
from pathlib import Path
from tempfile import mkdtemp
from typing import Protocol

import numpy as np

from flyweight.wire import F32, I32

SLOT = 1 << 17  # floats of a slot; longer arrays are exchanged in parts
STAMPS = 1 << 14  # bytes before the slots: when each rank arrived
SPIN = 1e-3  # seconds in which a rank looks for the others before it sleeps
SHARED = Path("/dev/shm")
TOLD = b"\1"


class SetupGroup(Protocol):
    """Ranks that are connected already."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def all_reduce(self, x: F32) -> F32: ...
    def broadcast(self, numbers: I32 | None) -> I32: ...


class HostExchange:
    """One rank of `size`.  `waited` are the seconds in which another rank had not made the same
    call.
    """

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        """Opens what `_make_folder` has made; `connect` follows once all ranks have.  Raises
        `OSError`, on another host too.
        """
        self.waited, self._rank, self._turn = 0.0, rank, 0
        self._folder, self._others = folder, [i for i in range(size) if i != rank]
        with (folder / "memory").open("r+b") as file:
            memory = mmap(file.fileno(), 0)
        self._stamps = np.frombuffer(memory, np.float64, 2 * size).reshape(2, size)
        slots = np.frombuffer(memory, np.float32, 2 * size * SLOT, STAMPS)
        self._slots = slots.reshape(2, size, SLOT)
        self._reads, self._writes = list[int](), list[int]()
        self.close = weakref.finalize(self, _close_all, (self._reads, self._writes))
        for other in self._others:
            name = folder / f"{other}-{rank}"
            self._reads.append(os.open(name, os.O_RDONLY | os.O_NONBLOCK))

    def connect(self) -> None:
        """Raises `OSError` where a rank has ended."""
        for other in self._others:
            name = self._folder / f"{self._rank}-{other}"
            self._writes.append(os.open(name, os.O_WRONLY | os.O_NONBLOCK))

    def all_reduce(self, x: F32) -> F32:
        """The sum of all ranks' arrays of one shape."""
        flat = np.ascontiguousarray(x).reshape(-1)
        total = np.empty_like(flat)
        for part, slots in self._exchange(flat):
            np.add(slots[0], slots[1], out=total[part])
            for other in slots[2:]:
                np.add(total[part], other, out=total[part])
        return total.reshape(x.shape)

    def gather(self, x: F32) -> list[F32]:
        """Every rank's x, all of one shape."""
        found = np.empty((len(self._others) + 1, x.size), np.float32)
        for part, slots in self._exchange(np.ascontiguousarray(x).reshape(-1)):
            found[:, part] = slots
        return [one.reshape(x.shape) for one in found]

    def broadcast(self, numbers: I32 | None) -> I32:
        """Rank 0's numbers, on every rank; the others give None."""
        count = 0 if numbers is None else len(numbers)
        (count,) = self._gather_first(np.array([count], np.int32)).tolist()
        return self._gather_first(np.zeros(count, np.int32) if numbers is None else numbers)

    def _gather_first(self, numbers: I32) -> I32:
        return self.gather(numbers.view(np.float32))[0].view(np.int32)

    def _exchange(self, flat: F32) -> Iterator[tuple[slice, F32]]:
        """Parts of an array, and every rank's values of each, [size, n], which are read before the
        next part is requested.
        """
        for start in range(0, len(flat), SLOT):
            part = slice(start, min(start + SLOT, len(flat)))
            stamps, slots = self._stamps[self._turn], self._slots[self._turn]
            slots = slots[:, : part.stop - start]
            self._turn = 1 - self._turn
            stamps[self._rank] = arrived = time.perf_counter()  # one clock for all processes
            slots[self._rank] = flat[part]
            self._meet()
            self.waited += max(stamps.tolist()) - arrived
            yield part, slots

    def _meet(self) -> None:
        """Sends all others a byte, and waits for theirs.  Raises `OSError` where one has ended."""
        for pipe in self._writes:
            os.write(pipe, TOLD)
        late = time.perf_counter() + SPIN
        for pipe in self._reads:
            _read_byte(pipe, late)


def open_exchange(group: SetupGroup, address: str) -> HostExchange | None:
    """For ranks that all have this address of their host, and may share memory; None for others.
    Raises `OSError` where one has ended.
    """
    folder = _make_folder(group.size) if group.rank == 0 else None
    try:
        text = f"{address}\n{folder or ''}".encode()
        numbers = np.frombuffer(text, np.uint8).astype(np.int32)
        told = group.broadcast(numbers if group.rank == 0 else None)
        host, _, path = bytes(told.tolist()).decode().partition("\n")
        found = None
        if path and host == address:
            with suppress(OSError):
                found = HostExchange(Path(path), group.rank, group.size)
        came = group.all_reduce(np.array([found is not None], np.float32))
        if found is None or came[0] < group.size:
            return None
        found.connect()
        group.all_reduce(came)  # from here on a pipe without a writer is a rank that has ended
        return found
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _make_folder(size: int) -> Path | None:
    """With the memory, and a pipe from each rank to each other.  Only this user can open it.  None
    where it cannot be made.
    """
    folder = None
    try:
        parent = SHARED if SHARED.is_dir() else None
        folder = Path(mkdtemp(prefix="flyweight-ranks-", dir=parent))
        with (folder / "memory").open("xb") as file:
            os.posix_fallocate(file.fileno(), 0, STAMPS + 2 * size * SLOT * 4)
        for rank in range(size):
            for other in range(size):
                os.mkfifo(folder / f"{rank}-{other}", 0o600)
    except BaseException as broken:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(broken, (OSError, AttributeError)):  # macOS reserves no memory
            return None
        raise
    return folder


def _read_byte(pipe: int, late: float) -> None:
    """Sleeps where there is none before `late`."""
    while True:
        try:
            told = os.read(pipe, 1)
        except BlockingIOError:
            if time.perf_counter() < late:
                os.sched_yield()  # another rank may need this core
            else:
                waiting = select.poll()
                waiting.register(pipe, select.POLLIN)
                waiting.poll()
            continue
        if not told:
            raise ConnectionResetError("its pipe is closed")
        return


def _close_all(pipes: Iterable[Sequence[int]]) -> None:
    for pipe in (one for each in pipes for one in each):
        os.close(pipe)
