"""A GPU or CPUs for a number of requests a day: what a month costs, and how long an answer takes.

Prices, power and times of the founding document "LLM Inference Optimization" for edge RAG, table
"GPU vs. CPU Inference", are the defaults of the command.
"""

from dataclasses import dataclass
from math import ceil

DAY, MONTH_DAYS, KWH = 86400, 30, 3.6e6


@dataclass(frozen=True, slots=True)
class PricedDevice:
    """`latency` seconds an answer, one at a time; `watts` at work, `idle` else."""

    name: str
    price: float
    watts: float
    idle: float
    latency: float


@dataclass(frozen=True, slots=True)
class Bill:
    """What a price is worked out for: paid off in `months`, `kwh` dollars, `tokens` an answer."""

    daily: float
    months: float
    kwh: float
    tokens: float


@dataclass(frozen=True, slots=True)
class MonthlyCost:
    """Of `count` devices: dollars a month, and how busy they are from 0 to 1."""

    count: int
    busy: float
    hardware: float
    energy: float

    @property
    def total(self) -> float:
        return self.hardware + self.energy


def compute_month(device: PricedDevice, bill: Bill) -> MonthlyCost:
    """Hardware / months + power x time: devices enough to answer one after the other, day and
    night.  Time in a queue is not counted.
    """
    work = bill.daily * device.latency  # seconds a day
    count = max(1, ceil(work / DAY))
    idle = count * DAY - work
    joules = MONTH_DAYS * (work * device.watts + idle * device.idle)
    hardware = count * device.price / bill.months
    return MonthlyCost(count, work / (count * DAY), hardware, joules / KWH * bill.kwh)


def compute_per_token(cost: MonthlyCost, bill: Bill) -> float:
    return cost.total / (MONTH_DAYS * bill.daily * bill.tokens)
