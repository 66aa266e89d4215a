"""Whose masks are made in a step, where those of all would take too long: cheap ones always, dear
ones in turn.

Invariant: cheap masks together, and dear ones together, take no more than a step's allowance, as
far as their costs are what they were; one dear mask is always made, and who waits longest is the
first.  Knows no grammar.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from math import inf

Key = tuple[str, int]  # a choice of a request


class MaskBudget:
    """A choice costs what its mask took, in the loop's processor time, and what was taken after
    it.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self.clock = clock
        self._cost: dict[Key, float] = {}  # in the step a choice was last served in
        self._last: dict[Key, int] = {}  # dear ones, numbered as they were served
        self._count = 0

    def served(self, keys: Sequence[Key], seconds: float) -> Iterator[int]:
        """The places of those whose turn it is in a step that allows `seconds`.  Each mask is
        made, and its time recorded (`masked`), before the next place is taken.
        """
        fair = seconds / max(1, len(keys))
        cheap = [i for i, key in enumerate(keys) if self._cost.get(key, inf) <= fair]
        yield from cheap
        dear = sorted(set(range(len(keys))).difference(cheap), key=lambda i: self._age(keys[i]))
        spent = 0.0
        for i in dear:
            expected = self._cost.get(keys[i], 0.0)
            if spent and spent + expected > seconds:
                return
            self._count += 1
            self._last[keys[i]] = self._count
            yield i
            spent += max(expected, self._cost.get(keys[i], 0.0))
            if spent >= seconds:
                return

    def masked(self, key: Key, seconds: float) -> None:
        """A choice's mask took so long."""
        self._cost[key] = seconds

    def took(self, key: Key, seconds: float) -> None:
        """What came after it did."""
        self._cost[key] = self._cost.get(key, 0.0) + seconds

    def forget(self, key: Key) -> None:
        self._cost.pop(key, None)
        self._last.pop(key, None)

    def _age(self, key: Key) -> int:
        return self._last.get(key, 0)
