"""Techniques with times that are given, for tests of what is made of them."""

from collections.abc import Callable, Iterator
from pathlib import Path

from flyweight.prove.technique import Measurement, ProveJob, Technique

JOB = ProveJob(Path("model.gguf"), Path("folder"))
TimeRun = Callable[[str, int, float], float]  # side, round, share: seconds


class FakeClock:
    """Time passes where runs take it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeSide:
    """A run takes what it is told; `requests` and `answers` are those of every run."""

    notes = ("cut",)

    def __init__(
        self,
        name: str,
        clock: FakeClock,
        take: TimeRun,
        requests: int = 10,
        answer: tuple[int, ...] = (1, 2),
    ) -> None:
        self.name, self.clock, self.take = name, clock, take
        self.requests, self.answer = requests, answer
        self.runs: list[tuple[int, float]] = []
        self.closed = False

    def run(self, round: int, share: float) -> Measurement:
        assert not self.closed
        self.runs.append((round, share))
        seconds = self.take(self.name, round, share)
        self.clock.now += seconds
        return Measurement(
            seconds,
            self.requests,
            100,
            20,
            ttfts=(seconds / 2, seconds / 4, seconds / 8),
            answers=(self.answer,),
            peak=1 << 20,
        )

    def close(self) -> None:
        self.closed = True


def make_technique(exact: bool = True) -> Technique:
    def refuse(job: ProveJob, side: str) -> FakeSide:
        raise AssertionError("the runner opens sides with what it is given")

    return Technique(
        "fake", "what", "workload", "is off", "is on", "throughput", refuse, "2x", exact
    )


def cycle_times(*seconds: float) -> TimeRun:
    """On takes 1 s per share of all; off these seconds in turn."""
    coming: Iterator[float] = iter(seconds * 100)

    def take(side: str, round: int, share: float) -> float:
        return share * (next(coming) if side == "off" else 1.0)

    return take
