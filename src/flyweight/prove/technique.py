"""A technique as data, and what one run of its workload gives.

Invariant: both sides of a technique get the same workload; a technique's file makes `off` and `on`
differ in what they name and in nothing else.  Knows no statistics and no terminal.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Protocol

from flyweight.prove.figures import ENOUGH_PAIRS

SIDES = ("off", "on")
METRICS = {
    "throughput": "seconds of the whole workload",
    "ttft": "median time to the first token",
    "itl": "median time between tokens",
}
WORK = ("requests", "prompt tokens", "output tokens")
LIMIT = "seconds at the limits"  # a figure of sides that know it
CHANCE = "share right by chance"  # a figure of sides that are judged by what is right
Answer = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProveJob:
    """What a side is opened with: a model's path, threads (None: all), and a folder that both sides
    share and that is removed after them.
    """

    model: Path
    folder: Path
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run of a workload: what was done, and what it took.

    `ttfts` and `itls` are seconds, of the requests that are judged.  `answers` are token ids
    (none: not known).  `peak` is the most bytes that the side's process held (0: not known),
    `joules` what the processor used meanwhile, `others` the cores that other processes used
    (None: not known).  `right` says of each answer whether it is, where that is what is judged
    (none: it is not).  `figures` are a technique's own, by their names.
    """

    seconds: float
    requests: int
    prompt_tokens: int
    output_tokens: int
    ttfts: tuple[float, ...] = ()
    itls: tuple[float, ...] = ()
    answers: tuple[Answer, ...] = ()
    peak: int = 0
    joules: float | None = None
    others: float | None = None
    right: tuple[bool, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def work(self) -> tuple[int, int, int]:
        """What must be equal where times are compared, as `WORK` names it."""
        return self.requests, self.prompt_tokens, self.output_tokens

    def find_time(self, metric: str) -> float | None:
        """The seconds that a metric compares; None where the workload has none."""
        if metric == "throughput":
            return self.seconds
        times = self.ttfts if metric == "ttft" else self.itls
        return median(times) if times else None


class Side(Protocol):
    """A technique off, or on, ready to run; `notes` say what of the workload was scaled."""

    @property
    def notes(self) -> Sequence[str]: ...
    def run(self, round: int, share: float) -> Measurement:
        """`share` of the workload's requests, at least one; other tokens in every round."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Technique:
    """`off` and `on` say how each is made; `open` makes either.

    `metric` is what is compared where the user chooses none.  `exact` techniques promise the same
    tokens.  `seed` is the speed-up that a founding document reports.  `stand_in` names the model
    that the workload needs where the user gives none ("": the one inside the package).  At least
    `least_share` of the requests show what it does; fewer than all are made where `planned` pairs
    would not fit the time.  `same` is the work that both sides must do:
    less than all of it where a technique is to save tokens.  `instead` says what is measured
    where that is no model.
    """

    name: str
    what: str
    workload: str
    off: str
    on: str
    metric: str
    open: Callable[[ProveJob, str], Side]
    seed: str = ""
    exact: bool = True
    stand_in: str = ""
    least_share: float = 1 / 16
    planned: int = ENOUGH_PAIRS
    same: tuple[str, ...] = WORK
    instead: str = ""
