"""How long contents stay in K/V memory: a sample of the blocks, timed from when they are taken
until something else takes their place.

Invariant: watching changes nothing; a block that is not in the sample costs a look-up.  Only
contents that could have been found are counted, as in vLLM.  Standard library only.
"""

import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

ACCESSES = 4  # of a block that are remembered, the newest
MOST = 1024  # stays that were not read yet

Stay = tuple[float, float, tuple[float, ...]]  # lifetime, idle at its end, gaps between accesses


@dataclass(slots=True)
class _Watched:
    born: float
    used: deque[float] = field(default_factory=lambda: deque(maxlen=ACCESSES))


class Residency:
    """Of one pool; `share` of its blocks are watched, drawn anew each time one is taken."""

    def __init__(
        self, share: float, clock: Callable[[], float] = time.monotonic, seed: int = 0
    ) -> None:
        self.share, self.clock = share, clock
        self.rng = random.Random(seed)
        self.ended: deque[Stay] = deque(maxlen=MOST)
        self._watched: dict[int, _Watched] = {}

    def record_taken(self, block: int, evicted: bool) -> None:
        """A block is taken for new contents; `evicted` where the old could still be found."""
        old = self._watched.pop(block, None)
        drawn = self.rng.random() < self.share
        if old is None and not drawn:
            return
        now = self.clock()
        if old is not None and evicted:
            gaps = tuple(b - a for a, b in pairwise(old.used))
            last = old.used[-1] if old.used else old.born
            self.ended.append((now - old.born, now - last, gaps))
        if drawn:
            self._watched[block] = _Watched(now)

    def record_shared(self, blocks: Iterable[int]) -> None:
        """One more table reads what they hold."""
        for block in blocks:
            found = self._watched.get(block)
            if found is not None:
                found.used.append(self.clock())

    def forget(self) -> None:
        """All contents are dropped at once, however long they would have stayed."""
        self._watched.clear()

    def take(self) -> list[Stay]:
        """Stays that ended since the last call."""
        found = [*self.ended]
        self.ended.clear()
        return found
