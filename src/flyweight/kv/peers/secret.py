"""The secret that peers share, read from a file, and the keys that are made of it.

Invariant: the secret itself is never sent and never used as a key; each purpose has a key of its
own, from which no other can be computed.
"""

import os
import stat
from hmac import digest
from pathlib import Path
from typing import NamedTuple

from flyweight.errors import ConfigError

LEAST, MOST = 32, 4096  # bytes
OPTION = "prefix_cache_secret_file"


class SharedSecret(NamedTuple):
    """Keys of a secret: for the root keys of `blocks`, and to authenticate `peers` and `nodes`."""

    blocks: bytes
    peers: bytes
    nodes: bytes

    @classmethod
    def of(cls, secret: bytes) -> "SharedSecret":
        return cls(
            digest(secret, b"flyweight: keys of blocks", "sha256"),
            digest(secret, b"flyweight: peers", "sha256"),
            digest(secret, b"flyweight: nodes", "sha256"),
        )


def read_secret(path: Path, option: str = OPTION) -> SharedSecret:
    """The keys of all bytes of the file that an option names.  Raises `ConfigError` unless it is a
    private file of 32 bytes or more.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            about, secret = os.fstat(file), os.read(file, MOST + 1)
        finally:
            os.close(file)
    except OSError as error:
        raise _refuse(option, path, f"cannot be read: {error.strerror or error}") from None
    if not stat.S_ISREG(about.st_mode):
        raise _refuse(option, path, "is no regular file")
    if stat.S_IMODE(about.st_mode) & 0o027:
        raise _refuse(option, path, "may be read or changed by other users", "run: chmod 600 FILE")
    if not LEAST <= len(secret) <= MOST:
        size = f"has {len(secret)} bytes" if len(secret) <= MOST else f"has more than {MOST} bytes"
        raise _refuse(option, path, f"{size}; allowed: {LEAST} to {MOST} bytes",
                      "run: openssl rand -hex 32 > FILE")  # fmt: skip
    return SharedSecret.of(secret)


def _refuse(option: str, path: Path, problem: str, hint: str = "") -> ConfigError:
    return ConfigError(problem, option, value=str(path), hint=hint)
