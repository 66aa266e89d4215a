"""Money: of a token on a rented machine, and where own hardware is cheaper than an API.

Each formula names the founding document that has it.  Prices are in US dollars.
"""

from dataclasses import dataclass
from math import ceil

HOUR, DAY = 3600, 86400


def compute_token_cost(hourly: float, latency: float, tokens: float) -> float:
    """Price a second x latency / tokens: of the lesson "LLM Inference Optimization", section "Cost
    per Token".
    """
    return hourly / HOUR * latency / tokens


@dataclass(frozen=True, slots=True)
class CloudPrice:
    """An API that is paid by the token: `price` for 1,000, `tokens` a query."""

    price: float = 0.01
    tokens: float = 100

    @property
    def query(self) -> float:
        return self.price * self.tokens / 1000


@dataclass(frozen=True, slots=True)
class EdgePrice:
    """Own hardware: `hardware` paid off in `months`, and what a month takes.  One device answers a
    query in `latency` seconds.
    """

    hardware: float = 2000
    months: float = 6
    electricity: float = 100
    maintenance: float = 50
    latency: float = 0.4

    @property
    def month(self) -> float:
        """Dollars a month for one device."""
        return self.hardware / self.months + self.electricity + self.maintenance

    def count_devices(self, daily: float) -> int:
        """Devices for so many queries a day, one at a time, day and night."""
        return max(1, ceil(daily * self.latency / DAY))


def compute_breakeven(cloud: CloudPrice, edge: EdgePrice) -> float:
    """Queries a month from which on one device is cheaper: a month of it / the price of a query; of
    "LLM Inference Optimization" for edge RAG, section "Cost Per Query Analysis".
    """
    return edge.month / cloud.query
