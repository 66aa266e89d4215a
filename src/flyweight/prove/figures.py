"""From pairs of times to a speed-up with its interval, and a verdict.

Invariant: pure functions with a fixed seed: the same pairs give the same figures.  A speed-up is
off's time over on's, of the same round.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from flyweight.errors import ConfigError
from flyweight.eval.proportions import ShareInterval

DRAWS, CONFIDENCE, SEED = 2000, 0.95, 20
NEGLIGIBLE = 0.01  # a change of speed that is none
KEEP, NOTHING, HARMFUL = "keep", "no effect", "harmful"
LEAST_PAIRS = 2
ENOUGH_PAIRS = 6  # of fewer, even all of them enclose a median with less than 95 %


@dataclass(frozen=True, slots=True)
class SpeedInterval:
    """A median and the ends of its interval at 95 % confidence."""

    median: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """Of the whole interval, as a share of the median."""
        return (self.high - self.low) / self.median

    def __str__(self) -> str:
        return f"{self.median:.2f}x [{self.low:.2f}, {self.high:.2f}]"


def compute_ratios(off: Sequence[float], on: Sequence[float]) -> list[float]:
    """Off's time over on's, round by round."""
    return [a / b for a, b in zip(off, on, strict=True)]


def bootstrap(ratios: Sequence[float]) -> SpeedInterval:
    """The median of pairwise ratios, with the percentiles of medians of pairs drawn again."""
    check_count(len(ratios))
    draw = random.Random(SEED)
    return _summarize(median(ratios), lambda: median(draw.choices(ratios, k=len(ratios))))


def find_most_confidence(pairs: int) -> float:
    """How likely a median is between the least and the greatest of so many."""
    return 1 - 2.0 ** (1 - pairs)


def bootstrap_unpaired(before: Sequence[float], now: Sequence[float]) -> SpeedInterval:
    """The median now over the median before, where both were drawn apart."""
    check_count(min(len(before), len(now)))
    draw = random.Random(SEED)

    def compare() -> float:
        a, b = draw.choices(before, k=len(before)), draw.choices(now, k=len(now))
        return median(b) / median(a)

    return _summarize(median(now) / median(before), compare)


def _summarize(middle: float, compute: Callable[[], float]) -> SpeedInterval:
    found = sorted(compute() for _ in range(DRAWS))
    outside = round(DRAWS * (1 - CONFIDENCE) / 2)
    return SpeedInterval(middle, found[outside], found[-1 - outside])


def check_count(count: int) -> None:
    """Raises `ConfigError` for too few measurements to say anything."""
    if count < LEAST_PAIRS:
        raise ConfigError(
            "are too few for an interval", "measurements", value=count,
            allowed=f"{LEAST_PAIRS} or more", hint="give more --minutes",
        )  # fmt: skip


def judge(speed: SpeedInterval, *, broken: bool = False) -> str:
    """Keep or harmful where the whole interval is on one side of no change; `broken` techniques
    gave other answers than they promise.
    """
    if broken or speed.high < 1 - NEGLIGIBLE:
        return HARMFUL
    return KEEP if speed.low > 1 + NEGLIGIBLE else NOTHING


def judge_accuracy(difference: ShareInterval) -> str:
    """By shares of right answers, on's less off's: keep or harmful where the whole interval is on
    one side of none.
    """
    if difference.high < 0:
        return HARMFUL
    return KEEP if difference.low > 0 else NOTHING
