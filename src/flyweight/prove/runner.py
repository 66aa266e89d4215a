"""Runs a technique off and on, in turn, until the interval of its speed-up is tight or the time is
up.

Invariant: a pair is an off and an on of the same round, right after one another, and who goes first
changes from pair to pair; warm-up runs are not counted.  Unequal work is refused.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from flyweight.bench.facts import measure_size
from flyweight.errors import ConfigError
from flyweight.prove.figures import (
    ENOUGH_PAIRS,
    LEAST_PAIRS,
    SpeedInterval,
    bootstrap,
    compute_ratios,
)
from flyweight.prove.outcome import Pair, ProveOutcome, check_work
from flyweight.prove.technique import SIDES, Measurement, ProveJob, Side, Technique

OpenSide = Callable[[Technique, ProveJob, str], Side]
WARM_SHARE = 0.1  # of the requests, in the runs that warm up and tell how long all would take


@dataclass(frozen=True, slots=True)
class ProvePlan:
    """`seconds` for one technique; at least `least` pairs before an interval counts as tight, which
    is `width` of the median.  `share` of the requests are made (None: what fits the time).
    """

    seconds: float = 60.0
    least: int = ENOUGH_PAIRS
    most: int = 100
    width: float = 0.06
    metric: str | None = None
    share: float | None = None


class ProveListener:
    """Receives the progress of a run; every method may do nothing."""

    def begin(self, technique: Technique, seconds: float) -> None: ...
    def show_run(self, technique: Technique, what: str, spent: float) -> None: ...
    def show_speed(self, technique: Technique, speed: SpeedInterval) -> None: ...
    def end(self, technique: Technique) -> None: ...


@dataclass(slots=True)
class OpenedSides:
    """Both sides of a technique: open at once where memory allows, else one closes for the
    other.
    """

    technique: Technique
    job: ProveJob
    open: OpenSide
    together: bool = True
    notes: list[str] = field(default_factory=list)
    _sides: dict[str, Side] = field(default_factory=dict)

    def find(self, name: str) -> Side:
        """A side that is ready to run."""
        if name in self._sides:
            return self._sides[name]
        if not self.together:
            self.close()
        try:
            side = self.open(self.technique, self.job, name)
        except ConfigError:
            if not self._sides:
                raise
            self.together = False  # the other one's memory may be what is missing
            self.close()
            side = self.open(self.technique, self.job, name)
            self.notes.append("memory holds one side at a time: each is loaded for every run")
        self._sides[name] = side
        self.notes += [note for note in side.notes if note not in self.notes]
        return side

    def close(self) -> None:
        while self._sides:
            self._sides.popitem()[1].close()


class PairRunner:
    """Warm-up, then pairs."""

    def __init__(
        self,
        sides: OpenedSides,
        plan: ProvePlan,
        listener: ProveListener,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.sides, self.plan, self.listener, self.clock = sides, plan, listener, clock
        self.technique = sides.technique
        self.metric = plan.metric or self.technique.metric
        self.start = clock()
        self.pairs: list[Pair] = []
        self.share = 1.0

    @property
    def spent(self) -> float:
        return self.clock() - self.start

    def run(self) -> None:
        """Until the interval is tight, or the next pair would not fit."""
        self.share = self._choose_share(self._warm_up())
        while len(self.pairs) < self.plan.most and not self._is_done():
            began = self.spent
            self._measure_pair(len(self.pairs))
            taken = self.spent - began
            late = self.spent + taken > self.plan.seconds
            if late and len(self.pairs) >= LEAST_PAIRS:
                break

    def _warm_up(self) -> float:
        """Seconds that a pair of whole workloads would take, from a part of one."""
        taken = 0.0
        for name in SIDES:
            side = self.sides.find(name)
            self.listener.show_run(self.technique, f"warm-up, {name}", self.spent)
            began = self.clock()
            measured = side.run(-1, WARM_SHARE)
            taken += self.clock() - began
            if measured.find_time(self.metric) is None:
                raise ConfigError(
                    f"is not measured by {self.technique.name}", "metric", value=self.metric,
                    hint=f"nearest valid: {self.technique.metric}",
                )  # fmt: skip
        return taken / WARM_SHARE

    def _choose_share(self, whole: float) -> float:
        if self.plan.share is not None:
            return self.plan.share
        left = max(0.0, self.plan.seconds - self.spent)
        share, planned = 1.0, self.technique.planned
        while share / 2 >= self.technique.least_share and share * planned * whole > left:
            share /= 2  # so that runs that are compared later likely have the same
        return share

    def _measure_pair(self, round: int) -> None:
        order = SIDES if round % 2 == 0 else SIDES[::-1]
        found: dict[str, Measurement] = {}
        for name in order:
            self.listener.show_run(self.technique, f"pair {round + 1}, {name}", self.spent)
            side = self.sides.find(name)
            if not self.sides.together:
                side.run(-1, WARM_SHARE)  # it may just have been loaded
            found[name] = side.run(round, self.share)
        pair = found["off"], found["on"]
        check_work(self.technique, pair)
        self.pairs.append(pair)
        if len(self.pairs) >= LEAST_PAIRS:
            self.listener.show_speed(self.technique, self._compute_speed())

    def _is_done(self) -> bool:
        enough = len(self.pairs) >= max(self.plan.least, LEAST_PAIRS)
        return enough and self._compute_speed().width <= self.plan.width

    def _compute_speed(self) -> SpeedInterval:
        times = [[run.find_time(self.metric) or 0.0 for run in pair] for pair in self.pairs]
        return bootstrap(compute_ratios([off for off, _ in times], [on for _, on in times]))


def prove(
    technique: Technique,
    job: ProveJob,
    plan: ProvePlan,
    open_side: OpenSide,
    listener: ProveListener | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> ProveOutcome:
    """Raises `UnequalWork`, and `ConfigError` for a metric that the workload has not."""
    listener = listener or ProveListener()
    listener.begin(technique, plan.seconds)
    sides = OpenedSides(technique, job, open_side)
    with ExitStack() as stack:
        stack.callback(lambda: listener.end(technique))
        stack.callback(sides.close)
        runner = PairRunner(sides, plan, listener, clock)
        runner.run()
    if runner.share < 1:
        sides.notes.append(
            f"1/{1 / runner.share:g} of the requests are made, at least one: pairs fit the time"
        )
    return ProveOutcome(
        technique,
        runner.metric,
        job.model.name,
        tuple(runner.pairs),
        tuple(sides.notes),
        runner.share,
        measure_size(job.model),
    )
