"""Energy of queries, by the founding document's formula: power x hours.

"LLM Inference Optimization" for edge RAG, section "Energy Efficiency", for 1M queries: 350 W x
110 h = 38.5 kWh on a GPU, 200 W x 3600 h = 720 kWh on a CPU, at $0.15 a kWh.
"""

from dataclasses import dataclass

HOUR = 3600


@dataclass(frozen=True, slots=True)
class PowerDraw:
    """A device of `watts` that is busy for `seconds` with a query."""

    name: str
    watts: float
    seconds: float

    @classmethod
    def of_hours(cls, name: str, watts: float, hours: float, queries: float) -> "PowerDraw":
        """One that is busy for `hours` with all queries."""
        return cls(name, watts, hours * HOUR / queries)

    @property
    def joules(self) -> float:
        """Of one query."""
        return self.watts * self.seconds

    def compute_kwh(self, queries: float) -> float:
        return self.joules * queries / (1000 * HOUR)
