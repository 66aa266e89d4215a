"""Which grammar masks are computed in a step that has no time for all: cheap ones always, expensive
ones in turn.

Invariant: cheap masks together, and expensive ones together, take no more than the time allowed, as
far as their costs stay what they were.  One expensive mask is always computed, and the one that
waited longest comes first.  Knows no grammar.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from math import inf

Key = tuple[str, int]  # a choice of a request


class MaskBudget:
    """The cost of a choice is the processor time of its mask and of the tokens taken after it."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self.clock = clock
        self._cost: dict[Key, float] = {}  # in the newest step that computed its mask
        self._last: dict[Key, int] = {}  # expensive ones, numbered in the order they were computed
        self._count = 0

    def select(self, keys: Sequence[Key], seconds: float) -> Iterator[int]:
        """The places of the masks to compute within `seconds`.  Each one is computed, and its time
        recorded (`record_mask`), before the next place is taken.
        """
        fair = seconds / max(1, len(keys))
        cheap = [i for i, key in enumerate(keys) if self._cost.get(key, inf) <= fair]
        yield from cheap
        expensive = set(range(len(keys))).difference(cheap)
        spent = 0.0
        for i in sorted(expensive, key=lambda i: self._last.get(keys[i], 0)):
            expected = self._cost.get(keys[i], 0.0)
            if spent and spent + expected > seconds:
                return
            self._count += 1
            self._last[keys[i]] = self._count
            yield i
            spent += max(expected, self._cost.get(keys[i], 0.0))
            if spent >= seconds:
                return

    def record_mask(self, key: Key, seconds: float) -> None:
        self._cost[key] = seconds

    def record_tokens(self, key: Key, seconds: float) -> None:
        """Adds the time of the tokens taken after a mask."""
        self._cost[key] = self._cost.get(key, 0.0) + seconds

    def forget(self, key: Key) -> None:
        self._cost.pop(key, None)
        self._last.pop(key, None)
