"""Times steps, and notices a drafter that stalls.

Invariant: a call is compared with the step before it, so a slow machine is no stall.  Time comes
from a clock that is given.  Knows no drafter.
"""

import time
from collections.abc import Callable

LEAST = 1.0  # seconds of a call that counts as stalled, and
TIMES = 20.0  # how many times the step before it


class DrafterTimer:
    """Of one engine."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._began = self._step = 0.0

    def begin(self) -> float:
        """A step begins, now."""
        self._began = self.clock()
        return self._began

    def end(self) -> float:
        """It ended, now."""
        now = self.clock()
        self._step = now - self._began
        return now

    def judge(self, began: float) -> str:
        """What is wrong with a call that began then and ends now; empty if nothing is."""
        taken = self.clock() - began
        if taken <= max(LEAST, TIMES * self._step):
            return ""
        return f"the drafter took {taken:.3g} s after a step of {self._step:.3g} s"
