"""Log lines about peers: one for each peer and cause, however often it happens.

Invariant: what is remembered is bounded.  No line holds a key, a secret or a prompt.
"""

import logging
from threading import Lock

from flyweight.kv.peers.channel import TransferError

MOST_LINES = 256  # of one process


class PeerLog:
    """The lines of one engine's peers; used by all threads."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()
        self._lock = Lock()

    def note(self, name: str, error: TransferError) -> None:
        """Writes what is wrong with a peer, unless that is known."""
        with self._lock:
            if (name, error.cause) in self._known or len(self._known) >= MOST_LINES:
                return
            self._known.add((name, error.cause))
        logging.getLogger("flyweight").warning("prefix cache peer %s: %s", name, error)
