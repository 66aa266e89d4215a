"""The folder of kept files: room for one more, one writer at a time, the oldest unused go first.

Invariant: a file has its name only when it is whole; a name that goes takes nothing from a process
that has the file mapped.  Only our own names are ever removed.
"""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from flyweight.weights.packed.shape import SUFFIX as SHAPE
from flyweight.weights.packed.shape import drop_shape

SUFFIX, PARTIAL = ".tiles", ".partial"
OURS = re.compile(rf"[0-9a-f]{{64}}(\{SUFFIX}|\{PARTIAL}|\{SHAPE})")


@dataclass(frozen=True, slots=True)
class CacheFolder:
    """At most `room` bytes of files in `path`."""

    path: Path
    room: int

    def file(self, key: bytes) -> Path:
        return self.path / f"{key.hex()}{SUFFIX}"

    def mark_used(self, key: bytes) -> None:
        """The file counts as new."""
        with suppress(OSError):
            os.utime(self.file(key))

    def drop(self, key: bytes) -> None:
        drop_shape(self.file(key))
        with suppress(OSError):
            self.file(key).unlink()

    def make_room(self, size: int) -> None:
        """Removes files, those not used for longest first, until `size` bytes more are allowed; and
        what writers left behind that are no more.
        """
        kept = []
        for found in os.scandir(self.path):
            if OURS.fullmatch(found.name) and found.is_file(follow_symlinks=False):
                if found.name.endswith(PARTIAL):
                    _remove_if_left(found.path)
                    continue
                if found.name.endswith(SHAPE):
                    if not Path(found.path).with_suffix(SUFFIX).exists():
                        drop_shape(Path(found.path))
                    continue
                about = found.stat(follow_symlinks=False)
                kept.append((about.st_mtime_ns, about.st_size, found.path))
        held = sum(size for _, size, _ in kept)
        for _, freed, path in sorted(kept):
            if held + size <= self.room:
                return
            drop_shape(Path(path))
            with suppress(OSError):
                os.unlink(path)
            held -= freed

    def count_free(self) -> int:
        """Bytes the disk has left for us."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    @contextmanager
    def write_partial(self, key: bytes) -> Iterator[int | None]:
        """A file to write, which gets its name at the end of the block, unless the block raises;
        None where another process is writing it, or has.  Raises `OSError`.
        """
        path = self.path / f"{key.hex()}{PARTIAL}"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if not _is_locked(file) or not _is(path, file):
                yield None
                return
            if self.file(key).exists():  # written since; the name that `open` just made is not left
                path.unlink()
                yield None
                return
            os.ftruncate(file, 0)
            try:
                yield file
                os.rename(path, self.file(key))
            except BaseException:
                with suppress(OSError):
                    path.unlink()
                raise
        finally:
            os.close(file)  # and the lock with it


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is(path: Path, file: int) -> bool:
    """Whether the open file still has that name: another writer may have just given it its own."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False


def _remove_if_left(path: str) -> None:
    with suppress(OSError):
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if _is_locked(file):
                os.unlink(path)
        finally:
            os.close(file)
