"""How many replicas a load needs: the smallest number with which nine of ten requests meet the
targets.

Invariant: the same load and costs give the same number.  More replicas are taken to be no worse, so
the number is found by bisection.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import log10

from flyweight.errors import ConfigError
from flyweight.planning.capacity import SHARE
from flyweight.planning.replica_points import ReplicaPoint

MOST_REPLICAS = 10_000
PRECISION = 0.02
Simulate = Callable[[int], ReplicaPoint | None]


@dataclass(frozen=True, slots=True)
class ReplicaNumbers:
    """The numbers that are simulated, ascending; of a range those between may be recommended."""

    numbers: tuple[int, ...]
    between: bool

    @classmethod
    def parse(cls, text: str) -> "ReplicaNumbers":
        """`4`, `1,2,4` or `1..10000`.  Raises `ConfigError`."""
        words = text.split("..") if ".." in text else text.split(",")
        numbers = [_read_number(word, text) for word in words]
        if ".." not in text:
            return cls(tuple(sorted(set(numbers))), False)
        if len(numbers) != 2 or numbers[0] > numbers[1]:
            low, high = min(numbers), max(numbers)
            raise ConfigError("is no range", "replicas", value=text, allowed="LOW..HIGH",
                              hint=f"nearest valid: {low}..{high}")  # fmt: skip
        return cls(make_ladder(*numbers), True)


def _read_number(word: str, text: str) -> int:
    word = word.strip()
    if not (word.isascii() and word.isdecimal() and len(word) < 10):
        raise ConfigError(
            "is no number of replicas", "replicas", value=text, allowed="4, 1,2,4 or 1..10000",
            hint="nearest valid: 1..10000",
        )  # fmt: skip
    near = min(max(int(word), 1), MOST_REPLICAS)
    if near != int(word):
        raise ConfigError(
            "is out of range", "replicas", value=int(word), allowed=f"1 to {MOST_REPLICAS}",
            hint=f"nearest valid: {near}",
        )  # fmt: skip
    return near


def make_ladder(low: int, high: int) -> tuple[int, ...]:
    """Both ends, and between them 1, 2 and 5 times powers of ten."""
    powers = range(int(log10(high)) + 1)
    marks = {mark * 10**power for power in powers for mark in (1, 2, 5)}
    return tuple(sorted({low, high} | {mark for mark in marks if low < mark < high}))


@dataclass(slots=True)
class ReplicaSearch:
    """Points that were simulated for one cost of steps, by the number of replicas."""

    simulate: Simulate
    points: dict[int, ReplicaPoint | None] = field(default_factory=dict)

    def see(self, replicas: int) -> ReplicaPoint | None:
        if replicas not in self.points:
            self.points[replicas] = self.simulate(replicas)
        return self.points[replicas]

    def meets(self, replicas: int) -> bool:
        point = self.see(replicas)
        return point is None or point.met >= SHARE

    def find_least(self, asked: ReplicaNumbers) -> int | None:
        """The smallest number that meets the targets, of a range to 2 %; None where none does."""
        least = self._bisect(asked.numbers)
        if least is None or not asked.between or least == 0:
            return None if least is None else asked.numbers[least]
        low, high = asked.numbers[least - 1], asked.numbers[least]
        while high - low > max(1, PRECISION * low):
            middle = (low + high) // 2
            low, high = (low, middle) if self.meets(middle) else (middle, high)
        return high

    def _bisect(self, numbers: Sequence[int]) -> int | None:
        """The place of the first number that meets them."""
        if not self.meets(numbers[-1]):
            return None
        low, high = -1, len(numbers) - 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.meets(numbers[middle]) else (middle, high)
        return high
