"""The search: single changes first, then combinations of those that help, halved to a few that are
measured against a base in turn: the defaults, or what runs in their place.

Invariant: the base is measured in every final round, and wins unless another is better in the
median of the rounds' ratios.  Knows no engine: what measures is passed in, and so is the clock.
"""

import itertools
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
Fits = Callable[[SettingsTrial], bool]


@dataclass(frozen=True, slots=True)
class Round:
    """The same load for several candidates, one after the other."""

    stage: str
    size: int
    seen: dict[SettingsTrial, LoadFigures] = field(default_factory=dict)


@dataclass(slots=True)
class Search:
    """One search.  `rounds` are all that was measured, in order.  Changes are made to `base`; of
    combinations, those that do not `fit` are left out.
    """

    targets: Targets
    measure: Measure
    clock: Clock
    seconds: float
    begun: Callable[[str, int, int], None] = lambda stage, done, total: None
    base: SettingsTrial = DEFAULTS
    fits: Fits = lambda one: True
    rounds: list[Round] = field(default_factory=list)
    _unit: float = 0.0  # seconds of the least load

    def run(self, singles: Sequence[SettingsTrial]) -> SettingsTrial:
        """The best candidate, the base where none is better.  `singles` are changes of it, each
        known to fit.
        """
        start = self.clock()
        base = self._measure_round("warm-up", SMALL, [self.base])[self.base]
        self._unit = self.clock() - start
        seen = self._measure_singles(singles, start + SINGLES * self.seconds)
        gains = {
            one: self.targets.score(got) - self.targets.score(base) for one, got in seen.items()
        }
        combined = combine(gains, self.base, self.fits)
        again = self._halve(combined, start + COMBINED * self.seconds)
        return self._decide(again, start + self.seconds)

    def _measure_singles(
        self, singles: Sequence[SettingsTrial], end: float
    ) -> dict[SettingsTrial, LoadFigures]:
        """Each once, by the change; what the time is not enough for is left out."""
        found: dict[SettingsTrial, LoadFigures] = {}
        for i, one in enumerate(singles):
            if self.clock() >= end and found:
                break
            self.begun("single settings", i, len(singles))
            whole = self.base.join([one])
            found[one] = self._measure_round("single settings", SMALL, [whole])[whole]
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
        """Rounds of all finalists and the base, until the time is up."""
        everyone = [self.base, *(one for one in finalists if one != self.base)]
        size = self._choose_size(end - self.clock(), LEAST_ROUNDS * len(everyone))
        rounds: list[dict[SettingsTrial, LoadFigures]] = []
        for i in range(MOST_ROUNDS):
            if len(rounds) >= LEAST_ROUNDS and self.clock() >= end:
                break
            self.begun("finalists", i, MOST_ROUNDS)
            turn = i % len(everyone)  # the first place changes
            rounds.append(self._measure_round("finalists", size, everyone[turn:] + everyone[:turn]))
        gains = {one: self._find_gain(rounds, one) for one in everyone}
        best = max(everyone, key=lambda one: gains[one])
        return best if gains[best] > NOISE else self.base

    def _find_gain(
        self, rounds: Iterable[dict[SettingsTrial, LoadFigures]], one: SettingsTrial
    ) -> float:
        """The median over rounds of a candidate's score less the base's."""
        score = self.targets.score
        gains = sorted(score(seen[one]) - score(seen[self.base]) for seen in rounds)
        middle = len(gains) // 2
        return gains[middle] if len(gains) % 2 else (gains[middle - 1] + gains[middle]) / 2

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


def combine(
    gains: dict[SettingsTrial, float], base: SettingsTrial = DEFAULTS, fits: Fits = lambda one: True
) -> list[SettingsTrial]:
    """Combinations of the changes that gain, made to the base, the most promising first, by the sum
    of gains; single ones and the base are among them.
    """
    by_setting: dict[tuple[str, ...], list[SettingsTrial]] = {}
    for one in sorted(gains, key=lambda one: -gains[one]):
        if gains[one] > NOISE:
            by_setting.setdefault(tuple(name for name, _ in one.changes[:1]), []).append(one)
    choices = [[DEFAULTS, *values[:BEST_VALUES]] for values in by_setting.values()]
    ranked: dict[SettingsTrial, float] = {}
    for parts in itertools.product(*choices):
        ranked.setdefault(base.join(parts), sum(gains.get(one, 0.0) for one in parts))
    fitting = filter(fits, sorted(ranked, key=lambda one: -ranked[one]))
    return [*itertools.islice(fitting, MOST_COMBINED)]
