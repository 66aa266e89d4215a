"""What a run of several techniques has found.

Invariant: plain data; a technique is among the outcomes or among the failures.
"""

from dataclasses import dataclass

from flyweight.bench.facts import Surroundings
from flyweight.prove.outcome import ProveOutcome
from flyweight.prove.technique import Technique


@dataclass(frozen=True, slots=True)
class ProveFailure:
    """A technique that gave no figures, and why; `skipped` where it cannot be measured here."""

    technique: Technique
    problem: str
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class ProvedSuite:
    """What was found, in order, and where; `model` is the user's choice ("": none).  One that
    was `stopped` lacks techniques.
    """

    model: str
    around: Surroundings
    outcomes: tuple[ProveOutcome, ...]
    failures: tuple[ProveFailure, ...] = ()
    stopped: bool = False
