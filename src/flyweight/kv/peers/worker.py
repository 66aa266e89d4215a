"""A peer with a thread of its own, which does what the engine's thread requests of it.

Invariant: no method waits for the network, but `close` for at most `JOIN` seconds.  Every fetch is
answered or ended, whatever the peer does; a peer that failed is left alone for a while.
"""

import logging
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from queue import SimpleQueue
from threading import Thread

from flyweight.kv.peers.channel import TransferError
from flyweight.kv.peers.client import PeerClient
from flyweight.kv.peers.fetch import ChainFetch
from flyweight.kv.peers.log import PeerLog

FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0  # seconds until a peer that failed is tried again
REFUSALS = ("secret", "fingerprint")  # causes that time does not change
JOIN = 1.0


class PeerWorker:
    """One peer.  The thread begins with the first request."""

    def __init__(
        self, client: PeerClient, log: PeerLog, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.client, self.log, self.clock = client, log, clock
        self.name = str(client.address)
        self.refused = 0  # connections, by either side
        self._wait, self._retry_at, self._closed = FIRST_WAIT, 0.0, False
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._current: ChainFetch | None = None
        self._thread: Thread | None = None

    # --- the engine's thread ---

    def is_usable(self) -> bool:
        """Whether it is worth a request now."""
        return not self._closed and self.clock() >= self._retry_at

    def estimate(self, count: int) -> float:
        """Seconds until so many bytes are here; 0 while nothing is known."""
        return self.client.speed.estimate(count)

    def find(self, fetch: ChainFetch) -> None:
        """Has the fetch's `note_found` called."""
        self._add(partial(self._find, fetch))

    def get(self, fetch: ChainFetch, count: int) -> None:
        """Has the first `count` blocks put in the fetch, and its end noted."""
        self._add(partial(self._get, fetch, count))

    def cancel(self, fetch: ChainFetch) -> None:
        """Gives up a transfer; its connection is closed."""
        fetch.cancel()
        if self._current is fetch:
            self.client.stop()

    def close(self) -> None:
        """Ends the thread."""
        self._closed = True
        self._jobs.put(None)
        if self._current is not None:
            self._current.cancel()
        self.client.stop()
        if self._thread is not None:
            self._thread.join(JOIN)

    def _add(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)
        if self._thread is None:
            self._thread = Thread(target=self._run, name=f"peer {self.name}", daemon=True)
            self._thread.start()

    # --- its own thread ---

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
        self.client.close()

    def _find(self, fetch: ChainFetch) -> None:
        count = 0
        try:
            if self.is_usable() and not fetch.cancelled:
                count = self.client.find(fetch.keys)
                self._wait = FIRST_WAIT
        except Exception as error:
            self._note(error)
        finally:
            fetch.note_found(self.name, count)

    def _get(self, fetch: ChainFetch, count: int) -> None:
        self._current = fetch
        try:
            keys = () if fetch.cancelled else fetch.keys[:count]
            with closing(self.client.get(keys)) as blocks:
                for key, data in blocks:
                    if not fetch.put(key, data):
                        break
        except Exception as error:
            if not fetch.cancelled:
                self._note(error)
        finally:
            self._current = None
            fetch.end()

    def _note(self, error: Exception) -> None:
        """Leaves the peer alone for a while, and logs why."""
        self.client.close()
        if not isinstance(error, TransferError):  # a bug of ours, or a lack of memory
            logging.getLogger("flyweight").error("a transfer failed", exc_info=error)
            error = TransferError("failed", "a transfer failed")
        refused = error.cause in REFUSALS
        self.refused += refused
        self._retry_at = self.clock() + (LONGEST_WAIT if refused else self._wait)
        self._wait = min(LONGEST_WAIT, 2 * self._wait)
        self.log.note(self.name, error)
