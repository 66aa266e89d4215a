"""What requests and the server cost, by the configured prices.

Invariant: what cannot be read, or has no price, is `UNAVAILABLE` or None, never 0.
"""

import time
from collections.abc import Callable
from pathlib import Path

from flyweight.plan.energy import POWERCAP, EnergyMeter
from flyweight.server.settings import ServerSettings
from flyweight.types import StepUse

UNAVAILABLE = "unavailable"
KWH = 3_600_000.0  # joules
HOUR = 3600.0
MILLION = 1_000_000


def describe_cost(
    settings: ServerSettings, use: StepUse, prompt: int, made: int
) -> dict[str, float | str]:
    """The cost of a request of `prompt` tokens that made so many."""
    return {
        "step_seconds": round(use.seconds, 6),
        "energy_joules": show(use.joules),
        "machine_cost": show(price_machine(settings, use.seconds, use.joules)),
        "cloud_cost": show(price_tokens(settings, prompt, made)),
    }


def show(value: float | None) -> float | str:
    """A value in six digits."""
    return UNAVAILABLE if value is None else float(f"{value:.6g}")


def price_machine(settings: ServerSettings, seconds: float, joules: float | None) -> float | None:
    """The price of time and energy of this machine; None where neither has a price, or a price
    is for energy that cannot be read.
    """
    hourly, energy = settings.price_per_hour, settings.price_per_kwh
    if not hourly and not energy:
        return None
    if energy and joules is None:
        return None
    return hourly * seconds / HOUR + energy * (joules or 0.0) / KWH


def price_tokens(settings: ServerSettings, prompt: int, made: int) -> float | None:
    """The price of tokens in the cloud; None without prices."""
    if not settings.price_input and not settings.price_output:
        return None
    return (settings.price_input * prompt + settings.price_output * made) / MILLION


class MachineCosts:
    """Time and energy of this machine since the server started, idle time included."""

    def __init__(
        self,
        settings: ServerSettings,
        root: Path = POWERCAP,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings, self.clock = settings, clock
        self._meter, self._began = EnergyMeter(root), clock()
        self._meter.begin()
        self._joules = 0.0

    def read_joules(self) -> float | None:
        """Energy so far.  A counter that ended twice since the last call is read too low."""
        more = self._meter.take()
        if more is None:
            return None
        self._joules += more
        return self._joules

    def price(self, joules: float | None) -> float | None:
        """What the machine cost so far."""
        return price_machine(self.settings, self.clock() - self._began, joules)
