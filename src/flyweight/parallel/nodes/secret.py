"""The key that nodes prove to each other.

Invariant: off loopback there is a secret (`validation.nodes` refuses all else).
"""

from pathlib import Path

from flyweight.config import Settings
from flyweight.kv.peers.secret import SharedSecret, read_secret

OPTION = "node_secret_file"


def read_node_key(settings: Settings) -> bytes:
    """Of the file; without one, on loopback, of an empty secret.  Raises `ConfigError`."""
    file = settings.node_secret_file
    if file is None:
        return SharedSecret.of(b"").nodes
    return read_secret(Path(file).expanduser(), OPTION).nodes
