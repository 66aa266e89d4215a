"""How many requests a second a machine serves within targets: queueing on the cost model of steps.

A rate is served if nine of ten requests meet both targets.  The capacity is the highest such rate,
found by doubling and then halving intervals; a load lasts many times as long as one request alone
and as the target of its first token, so that a queue that grows shows.

Invariant: figures repeat exactly for one cost model and seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import median, quantiles

from flyweight.errors import ConfigError
from flyweight.planning.queueing import ArrivalLoad, QueueSimulator, ServedTimes
from flyweight.planning.units import write_seconds

SHARE = 0.9  # of requests that meet the targets
LEAST, MOST = 200, 2000  # requests of a simulated load
LONG, PATIENT = 10, 20  # times as long as one request alone, and as the target, at least
PRECISION = 1.02
DOUBLINGS = 30
KNEE = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5)


@dataclass(frozen=True, slots=True)
class LatencyTargets:
    """Seconds to the first token, and between tokens on average; `written` is how the user wrote
    them, if one did.
    """

    ttft: float
    itl: float
    written: tuple[str, str] = ("", "")

    def measure_met(self, served: ServedTimes) -> float:
        """The share of requests that meet both."""
        met = [
            a <= self.ttft and b <= self.itl for a, b in zip(served.ttft, served.itl, strict=True)
        ]
        return sum(met) / len(met)


@dataclass(frozen=True, slots=True)
class RatePoint:
    """What requests see at a rate."""

    rate: float
    ttft: float
    ttft_p90: float
    itl_p90: float
    concurrency: float
    output: float
    met: float

    @classmethod
    def of(
        cls, rate: float, load: ArrivalLoad, served: ServedTimes, targets: LatencyTargets
    ) -> "RatePoint":
        tokens = load.output * len(served.ttft)
        return cls(
            rate,
            median(served.ttft),
            compute_p90(served.ttft),
            compute_p90(served.itl),
            served.concurrency,
            tokens / served.seconds,
            targets.measure_met(served),
        )


@dataclass(frozen=True, slots=True)
class Capacity:
    """The highest rate that is served, the points around it, and what one request alone sees."""

    rate: float
    alone: RatePoint
    points: tuple[RatePoint, ...]

    @property
    def best(self) -> RatePoint:
        return next(point for point in self.points if point.rate == self.rate)

    def find_binding(self, targets: LatencyTargets) -> str:
        """Which target fails first, just above the capacity."""
        above = next(point for point in self.points if point.rate > self.rate)
        late, slow = above.ttft_p90 / targets.ttft, above.itl_p90 / targets.itl
        return "TTFT" if late >= slow else "ITL"


def find_capacity(
    simulator: QueueSimulator, load: ArrivalLoad, targets: LatencyTargets
) -> Capacity:
    """Raises `ConfigError` where one request alone misses a target."""
    single = simulator.run(replace(load, count=1), 1.0)
    alone = RatePoint.of(0.0, load, single, targets)
    check_alone(alone, targets)

    lasts = max(LONG * single.e2el[0], PATIENT * targets.ttft)

    def see(rate: float) -> RatePoint:
        count = min(max(LEAST, round(rate * lasts)), MOST)
        sized = replace(load, count=count)
        return RatePoint.of(rate, sized, simulator.run(sized, rate), targets)

    low = 1 / single.e2el[0]
    while see(low).met < SHARE:
        low /= 2
    high = 2 * low
    for _ in range(DOUBLINGS):
        if see(high).met < SHARE:
            break
        low, high = high, 2 * high
    while high / low > PRECISION:
        middle = sqrt(low * high)
        low, high = (middle, high) if see(middle).met >= SHARE else (low, middle)
    points = tuple(see(low * factor) for factor in KNEE)
    return Capacity(low, alone, points)


def check_alone(alone: RatePoint, targets: LatencyTargets) -> None:
    """Raises `ConfigError` naming the target that nothing can meet here, and the nearest."""
    for name, seen, wanted, written in (
        ("ttft", alone.ttft, targets.ttft, targets.written[0]),
        ("itl", alone.itl_p90, targets.itl, targets.written[1]),
    ):
        if seen > wanted:
            takes, value, near = (
                write_seconds(at).replace(" ", "") for at in (seen, wanted, 1.1 * seen)
            )
            raise ConfigError(
                f"cannot be met: one request alone takes {takes}",
                name,
                value=written or value,
                hint=f"nearest valid: {near}",
            )


def compute_p90(values: Sequence[float]) -> float:
    return quantiles(values, n=10, method="inclusive")[-1] if len(values) > 1 else values[0]
