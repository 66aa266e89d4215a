"""The API keys that a server accepts, and the files that they come from.

Invariant: hashes are kept, not keys.  They are replaced together, and a file that cannot be used
leaves them unchanged.
"""

from hashlib import sha256
from pathlib import Path

from flyweight.errors import ConfigError
from flyweight.server.settings import ServerSettings
from flyweight.validation.untrusted import read_text

OPTION = "--api-key-file"
MOST_BYTES = 1 << 20  # of a file


def read_key_file(file: str) -> list[str]:
    """The keys of a file, one a line; lines that begin with # are comments.  Raises
    `ConfigError`.
    """
    lines = [line.strip() for line in read_text(Path(file), OPTION, MOST_BYTES).splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"{OPTION} {file}: no key in it")
    return keys


def hash_key(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


class ApiKeys:
    """The `hashes` of the keys in a server's settings and files; none: no key is required."""

    def __init__(self, settings: ServerSettings) -> None:
        """Raises `ConfigError`."""
        self.files = settings.key_files
        self._given = tuple(map(hash_key, settings.keys))
        self.hashes: tuple[bytes, ...] = ()
        self.reload()

    def reload(self) -> None:
        """Reads the files again.  Raises `ConfigError`; the keys are unchanged then."""
        read = [hash_key(key) for file in self.files for key in read_key_file(file)]
        self.hashes = (*self._given, *read)
