"""What was found out about a technique, as data: measurements of both sides, in pairs.

Invariant: pairs did the same work, else there is no outcome; all that is shown is made from it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from statistics import median
from typing import Any

from flyweight.errors import EngineError
from flyweight.eval.proportions import ShareInterval, compare_paired, make_wilson
from flyweight.prove.figures import (
    ENOUGH_PAIRS,
    SpeedInterval,
    bootstrap,
    compute_ratios,
    judge,
    judge_accuracy,
)
from flyweight.prove.technique import LIMIT, SIDES, WORK, Measurement, Technique

Pair = tuple[Measurement, Measurement]  # off, on


class UnequalWork(EngineError):
    """Two runs that did not do the same, whose times cannot be compared."""


def check_work(technique: Technique, pair: Pair) -> None:
    """Raises `UnequalWork`."""
    for what, off, on in zip(WORK, pair[0].work, pair[1].work, strict=True):
        if what in technique.same and off != on:
            raise UnequalWork(
                f"{technique.name}: off did {off} {what}, on did {on}; unequal work is not compared"
            )


@dataclass(frozen=True, slots=True)
class SideFigures:
    """Medians over the rounds of one side; None for what was not measured."""

    seconds: float
    requests_per_s: float
    tokens_per_s: float
    ttft: float | None
    itl: float | None
    peak: int | None
    joules: float | None
    figures: dict[str, float]

    @classmethod
    def of(cls, runs: Sequence[Measurement]) -> "SideFigures":
        def middle(metric: str) -> float | None:
            found = [t for run in runs if (t := run.find_time(metric)) is not None]
            return median(found) if found else None

        joules = [run.joules for run in runs if run.joules is not None]
        seconds = median(run.seconds for run in runs)
        return cls(
            seconds,
            runs[0].requests / seconds,
            (runs[0].prompt_tokens + runs[0].output_tokens) / seconds,
            middle("ttft"),
            middle("itl"),
            max(run.peak for run in runs) or None,
            median(joules) if joules else None,
            {name: median(run.figures[name] for run in runs) for name in runs[0].figures},
        )


@dataclass(frozen=True, slots=True)
class PairedAccuracy:
    """Shares of right answers, off and on, and their difference on the same texts."""

    count: int
    off: ShareInterval
    on: ShareInterval
    difference: ShareInterval

    @classmethod
    def of(cls, off: Sequence[bool], on: Sequence[bool]) -> "PairedAccuracy":
        count, pairs = len(on), list(zip(off, on, strict=True))
        gained, lost = pairs.count((False, True)), pairs.count((True, False))
        return cls(
            count, make_wilson(sum(off), count), make_wilson(sum(on), count),
            compare_paired(gained, lost, count),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProveOutcome:
    """A technique's pairs, on a model, with what of the workload was scaled; `share` of its
    requests were made.
    """

    technique: Technique
    metric: str
    model: str
    pairs: tuple[Pair, ...]
    notes: tuple[str, ...] = ()
    share: float = 1.0
    model_bytes: int = 0

    def list_times(self, side: str) -> list[float]:
        """What is compared, in rounds."""
        runs = [pair[SIDES.index(side)] for pair in self.pairs]
        return [time for run in runs if (time := run.find_time(self.metric)) is not None]

    @property
    def speed(self) -> SpeedInterval:
        return bootstrap(self.list_ratios())

    def list_ratios(self) -> list[float]:
        """Off's time over on's, in rounds."""
        return compute_ratios(self.list_times("off"), self.list_times("on"))

    @property
    def ceiling(self) -> float | None:
        """The most that the speed-up could be: off's time over the least that on's steps take at
        the machine's limits, the median of all pairs.  None where that is not known, or where not
        the time of all steps is compared.
        """
        if self.metric != "throughput" or any(LIMIT not in on.figures for _, on in self.pairs):
            return None
        return median(off.seconds / on.figures[LIMIT] for off, on in self.pairs)

    @property
    def equal(self) -> float | None:
        """The share of tokens that are the same; None where no answers are known."""
        return compare_answers(self.pairs)

    @property
    def seed(self) -> str:
        """The founding document's speed-up, which is by the technique's own metric."""
        return self.technique.seed if self.metric == self.technique.metric else ""

    @property
    def others(self) -> float | None:
        """Cores that other processes used, the median of all runs."""
        known = [run.others for pair in self.pairs for run in pair if run.others is not None]
        return median(known) if known else None

    @property
    def accuracy(self) -> "PairedAccuracy | None":
        """Of the first pair, as rounds repeat its texts; None where nothing is right or wrong."""
        off, on = self.pairs[0]
        return PairedAccuracy.of(off.right, on.right) if on.right else None

    @property
    def broken(self) -> bool:
        """Whether answers differ where the same are promised."""
        return self.technique.exact and self.equal is not None and self.equal < 1

    @property
    def verdict(self) -> str:
        if self.accuracy is not None:
            return judge_accuracy(self.accuracy.difference)
        return judge(self.speed, broken=self.broken)

    @property
    def certain(self) -> bool:
        """Whether the verdict holds with 95 %: one by times needs enough pairs."""
        by_time = self.accuracy is None and not self.broken
        return not by_time or len(self.pairs) >= ENOUGH_PAIRS

    @property
    def shown_verdict(self) -> str:
        """The verdict, with a question mark where it is not certain."""
        return self.verdict + "?" * (not self.certain)

    def summarize(self, side: str) -> SideFigures:
        return SideFigures.of([pair[SIDES.index(side)] for pair in self.pairs])


def compare_answers(pairs: Sequence[Pair]) -> float | None:
    """Tokens at which both sides agree, of all that either wrote."""
    same = total = 0
    for off, on in pairs:
        for a, b in zip_longest(off.answers, on.answers, fillvalue=()):
            same += sum(x == y for x, y in zip(a, b, strict=False))
            total += max(len(a), len(b))
    return same / total if total else None


def to_document(outcome: ProveOutcome) -> dict[str, Any]:
    """The outcome as plain data."""
    technique, speed = outcome.technique, outcome.speed
    return {
        "technique": technique.name,
        "what": technique.what,
        "workload": technique.workload,
        "off": technique.off,
        "on": technique.on,
        "seed": outcome.seed,
        "model": outcome.model,
        "model_bytes": outcome.model_bytes,
        "notes": list(outcome.notes),
        "share": outcome.share,
        "metric": outcome.metric,
        "pairs": len(outcome.pairs),
        "speedup": {"median": speed.median, "low": speed.low, "high": speed.high},
        "ceiling": outcome.ceiling,
        "verdict": outcome.verdict,
        "certain": outcome.certain,
        "other_cores": outcome.others,
        "equal_tokens": outcome.equal,
        "exact": technique.exact,
        "accuracy": None if outcome.accuracy is None else asdict(outcome.accuracy),
        "work": dict(zip(WORK, outcome.pairs[0][0].work, strict=True)),
        **{
            side: {
                "seconds": figures.seconds,
                "requests_per_s": figures.requests_per_s,
                "tokens_per_s": figures.tokens_per_s,
                "ttft_p50": figures.ttft,
                "itl_p50": figures.itl,
                "peak_bytes": figures.peak,
                "joules": figures.joules,
                **figures.figures,
                "times": outcome.list_times(side),
            }
            for side in SIDES
            for figures in [outcome.summarize(side)]
        },
    }
