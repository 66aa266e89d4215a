"""What a user wants of the settings: bounds of latency, quality and memory, and one objective.

Invariant: `Targets` that exist are valid.  A trial's score is the logarithm of its objective, less
a penalty for every target missed, so that gains of single settings add up.
"""

import math
from dataclasses import dataclass
from typing import Any

from flyweight.config import parse_bytes
from flyweight.errors import ConfigError, nearest
from flyweight.planning.quantities import check_positive
from flyweight.planning.units import write_seconds
from flyweight.tune.trial import LoadFigures
from flyweight.validation.durations import parse_seconds

OBJECTIVES = ("throughput", "latency")
PENALTY = 20.0  # of a missed target, in logarithms of the objective: a target comes first


@dataclass(frozen=True, slots=True)
class Targets:
    """Seconds that nine of ten requests may wait for their first token (`ttft`) and, on average,
    for each further one (`itl`); bytes of memory; mean KLD of the model's quality passport.  None:
    no bound.
    """

    ttft: float | None = None
    itl: float | None = None
    max_kld: float | None = None
    memory: int | None = None
    objective: str = "throughput"

    def __post_init__(self) -> None:
        if self.max_kld is not None:
            check_positive(self.max_kld, "max_kld", 0.001)
        if self.objective not in OBJECTIVES:
            raise ConfigError(
                "is not an objective" + nearest(self.objective, OBJECTIVES),
                "objective",
                value=self.objective,
                allowed=", ".join(OBJECTIVES),
            )

    @classmethod
    def parse(
        cls, ttft: str | None, itl: str | None, max_kld: float | None, memory: str | None,
        objective: str, total: int,
    ) -> "Targets":  # fmt: skip
        """From a command line; `total` is the machine's memory."""
        return cls(
            parse_seconds("ttft", ttft) if ttft else None,
            parse_seconds("itl", itl) if itl else None,
            max_kld,
            parse_bytes(memory, total, "memory") if memory else None,
            objective,
        )

    @property
    def bounds(self) -> dict[str, Any]:
        """Those that a server keeps, as its settings."""
        given = {"memory_limit": self.memory, "max_kld": self.max_kld}
        return {name: bound for name, bound in given.items() if bound is not None}

    def find_excess(self, seen: LoadFigures) -> dict[str, float]:
        """By missed target: the figure seen, in targets; always above 1."""
        pairs = {"ttft": (seen.ttft, self.ttft), "itl": (seen.itl, self.itl)}
        ratios = {name: got / want for name, (got, want) in pairs.items() if want is not None}
        return {name: ratio for name, ratio in ratios.items() if ratio > 1}

    def read_objective(self, seen: LoadFigures) -> float:
        """More is better: output tokens a second, or requests a second of one user."""
        return seen.throughput if self.objective == "throughput" else 1 / seen.latency

    def score(self, seen: LoadFigures) -> float:
        """More is better."""
        missed = sum(math.log(ratio) for ratio in self.find_excess(seen).values())
        return math.log(self.read_objective(seen)) - PENALTY * missed

    def describe(self) -> str:
        """`ttft <= 1 s, itl <= 60 ms; most throughput`, for people."""
        bounds = {"ttft": self.ttft, "itl": self.itl}
        words = [f"{name} <= {write_seconds(at)}" for name, at in bounds.items() if at is not None]
        words += [f"KLD <= {self.max_kld:g}"] if self.max_kld is not None else []
        words += [f"memory <= {self.memory / (1 << 30):.2f} GiB"] if self.memory is not None else []
        best = "most tokens/s" if self.objective == "throughput" else "least latency"
        return ", ".join([*words, best])
