"""The settings that are tried: a row each, with the values that make sense for a load.

Invariant: no value changes the tokens that come out, but a file that the user named, and a K/V
type, which is tried only where a bound of quality was given (a passport that lacks the type is
refused before anything is loaded).
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from flyweight.config import Settings
from flyweight.spec import KV_TYPES
from flyweight.tune.trial import SettingsTrial


@dataclass(frozen=True, slots=True)
class LoadShape:
    """What decides which values make sense: `users` at once, tokens of their prompts and answers,
    the machine's cores, whether quality is bounded, and files of the model to choose from.
    """

    users: int
    prompt: int
    output: int
    cores: int
    quality_bound: bool = False
    files: tuple[str, ...] = ()


Values = Callable[[LoadShape], tuple[Any, ...]]


def _list_sequences(load: LoadShape) -> tuple[int, ...]:
    """Fewer than the users, so that some wait for others; more have no effect."""
    return tuple(
        n for n in (1, 2, 4, 8, 16, 32, 128, 256) if n < load.users or 64 < n == load.users
    )


def _list_threads(load: LoadShape) -> tuple[int, ...]:
    return tuple(sorted({max(1, load.cores // 2), max(1, load.cores - 1)} - {load.cores}))


def _list_kv_types(load: LoadShape) -> tuple[str, ...]:
    return tuple(name for name, kind in KV_TYPES.items() if kind.coded) * load.quality_bound


def _list_speculations(load: LoadShape) -> tuple[str, ...]:
    return tuple(
        json.dumps({"method": method, "num_speculative_tokens": tokens})
        for method, tokens in (("ngram", 3), ("ngram", 7), ("suffix", 16))
    )


# A setting to try is one row.
AXES: dict[str, Values] = {
    "model": lambda load: load.files,
    "kv_cache_dtype": _list_kv_types,
    "max_num_seqs": _list_sequences,
    "max_num_batched_tokens": lambda load: (64, 128, 256, 1024, 2048),
    "speculative_config": _list_speculations,
    "threads": _list_threads,
    "block_size": lambda load: (16, 64, 128),
}


def list_single_changes(load: LoadShape) -> Iterator[SettingsTrial]:
    """Every candidate that differs from the defaults in one setting."""
    for name, values in AXES.items():
        for value in values(load):
            yield SettingsTrial.of(repair({name: value}))


def repair(changes: dict[str, Any]) -> dict[str, Any]:
    """The same, where a step has room for a token of every sequence."""
    usual = Settings()
    seqs = changes.get("max_num_seqs", usual.max_num_seqs)
    batched = changes.get("max_num_batched_tokens", usual.max_num_batched_tokens)
    if batched >= seqs:
        return changes
    if "max_num_batched_tokens" in changes:
        return changes | {"max_num_seqs": batched}
    return changes | {"max_num_batched_tokens": seqs}
