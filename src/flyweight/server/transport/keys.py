"""The API keys that a server accepts, and the files that they come from.

Invariant: of a key its hash is kept.  The hashes are replaced together, and a file that cannot be
used leaves them unchanged.
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


class ApiKeys:
    """The keys of a server's settings and of its files; none: no key is required."""

    def __init__(self, settings: ServerSettings) -> None:
        """Raises `ConfigError`."""
        self.given, self.files = settings.keys, settings.key_files
        self.hashes: tuple[bytes, ...] = ()
        self.reload()

    def reload(self) -> None:
        """Reads the files again.  Raises `ConfigError`; the keys are unchanged then."""
        keys = (*self.given, *(key for file in self.files for key in read_key_file(file)))
        encoded = (key.encode("utf-8", "surrogateescape") for key in keys)
        self.hashes = tuple(sha256(key).digest() for key in encoded)
