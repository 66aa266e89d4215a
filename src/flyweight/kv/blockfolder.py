"""The directory of a prefix cache that outlives its process: a secret, and one file of blocks for
each fingerprint.

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


class BlockFolder:
    """At most `limit` bytes of blocks in `path`, which is made where it does not exist.  Raises
    `ConfigError` for one that cannot be used.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self.path, self.limit = path, limit
        self._own = ""
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_owner()
            self.secret = self._read_secret()
        except OSError as error:
            raise self._refuse(f"cannot be used: {error.strerror or error}") from None

    def open_file(self, fingerprint: bytes) -> OwnedFile:
        """The locked file of a fingerprint's blocks.  Raises `ConfigError`."""
        self._own = f"{fingerprint.hex()}{SUFFIX}"
        path = self.path / self._own
        while True:
            try:
                file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                raise self._refuse(f"cannot be used: {error.strerror or error}") from None
            if not _is_locked(file):
                os.close(file)
                raise self._refuse(
                    "is in use by another engine with this model",
                    "choose another directory for each of them",
                )
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
            raise self._refuse(
                f"is no prefix cache: its file {SECRET} does not have {DIGEST} bytes",
                "remove that file, or choose another directory",
            )
        return secret

    def _check_owner(self) -> None:
        about = os.stat(self.path)
        if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o022:
            raise self._refuse(
                "may be changed by other users", "choose a directory that is yours alone (0700)"
            )

    def _refuse(self, problem: str, hint: str = "choose another directory") -> ConfigError:
        return ConfigError(problem, OPTION, value=str(self.path), hint=hint)


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
