"""What happened in a soak: the fates of requests, events, samples, and the texts of canaries.

Invariant: every outcome is counted once.  Times are seconds since the start of the run.  Knows no
server.
"""

import time
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from soak_parts.client import ANSWERED, FAILED, LEFT, LOST, REFUSED, Outcome

MOST_LISTED = 50  # unexpected outcomes and differing texts that are kept
GRACE = 10.0  # seconds after a recovery in which an answer may still report the engine's end
ALWAYS = frozenset({"queue_full", "queue_timeout", "models_busy"})  # codes that any request may get
DOWN = "engine_down"


@dataclass(slots=True)
class Downtime:
    """From the kill of the engine until the server was healthy again; `end` is None before."""

    begin: float
    end: float | None = None

    def covers(self, outcome: Outcome) -> bool:
        open_end = self.end is None or outcome.began <= self.end + GRACE
        return outcome.ended >= self.begin and open_end


@dataclass(slots=True)
class Canary:
    """One request whose answer is the same throughout."""

    name: str
    expected: Any = None
    checked: int = 0
    checked_after_kill: int = 0
    differing: list[Any] = field(default_factory=list)

    def check(self, found: Any, *, after_kill: bool) -> bool:
        """Whether it is the first answer, or equal to it."""
        if self.checked == 0:
            self.expected = found
        self.checked += 1
        self.checked_after_kill += after_kill
        if found != self.expected:
            self.differing = [*self.differing, found][:MOST_LISTED]
        return found == self.expected


class SoakRecord:
    """`seconds` is how long the run is to take."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self._begun = seconds, time.monotonic()
        self.fates: Counter[tuple[str, str]] = Counter()
        self.codes: Counter[tuple[str, str]] = Counter()
        self.unexpected: list[Outcome] = []
        self.downtimes: list[Downtime] = []
        self.events: list[tuple[float, str]] = []
        self.samples: list[dict[str, Any]] = []
        self.canaries: dict[str, Canary] = {}
        self.facts: dict[str, Any] = {}

    def now(self) -> float:
        return time.monotonic() - self._begun

    @property
    def over(self) -> bool:
        return self.now() >= self.seconds

    def note(self, event: str) -> None:
        self.events.append((round(self.now(), 1), event))

    def add(self, outcome: Outcome, allowed: Iterable[str] = ()) -> Outcome:
        """Counts an outcome; a code that is not `allowed` is unexpected."""
        self.fates[outcome.kind, outcome.fate] += 1
        if outcome.code:
            self.codes[outcome.kind, outcome.code] += 1
        if not self._expects(outcome, allowed):
            self.unexpected.append(outcome)
        return outcome

    def count(self, fate: str, kinds: Collection[str] | None = None) -> int:
        """Requests of a fate, of some kinds or of all."""
        counted = self.fates if kinds is None else [one for one in self.fates if one[0] in kinds]
        return sum(self.fates[one] for one in counted if one[1] == fate)

    def _expects(self, outcome: Outcome, allowed: Iterable[str]) -> bool:
        if outcome.fate in (ANSWERED, LEFT):
            return True
        if outcome.fate == LOST:
            return False
        if outcome.code in ALWAYS or outcome.code in set(allowed):
            return True
        down = any(one.covers(outcome) for one in self.downtimes)
        refused = outcome.fate == REFUSED and outcome.status == 503
        return down and (refused or (outcome.fate == FAILED and outcome.code == DOWN))

    def make_document(self) -> dict[str, Any]:
        """All of it for a file."""
        kinds = sorted({kind for kind, _ in self.fates})
        return {
            "seconds": round(self.now(), 1),
            "requests": {
                kind: {fate: n for (of, fate), n in sorted(self.fates.items()) if of == kind}
                for kind in kinds
            },
            "codes": {
                kind: {code: n for (of, code), n in sorted(self.codes.items()) if of == kind}
                for kind in kinds
            },
            "unexpected": [
                {**asdict(one), "body": one.body[-300:].decode("utf-8", "replace")}
                for one in self.unexpected[:MOST_LISTED]
            ],
            "canaries": {
                name: {"checked": one.checked, "after_kill": one.checked_after_kill,
                       "expected": one.expected, "differing": one.differing}
                for name, one in self.canaries.items()
            },
            "downtimes": [asdict(one) for one in self.downtimes],
            "events": self.events,
            "facts": self.facts,
            "samples": self.samples,
        }  # fmt: skip
