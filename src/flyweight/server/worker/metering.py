"""What the steps of requests take: time, and energy where the processors' counters can be read.

Invariant: a step is shared by the tokens that it computes for each request, so the shares of all
requests add up to the step.  What cannot be read is None, never 0.  Without requests to measure, a
step costs nothing more.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from flyweight.plan.energy import POWERCAP, EnergyMeter
from flyweight.server import pipe

Chunk = tuple[str, int, int, int]  # request, choice, start, tokens


class RequestMeter:
    """Measures requests between `add` and `remove`.  Without `reads` only time is measured: a GPU
    computes, whose energy the processors' counters do not have.
    """

    def __init__(self, root: Path = POWERCAP, reads: bool = True) -> None:
        self.root, self.reads = root, reads
        self._energy: EnergyMeter | None = None  # found at the first request
        self._seconds: dict[str, float] = {}
        self._joules: dict[str, float] = {}
        self._tokens = Counter[str]()  # of the step under way

    def add(self, id: str) -> None:
        if self._energy is None and self.reads:
            self._energy = EnergyMeter(self.root)
        self._seconds[id] = self._joules[id] = 0.0

    def remove(self, id: str) -> None:
        self._seconds.pop(id, None)
        self._joules.pop(id, None)

    def begin(self) -> None:
        """A step begins."""
        self._tokens.clear()
        if self._seconds and self._energy is not None:
            self._energy.begin()

    def note(self, chunks: Iterable[Chunk]) -> None:
        """What the step computes."""
        if self._seconds:
            for id, _, _, count in chunks:
                self._tokens[id] += count

    def end(self, seconds: float) -> None:
        """The step took so long."""
        total = self._tokens.total()
        if not self._seconds or not total:
            return
        joules = self._energy.take() if self._energy is not None else None
        for id in self._seconds.keys() & self._tokens.keys():
            share = self._tokens[id] / total
            self._seconds[id] += share * seconds
            self._joules[id] += share * (joules or 0.0)

    def report(self, news: Iterable[pipe.StepEvents]) -> None:
        """Adds to events what their requests took so far."""
        for one in news:
            if one.id in self._seconds:
                one.use = self._seconds[one.id], self._joules[one.id] or None
