"""The search: single changes first, then combinations of those that help, halved to a few that are
measured against the defaults in turn.

Invariant: the defaults are measured in every round, and win unless another is better in the median
of the rounds' ratios.  Knows no engine: what measures is passed in, and so is the clock.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from flyweight.tune.targets import Targets
from flyweight.tune.trial import LoadFigures, SettingsTrial

DEFAULTS = SettingsTrial()
BEST_VALUES = 2  # of a setting, that are combined
MOST_COMBINED = 12
FINALISTS = 3
SMALL, LARGE = 1, 4  # sizes of a load, in its least size
LEAST_ROUNDS, MOST_ROUNDS = 3, 9
SINGLES, COMBINED = 0.45, 0.75  # share of the time after which a stage ends
NOISE = 0.01  # of a score: a gain below is none

Measure = Callable[[SettingsTrial, int], LoadFigures]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Round:
    """The same load for several candidates, one after the other."""

    stage: str
    size: int
    seen: dict[SettingsTrial, LoadFigures] = field(default_factory=dict)


@dataclass(slots=True)
class Search:
    """One search.  `rounds` are all that was measured, in order."""

    targets: Targets
    measure: Measure
    clock: Clock
    seconds: float
    begun: Callable[[str, int, int], None] = lambda stage, done, total: None
    rounds: list[Round] = field(default_factory=list)
    _unit: float = 0.0  # seconds of the least load

    def run(self, singles: Sequence[SettingsTrial]) -> SettingsTrial:
        """The best candidate, the defaults where none is better."""
        start = self.clock()
        base = self._measure_round("warm-up", SMALL, [DEFAULTS])[DEFAULTS]
        self._unit = self.clock() - start
        seen = self._measure_singles(singles, start + SINGLES * self.seconds)
        gains = {
            one: self.targets.score(got) - self.targets.score(base) for one, got in seen.items()
        }
        combined = combine(gains)
        again = self._halve(combined, start + COMBINED * self.seconds)
        return self._decide(again, start + self.seconds)

    def _measure_singles(
        self, singles: Sequence[SettingsTrial], end: float
    ) -> dict[SettingsTrial, LoadFigures]:
        """Each once, compared with the defaults before it; what the time is not enough for is left
        out.
        """
        found: dict[SettingsTrial, LoadFigures] = {}
        for i, one in enumerate(singles):
            if self.clock() >= end and found:
                break
            self.begun("single settings", i, len(singles))
            found |= self._measure_round("single settings", SMALL, [one])
        return found

    def _halve(self, candidates: Sequence[SettingsTrial], end: float) -> list[SettingsTrial]:
        """Successive halving: the better half of the candidates gets twice the load."""
        left, size = [*candidates], SMALL
        while len(left) > FINALISTS and self.clock() < end:
            self.begun("combinations", len(candidates) - len(left), len(candidates))
            seen = self._measure_round("combinations", size, left)
            left = self._rank(seen)[: max(FINALISTS, len(seen) // 2)]
            size = min(2 * size, LARGE)
        return left[:FINALISTS]

    def _decide(self, finalists: Sequence[SettingsTrial], end: float) -> SettingsTrial:
        """Rounds of all finalists and the defaults, until the time is up."""
        everyone = [DEFAULTS, *(one for one in finalists if one != DEFAULTS)]
        size = self._choose_size(end - self.clock(), LEAST_ROUNDS * len(everyone))
        rounds: list[dict[SettingsTrial, LoadFigures]] = []
        for i in range(MOST_ROUNDS):
            if len(rounds) >= LEAST_ROUNDS and self.clock() >= end:
                break
            self.begun("finalists", i, MOST_ROUNDS)
            turn = i % len(everyone)  # the first place changes
            rounds.append(self._measure_round("finalists", size, everyone[turn:] + everyone[:turn]))
        gains = {one: _find_gain(self.targets, rounds, one) for one in everyone}
        best = max(everyone, key=lambda one: gains[one])
        return best if gains[best] > NOISE else DEFAULTS

    def _choose_size(self, seconds: float, runs: int) -> int:
        """The largest load of which so many runs fit the time."""
        return max(SMALL, min(LARGE, int(seconds / max(self._unit * runs, 1e-9))))

    def _measure_round(
        self, stage: str, size: int, candidates: Sequence[SettingsTrial]
    ) -> dict[SettingsTrial, LoadFigures]:
        made = Round(stage, size)
        self.rounds.append(made)
        for one in candidates:
            made.seen[one] = self.measure(one, size)
        return made.seen

    def _rank(self, seen: dict[SettingsTrial, LoadFigures]) -> list[SettingsTrial]:
        return sorted(seen, key=lambda one: -self.targets.score(seen[one]))


def combine(gains: dict[SettingsTrial, float]) -> list[SettingsTrial]:
    """Combinations of the settings that gain, the most promising first, by the sum of gains; single
    ones and the defaults are among them.
    """
    by_setting: dict[tuple[str, ...], list[SettingsTrial]] = {}
    for one in sorted(gains, key=lambda one: -gains[one]):
        if gains[one] > NOISE:
            by_setting.setdefault(tuple(name for name, _ in one.changes[:1]), []).append(one)
    choices = [[DEFAULTS, *values[:BEST_VALUES]] for values in by_setting.values()]
    ranked: dict[SettingsTrial, float] = {}
    for parts in itertools.product(*choices):
        ranked.setdefault(DEFAULTS.join(parts), sum(gains.get(one, 0.0) for one in parts))
    return sorted(ranked, key=lambda one: -ranked[one])[:MOST_COMBINED]


def _find_gain(
    targets: Targets, rounds: Iterable[dict[SettingsTrial, LoadFigures]], one: SettingsTrial
) -> float:
    """The median over rounds of a candidate's score less the defaults'."""
    gains = sorted(targets.score(seen[one]) - targets.score(seen[DEFAULTS]) for seen in rounds)
    middle = len(gains) // 2
    return gains[middle] if len(gains) % 2 else (gains[middle - 1] + gains[middle]) / 2


def to_ratio(gain: float) -> float:
    """A gain of scores as a ratio of objectives."""
    return math.exp(gain)
