"""A set of settings to try, and what was measured with it.

Invariant: two candidates with the same settings are equal, whatever made them.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

LONGEST = 28  # characters of a file's name in a label
SHORT_NAMES = {
    "kv_cache_dtype": "kv",
    "max_num_batched_tokens": "batched",
    "max_num_seqs": "seqs",
    "block_size": "block",
}


@dataclass(frozen=True, slots=True)
class SettingsTrial:
    """Settings that differ from the defaults, by name, in order; none are the defaults."""

    changes: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, changes: Mapping[str, Any]) -> "SettingsTrial":
        return cls(tuple(sorted(changes.items())))

    def join(self, others: Iterable["SettingsTrial"]) -> "SettingsTrial":
        """All changes together; of two of one setting the last."""
        return SettingsTrial.of(
            dict(self.changes) | {k: v for one in others for k, v in one.changes}
        )

    @property
    def name(self) -> str:
        return ", ".join(f"{key}={value}" for key, value in self.changes) or "defaults"

    @property
    def label(self) -> str:
        """A short name, for tables and plots."""
        return ", ".join(_write_change(*one) for one in self.changes) or "defaults"


def _write_change(key: str, value: Any) -> str:
    if key == "model":
        name = Path(str(value)).name
        return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
    if key == "speculative_config":
        config = json.loads(value)
        return f"{config['method']} {config['num_speculative_tokens']}"
    return f"{SHORT_NAMES.get(key, key)}={value}"


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """A load as its users saw it: output tokens a second of all; seconds to the first token (90th
    percentile), between tokens (90th percentile of requests' means), of a whole request (mean).
    """

    throughput: float
    ttft: float
    itl: float
    latency: float
    tokens: int

    @classmethod
    def combine(cls, seen: Iterable["LoadFigures"]) -> "LoadFigures":
        """The middle of several rounds, figure by figure."""
        rounds = [*seen]
        names = ("throughput", "ttft", "itl", "latency")
        middle = {name: median(getattr(one, name) for one in rounds) for name in names}
        return cls(**middle, tokens=rounds[0].tokens)
