"""A run that is kept, and what has become slower since.

A technique is slower where its speed-up has shrunk, whatever else the machine did.  Its time counts
too where other processes were quiet in both runs.

Invariant: only runs of one machine, model, metric and share of the workload are compared, with at
least two measurements each; a file that is none of ours is refused.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from flyweight.bench.facts import Surroundings
from flyweight.errors import ConfigError
from flyweight.prove.figures import SpeedInterval, bootstrap_unpaired, check_count, compute_ratios
from flyweight.prove.outcome import ProveOutcome, to_document
from flyweight.prove.proved import ProvedSuite

FORMAT = "flyweight prove 1"
WORSE = 0.05  # a change that counts where the whole interval is beyond it
QUIET = 0.1  # cores that others may use where times are compared
SLOWER, FASTER, SAME = "slower", "faster", "same"
NAME = "compare"  # the option


class KeptSide(msgspec.Struct):
    times: list[float]


class KeptOutcome(msgspec.Struct):
    """What is read again of a technique's document."""

    technique: str
    metric: str
    model: str
    model_bytes: int
    share: float
    off: KeptSide
    on: KeptSide
    other_cores: float | None = None


class KeptMachine(msgspec.Struct):
    cpu: str
    cores: int


class Baseline(msgspec.Struct):
    """A file that `save_baseline` wrote."""

    format: str
    machine: KeptMachine
    techniques: list[KeptOutcome]

    def has(self, name: str) -> bool:
        return any(one.technique == name for one in self.techniques)

    def find(self, name: str) -> KeptOutcome:
        """A technique's.  Raises `ConfigError` where it has none."""
        for one in self.techniques:
            if one.technique == name:
                return one
        held = ", ".join(one.technique for one in self.techniques)
        raise ConfigError(f"the baseline has no {name}", allowed=f"its techniques: {held}")

    def check_machine(self, here: Surroundings) -> None:
        """Raises `ConfigError` where it was made on another machine."""
        kept = self.machine
        if (kept.cpu, kept.cores) != (here.cpu, here.cores):
            raise ConfigError(
                f"the baseline is of another machine: {kept.cpu} with {kept.cores} cores, not "
                f"{here.cpu} with {here.cores}; make one here with --save-baseline"
            )

    def check_model(self, name: str, model: str, nbytes: int) -> None:
        """Raises `ConfigError` where a technique was measured on another model."""
        kept = self.find(name)
        if (kept.model, kept.model_bytes) != (model, nbytes):
            raise ConfigError(
                f"the baseline has {name} of another model: {kept.model} with "
                f"{kept.model_bytes:,} bytes, not {model} with {nbytes:,}"
            )

    def check_metric(self, name: str, metric: str) -> None:
        kept = self.find(name)
        if kept.metric != metric:
            raise ConfigError(
                f"the baseline has {kept.metric} of {name}, not {metric}",
                hint=f"nearest valid: --metric {kept.metric}",
            )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ComparedOutcome:
    """How a technique's speed-up and the time of its side `on` changed, now over `before`."""

    technique: str
    before: float
    speed: SpeedInterval
    time: SpeedInterval
    quiet: bool

    @property
    def verdict(self) -> str:
        """Slower or faster where a whole interval is beyond 5 %."""
        if self.speed.high < 1 - WORSE or (self.quiet and self.time.low > 1 + WORSE):
            return SLOWER
        return FASTER if self.quiet and self.time.high < 1 - WORSE else SAME


def make_suite_document(suite: ProvedSuite) -> dict[str, Any]:
    """Everything that was found, as plain data."""
    return {
        "format": FORMAT,
        "machine": asdict(suite.around),
        "model": suite.model,
        "techniques": [to_document(one) for one in suite.outcomes],
        "failures": [
            {"technique": one.technique.name, "problem": one.problem, "skipped": one.skipped}
            for one in suite.failures
        ],
    }


def save_baseline(path: Path, suite: ProvedSuite) -> None:
    path.write_text(json.dumps(make_suite_document(suite), indent=1) + "\n", encoding="utf-8")


def read_baseline(path: Path) -> Baseline:
    """Raises `ConfigError` for a file that is none, or has too few measurements."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Baseline)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", NAME, value=str(path)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"is no baseline of flyweight prove: {error}", NAME, value=str(path)
        ) from None
    if found.format != FORMAT:
        raise ConfigError(
            f"has format {found.format!r}", NAME, value=str(path), allowed=FORMAT
        )  # fmt: skip
    for one in found.techniques:
        check_count(min(len(one.on.times), len(one.off.times)))
        if len(one.on.times) != len(one.off.times) or min(*one.on.times, *one.off.times) <= 0:
            raise ConfigError(
                f"has times of {one.technique} that are no pairs", NAME, value=str(path)
            )
    return found


def compare_suite(suite: ProvedSuite, baseline: Baseline) -> list[ComparedOutcome]:
    """Of techniques that the baseline has."""
    known = [one for one in suite.outcomes if baseline.has(one.technique.name)]
    return [compare_outcome(one, baseline) for one in known]


def compare_outcome(outcome: ProveOutcome, baseline: Baseline) -> ComparedOutcome:
    kept = baseline.find(outcome.technique.name)
    on, ratios = outcome.list_times("on"), outcome.list_ratios()
    before = compute_ratios(kept.off.times, kept.on.times)
    busiest = max(cores or 0.0 for cores in (kept.other_cores, outcome.others))
    return ComparedOutcome(
        outcome.technique.name,
        median(before),
        bootstrap_unpaired(before, ratios),
        bootstrap_unpaired(kept.on.times, on),
        busiest <= QUIET,
    )
