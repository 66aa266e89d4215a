"""The directory of a prefix cache that outlives its process: a secret, and one file of blocks for
each fingerprint.  Replicas share a directory, in which each has a numbered folder of its own.

Invariant: only files of our own names are opened, counted or removed, and none that another
process has locked.  Without the directory's secret, keys cannot be computed.
"""

import fcntl
import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from secrets import token_bytes

from flyweight.errors import ConfigError
from flyweight.kv.blocks import DIGEST
from flyweight.kv.records import OwnedFile

SECRET, SUFFIX = "prefix-cache.secret", ".blocks"
OURS = re.compile(rf"[0-9a-f]{{64}}\{SUFFIX}")
OPTION = "prefix_cache_dir"
MOST_FOLDERS = 4096  # with numbers: more than there are replicas of a machine
OTHERS = "choose another directory for each of them"


class BlockFolder:
    """At most `limit` bytes of blocks in `path`, which is made where it does not exist.  Raises
    `ConfigError` for one that cannot be used.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self.path, self.limit = path, limit
        self._own = ""
        _make_private(path)
        try:
            self.secret = self._read_secret()
        except OSError as error:
            raise _refuse_unusable(path, error) from None

    @classmethod
    def open_numbered(
        cls, path: Path, limit: int, fingerprint: bytes
    ) -> "tuple[BlockFolder, OwnedFile]":
        """The first of the folders `0`, `1`, ... of `path` where no other process has locked the
        file of the fingerprint, and that file, locked.  Raises `ConfigError`.
        """
        _make_private(path)
        for number in range(MOST_FOLDERS):
            folder = cls(path / str(number), limit)
            file = folder.find_file(fingerprint)
            if file is not None:
                return folder, file
        raise _refuse(path, f"has {MOST_FOLDERS} numbered folders, which are all in use", OTHERS)

    def open_file(self, fingerprint: bytes) -> OwnedFile:
        """The locked file of a fingerprint's blocks.  Raises `ConfigError`."""
        file = self.find_file(fingerprint)
        if file is None:
            raise _refuse(self.path, "is in use by another engine with this model", OTHERS)
        return file

    def find_file(self, fingerprint: bytes) -> OwnedFile | None:
        """As `open_file`; None where another process has locked it."""
        self._own = f"{fingerprint.hex()}{SUFFIX}"
        path = self.path / self._own
        while True:
            try:
                file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                raise _refuse_unusable(self.path, error) from None
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                return None
            except OSError as error:  # the file system has no locks
                os.close(file)
                raise _refuse_unusable(self.path, error) from None
            with suppress(OSError):
                if os.path.samestat(os.fstat(file), os.stat(path)):
                    os.utime(file)  # it counts as new
                    return OwnedFile(file)
            os.close(file)  # another process has removed it before it was locked

    def allow(self, size: int) -> bool:
        """Whether the open file may have `size` bytes; files of other fingerprints are removed for
        it, oldest first.
        """
        if size > self.limit:
            return False
        others = []
        for found in os.scandir(self.path):
            mine = found.name == self._own or not OURS.fullmatch(found.name)
            if not mine and found.is_file(follow_symlinks=False):
                about = found.stat(follow_symlinks=False)
                others.append((about.st_mtime_ns, about.st_size, found.path))
        held = sum(taken for _, taken, _ in others)
        for _, taken, path in sorted(others):
            if size + held <= self.limit:
                break
            held -= taken if _remove_unless_used(path) else 0
        return size + held <= self.limit

    def _read_secret(self) -> bytes:
        """The secret; it gets its name when it is whole."""
        path = self.path / SECRET
        if not os.path.lexists(path):
            made = self.path / f"{SECRET}.{os.getpid()}"
            file = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            try:
                os.write(file, token_bytes(DIGEST))
                with suppress(FileExistsError):  # of a process that starts at the same time
                    os.link(made, path)
            finally:
                os.close(file)
                os.unlink(made)
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            secret = os.read(file, DIGEST + 1)
        finally:
            os.close(file)
        if len(secret) != DIGEST:
            raise _refuse(
                self.path,
                f"is no prefix cache: its file {SECRET} does not have {DIGEST} bytes",
                "remove that file, or choose another directory",
            )
        return secret


def _make_private(path: Path) -> None:
    """Makes a directory where there is none.  Raises `ConfigError` where others may change it."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = os.stat(path)
    except OSError as error:
        raise _refuse_unusable(path, error) from None
    if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o022:
        hint = "choose a directory that is yours alone (0700)"
        raise _refuse(path, "may be changed by other users", hint)


def _refuse_unusable(path: Path, error: OSError) -> ConfigError:
    return _refuse(path, f"cannot be used: {error.strerror or error}")


def _refuse(path: Path, problem: str, hint: str = "choose another directory") -> ConfigError:
    return ConfigError(problem, OPTION, value=str(path), hint=hint)


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove_unless_used(path: str) -> bool:
    """Removes a file that no process has locked; whether it is gone."""
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        if not _is_locked(file):
            return False
        os.unlink(path)
    except OSError:
        return False
    finally:
        os.close(file)
    return True
