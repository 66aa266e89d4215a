"""Opens engines for the drafters to be compared, and their sides.

Invariant: drafters that read no files share an engine, every other one has its own; off is the same
engine without a drafter.  Raises `ConfigError` before anything is loaded.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flyweight.build import build
from flyweight.config import Settings
from flyweight.describe import LoadListener
from flyweight.draft.methods import DrafterParts, make_drafter
from flyweight.errors import ConfigError
from flyweight.prove.spec_runs import PLAIN, SpecBench, SpecRun, SpecSide
from flyweight.prove.spec_texts import SpecWorkload, TextLimits
from flyweight.speculation import (
    EXAMPLE,
    METHODS,
    MOST_DRAFTS,
    SETTING,
    VERIFIERS,
    SpeculationConfig,
    read_speculation,
)

SEQS = 8  # computed at once
TOKENS = 10  # most draft tokens in a step, where the user gives none
INSIDE = "stories"  # the model that has these drafters
BUNDLED: tuple[dict[str, Any], ...] = (
    {"method": "draft_model", "model": "stories-draft", "num_speculative_tokens": 4},
    {"method": "medusa", "model": "stories-medusa", "num_speculative_tokens": 4},
    {"method": "eagle", "model": "stories-eagle", "num_speculative_tokens": 5},
)
Groups = list[list[SpeculationConfig]]  # drafters, by the engine that they share


def choose_groups(model: str, given: str | None, tokens: int | None) -> Groups:
    """The drafter that is given, else all that are built and read no files, with as many draft
    tokens; and those that the model inside has.  Raises `ConfigError`.
    """
    groups = [choose_configs(given, tokens)]
    if given is None and model == INSIDE:
        for one in BUNDLED:
            most = min(one["num_speculative_tokens"], tokens or MOST_DRAFTS)
            config = read_speculation({**one, "num_speculative_tokens": most})
            groups += [[config]] if config is not None else []
    return groups


def measure_groups(
    groups: Groups, open: Callable[[Sequence[SpeculationConfig]], SpecBench],
    works: Sequence[SpecWorkload], rounds: int,
) -> dict[str, dict[str, list[SpecRun]]]:  # fmt: skip
    """By workload and side; sides without drafts are those of the first engine."""
    found: dict[str, dict[str, list[SpecRun]]] = {work.name: {} for work in works}
    for configs in groups:
        bench = open(configs)
        for work in works:
            found[work.name] = bench.run(work, rounds) | found[work.name]
    order = [*PLAIN, *(config.method for configs in groups for config in configs)]
    return {name: {side: sides[side] for side in order} for name, sides in found.items()}


def choose_configs(given: str | None, tokens: int | None) -> list[SpeculationConfig]:
    """The drafter that is given, else those that are built and read no files, with as many draft
    tokens.  Raises `ConfigError`.
    """
    if given is None:
        wanted: list[object] = [
            {"method": name, "num_speculative_tokens": TOKENS if tokens is None else tokens}
            for name, row in METHODS.items()
            if row.module and not row.draws and all(key.name != "model" for key in row.keys)
        ]
        return [config for one in wanted if (config := read_speculation(one)) is not None]
    if tokens is not None:
        raise ConfigError(
            f"does not apply with {SETTING}, which has a key of that name; leave one out",
            "num_speculative_tokens", value=tokens,
        )  # fmt: skip
    config = read_speculation(given)
    if config is None:
        raise ConfigError("is empty", SETTING, value=given, allowed=f"an object such as {EXAMPLE}")
    if config.verifier != VERIFIERS[0]:
        raise ConfigError(
            "cannot be compared: it gives other tokens than decoding without drafts",
            f"{SETTING}.verifier", value=config.verifier, allowed=VERIFIERS[0],
        )  # fmt: skip
    return [config]


def open_bench(
    model: str, configs: Sequence[SpeculationConfig], engine: Mapping[str, Any],
    lengths: tuple[int, int], replayed: bool, listener: LoadListener | None,
) -> SpecBench:  # fmt: skip
    """The engine with its sides, off first; `lengths` are the most tokens of a prompt, and those
    of an answer.
    """
    prompt, answer = lengths
    settings = Settings.of(
        model=model, max_num_seqs=SEQS, speculative_config=configs[0].write(), **engine
    )
    loaded = build(settings, listener)
    loaded.moving.settle()
    made = loaded.engine.drafts.calls.drafter
    sides = [SpecSide(name, None, loaded.engine, False) for name in PLAIN]
    for i, config in enumerate(configs):
        parts = DrafterParts(loaded.limits, loaded.spec.vocab)
        drafter = made if i == 0 else make_drafter(config, parts)
        sides.append(SpecSide(config.method, drafter, loaded.engine, config.adaptive))
    context = min(loaded.limits.max_model_len, prompt + answer)
    limits = TextLimits(loaded.tokenizer, loaded.spec.vocab, context, answer)
    return SpecBench(loaded, sides, limits, replayed)
