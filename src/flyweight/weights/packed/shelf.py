"""Where the loader looks for a matrix before it packs one, and stores it afterwards: packed weights
from a kept file, or into one.

Invariant: a load never fails for a kept file; what goes wrong is reported to `note`.  All
matrices are requested, or stored, in the layout's order.

A mapping is there at once, but is decoded from more slowly than anonymous huge pages.  So its pages
move while nothing runs, and a share of them with each step, which reads them all once
(`LayerPrefetch`).  No weight's bytes or address change.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from flyweight.errors import CheckpointError
from flyweight.ops.base import Packing
from flyweight.ops.operands import Weight
from flyweight.weights.packed.folder import CacheFolder
from flyweight.weights.packed.keptfile import PackedLayout, PackedWriter, check_file, open_verified
from flyweight.weights.packed.shape import CompiledShape, read_shape
from flyweight.wire import F32

RUN = 8 << 20  # bytes that move at a time, in memory twice for some milliseconds
STEPS = 40  # engine steps in which a whole file moves; a long file moves several runs in each


class LayerPrefetch:
    """The pages of one mapped file, in the order of the file; without a file there is nothing
    to move.
    """

    def __init__(self, ops: Packing | None = None, file: Any = None) -> None:
        self._ops, self._file = ops, file
        self.left = ops.count_unmoved(file) if ops and file is not None else 0  # bytes
        self._share = max(1, self.left // RUN // STEPS)  # runs

    @property
    def wanted(self) -> bool:
        """Whether there is more to move."""
        return self.left > 0

    def run_idle(self) -> None:
        """One run, while nothing else is to be done."""
        if self._ops and self.left:
            self._ops.move(self._file, RUN)
            self.left = self._ops.count_unmoved(self._file)

    def step(self) -> None:
        """A share of the file, between two steps."""
        for _ in range(self._share):
            self.run_idle()

    def settle(self) -> None:
        """All that is left, before something is measured."""
        while self.wanted:
            self.run_idle()


LEAST = 32 << 20  # bytes of packed weights; fewer are packed faster than a file is looked after
SPARE = 1 << 30  # bytes left free on the disk
AHEAD = 4  # matrices packed but not written

Note = Callable[[str], None]


class PackedWeightCache(Protocol):
    """Where the loader finds and leaves packed matrices."""

    @property
    def moving(self) -> LayerPrefetch:
        """What is left to do for the matrices taken, once they are used."""
        ...

    @property
    def shape(self) -> CompiledShape | None:
        """What the matrices were compiled for, if they were."""
        ...

    def take(self, bias: F32 | None) -> Weight | None:
        """The next matrix, where it is kept."""
        ...

    def put(self, weight: Weight) -> None:
        """The next matrix, which was packed as it was not kept."""
        ...

    def close(self, whole: bool) -> None:
        """No more matrices; `whole` when all were put."""
        ...


class UncachedWeights:
    """Keeps nothing."""

    moving, shape = LayerPrefetch(), None

    def take(self, bias: F32 | None) -> Weight | None:
        return None

    def put(self, weight: Weight) -> None: ...
    def close(self, whole: bool) -> None: ...


class MappedWeights:
    """Matrices of a kept file, whose pages this process shares with others until they move."""

    def __init__(
        self, layout: PackedLayout, ops: Packing, file: Any, shape: CompiledShape | None
    ) -> None:
        self._places, self._ops, self._file = iter(layout.places), ops, file
        self.moving, self.shape = LayerPrefetch(ops, file), shape

    def take(self, bias: F32 | None) -> Weight | None:
        place = next(self._places)
        return self._ops.map_weight(self._file, place.offset, place.shape, place.kind, bias)

    def put(self, weight: Weight) -> None:
        raise AssertionError("every matrix is kept")

    def close(self, whole: bool) -> None: ...


class WrittenWeights:
    """Matrices go to a new file, on a thread of their own, while the next ones are packed."""

    def __init__(self, layout: PackedLayout, ops: Packing, file: int, given: ExitStack, note: Note):
        self._stream, self._ops, self._given, self._note = (
            PackedWriter(file, layout),
            ops,
            given,
            note,
        )
        self._worker = ThreadPoolExecutor(1, "flyweight-keep")
        self._ahead: list[Future[None]] = []
        self.moving, self.shape = LayerPrefetch(), None

    def take(self, bias: F32 | None) -> Weight | None:
        return None

    def put(self, weight: Weight) -> None:
        self._ahead.append(self._worker.submit(self._stream.add, self._ops.view_packed(weight)))
        if len(self._ahead) > AHEAD and self._ahead[0].exception() is None:
            self._ahead.pop(0)

    def close(self, whole: bool) -> None:
        """A file that did not become whole is given up."""
        try:
            with self._given:  # renames, or removes where this block raises
                self._worker.shutdown(cancel_futures=not whole)
                if not whole:
                    raise _GivenUp
                for done in self._ahead:
                    done.result()
                self._stream.finish()
        except _GivenUp:
            pass
        except OSError as error:
            self._note(f"packed weights are not kept: {error.strerror or error}")


class _GivenUp(Exception):
    """The load failed; nothing to tell."""


@dataclass(slots=True)
class Opener:
    """Chooses a shelf for one model: its kept file, a new one, or none."""

    folder: CacheFolder
    layout: PackedLayout
    ops: Packing
    note: Note
    threads: int = 1
    _file: Any = field(default=None, init=False)

    @property
    def file(self) -> Path:
        """Where the model's packed weights are, once they are kept."""
        return self.folder.file(self.layout.key)

    def check(self) -> None:
        """Verifies every checksum of the kept file; a damaged one goes.  Raises `OSError` or
        `CheckpointError`.
        """
        try:
            check_file(self.file, self.layout, self.threads)
        except (OSError, CheckpointError):
            self.folder.drop(self.layout.key)
            raise

    def open(self) -> PackedWeightCache:
        if self.layout.data < LEAST:
            return UncachedWeights()
        if self._open_existing():
            self.folder.mark_used(self.layout.key)
            return MappedWeights(self.layout, self.ops, self._file, read_shape(self.file))
        return self._create()

    def _open_existing(self) -> bool:
        try:
            open_verified(self.file, self.layout, self.threads, self._map)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except (OSError, CheckpointError) as error:
            reason = getattr(error, "strerror", None) or error
            self.note(f"kept packed weights are made again: {reason}")
            self.folder.drop(self.layout.key)
            return False
        return True

    def _map(self, file: int) -> None:
        self._file = self.ops.map_file(file)

    def _create(self) -> PackedWeightCache:
        size, folder = self.layout.size, self.folder
        if size > folder.room:
            return UncachedWeights()
        try:
            folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.make_room(size)
            if folder.count_free() < size + SPARE:
                self.note("packed weights are not kept: the disk is nearly full")
                return UncachedWeights()
            with ExitStack() as given:
                file = given.enter_context(folder.write_partial(self.layout.key))
                if file is None:
                    return UncachedWeights()
                return WrittenWeights(self.layout, self.ops, file, given.pop_all(), self.note)
        except OSError as error:
            self.note(f"packed weights are not kept: {error.strerror or error}")
        return UncachedWeights()
