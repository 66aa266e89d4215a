"""Which engine computes the next step, where several have work.

Invariant: while several have work, each receives step time in proportion to its weight; one that
had none gets no credit for that time.  Start-time fair queueing (Goyal et al., 1996) over steps.
Standard library only; knows no engine.
"""

from collections.abc import Iterable


class StepShares:
    """Time by engine; an engine's clock advances by the seconds of its steps over its weight."""

    def __init__(self) -> None:
        self._weights: dict[int, float] = {}
        self._clocks: dict[int, float] = {}
        self._busy: frozenset[int] = frozenset()  # that had work at the last choice
        self._now = 0.0  # the clock of the engine that was chosen last, when it was

    def add(self, engine: int, weight: float) -> None:
        self._weights[engine], self._clocks[engine] = weight, self._now

    def remove(self, engine: int) -> None:
        del self._weights[engine], self._clocks[engine]

    def choose(self, busy: Iterable[int]) -> int | None:
        """The engine whose clock is behind, among those with work; None where there is none."""
        now = frozenset(busy)
        for engine in now - self._busy:  # it was idle: no time was saved up
            self._clocks[engine] = max(self._clocks[engine], self._now)
        self._busy = now
        if not now:
            return None
        chosen = min(now, key=lambda engine: (self._clocks[engine], engine))
        self._now = max(self._now, self._clocks[chosen])
        return chosen

    def charge(self, engine: int, seconds: float) -> None:
        """A step of this engine took so long."""
        self._clocks[engine] += seconds / self._weights[engine]
