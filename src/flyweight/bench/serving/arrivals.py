"""When requests are sent: all at once, or by chance at a rate, or at a rate that grows.

Invariant: times do not fall; at a constant rate the last request comes when so many would have come
on average, as in vLLM, so that the rate is the requested one.
"""

import math
import random
from dataclasses import dataclass

from flyweight.errors import ConfigError, nearest

RAMPS = ("linear", "exponential")


@dataclass(frozen=True, slots=True)
class ArrivalRate:
    """`rate` requests a second, `burstiness` the shape of the gamma distribution of the gaps: 1 is
    Poisson's, less comes in bursts, more is even.  A `ramp` goes from `ramp_start` to `ramp_end`.
    """

    rate: float = math.inf
    burstiness: float = 1.0
    ramp: str | None = None
    ramp_start: float | None = None
    ramp_end: float | None = None

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise ConfigError(f"request_rate = {self.rate:g} is out of range; allowed: above 0")
        if not self.burstiness > 0:
            raise ConfigError(f"burstiness = {self.burstiness:g} is out of range; allowed: above 0")
        ends = (self.ramp_start, self.ramp_end)
        if self.ramp is None:
            if ends != (None, None):
                raise ConfigError("ramp_up_start_rps and ramp_up_end_rps need ramp_up_strategy")
            return
        if self.ramp not in RAMPS:
            raise ConfigError(
                f"ramp_up_strategy = {self.ramp!r}; allowed: {', '.join(RAMPS)}"
                f"{nearest(self.ramp, RAMPS)}"
            )
        if not math.isinf(self.rate):
            raise ConfigError(f"request_rate = {self.rate:g} with a ramp: give one of them")
        if any(end is None or not 0 < end < math.inf for end in ends):
            raise ConfigError("a ramp needs ramp_up_start_rps and ramp_up_end_rps above 0")

    def draw_times(self, count: int, rng: random.Random) -> list[float]:
        """Seconds after the start."""
        if math.isinf(self.rate) and self.ramp is None:
            return [0.0] * count
        at, found = 0.0, []
        for i in range(count):
            rate = self._compute_rate(i / max(1, count - 1))
            at += 1 / rate if math.isinf(self.burstiness) else self._draw_gap(rate, rng)
            found.append(at)
        if self.ramp is None and at > 0:
            scale = count / self.rate / at
            found = [time * scale for time in found]
        return found

    def list_growth(self, count: int) -> list[tuple[int, int]]:
        """Of a ramp: with which request which whole rate was first reached."""
        if self.ramp is None:
            return []
        found: list[tuple[int, int]] = []
        for i in range(count):
            rate = int(self._compute_rate(i / max(1, count - 1)))
            reached = found[-1][1] if found else rate - 1
            found += [(i, whole) for whole in range(reached + 1, rate + 1)]
        return found

    def _draw_gap(self, rate: float, rng: random.Random) -> float:
        return rng.gammavariate(self.burstiness, 1 / (rate * self.burstiness))

    def _compute_rate(self, progress: float) -> float:
        if self.ramp is None:
            return self.rate
        assert self.ramp_start is not None and self.ramp_end is not None
        if self.ramp == "linear":
            return self.ramp_start + (self.ramp_end - self.ramp_start) * progress
        growth: float = (self.ramp_end / self.ramp_start) ** progress
        return self.ramp_start * growth
