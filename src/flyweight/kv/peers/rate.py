"""How fast bytes may be sent, and how fast they arrive.

Invariant: in any t seconds at most `rate * (t + BURST)` bytes are sent, whatever the number of
threads.  Standard library only.
"""

import time
from collections.abc import Callable
from math import inf
from threading import Event, Lock

BURST = 0.25  # seconds' worth of bytes that may be sent at once
NEWEST = 0.3  # weight of the newest transfer in a speed
KNOWN = 60.0  # seconds for which a speed is believed


class RateLimit:
    """A limit of bytes a second for several threads together; 0: none."""

    def __init__(self, rate: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.clock = rate, clock
        self._due = -inf  # when what was allowed so far is sent, at this rate
        self._lock = Lock()

    def reserve(self, count: int) -> float:
        """Seconds to wait before `count` bytes may be sent."""
        if not self.rate:
            return 0.0
        with self._lock:
            now = self.clock()
            self._due = max(self._due, now - BURST) + count / self.rate
            return max(0.0, self._due - now)

    def wait(self, count: int, stopped: Event) -> bool:
        """Waits until `count` bytes may be sent; False where it is stopped before."""
        seconds = self.reserve(count)
        return not (stopped.wait(seconds) if seconds else stopped.is_set())


class TransferSpeed:
    """Bytes a second and seconds of an answer, of one peer.  An old figure counts as unknown, so
    that a peer that was slow is tried again.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.rate, self.latency = 0.0, 0.0
        self._measured = -KNOWN

    def record_answer(self, seconds: float) -> None:
        """A question without blocks took so long."""
        self.latency = self._average(self.latency, seconds)

    def record(self, count: int, seconds: float) -> None:
        """So many bytes took so long, waits of our own not counted."""
        if count and seconds > 0:
            known = self.rate if self.is_known() else 0.0
            self.rate = self._average(known, count / seconds)
            self._measured = self.clock()

    def is_known(self) -> bool:
        return self.clock() - self._measured < KNOWN

    def estimate(self, count: int) -> float:
        """Seconds until so many bytes are here; unknown figures count as 0."""
        return self.latency + (count / self.rate if self.rate and self.is_known() else 0.0)

    @staticmethod
    def _average(known: float, newest: float) -> float:
        return known + NEWEST * (newest - known) if known else newest
