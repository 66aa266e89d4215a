"""Opens an engine that every drafter to be compared fits, and its sides.

Invariant: the engine has the limits of the drafter with the most draft tokens; off is the same
engine without a drafter.  Raises `ConfigError` before anything is loaded.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from flyweight.build import build
from flyweight.config import Settings
from flyweight.describe import LoadListener
from flyweight.draft.methods import DrafterParts, make_drafter
from flyweight.errors import ConfigError
from flyweight.prove.spec_runs import OFF, SpecBench, SpecSide
from flyweight.prove.spec_texts import TextLimits
from flyweight.speculation import (
    EXAMPLE,
    METHODS,
    SETTING,
    VERIFIERS,
    SpeculationConfig,
    read_speculation,
)

SEQS = 8  # computed at once
TOKENS = 10  # most draft tokens in a step, where the user gives none


def choose_configs(given: str | None, tokens: int | None) -> list[SpeculationConfig]:
    """The drafter that is given, else those that are built and read no files, with as many draft
    tokens.  Raises `ConfigError`.
    """
    if given is None:
        wanted: list[object] = [
            {"method": name, "num_speculative_tokens": TOKENS if tokens is None else tokens}
            for name, row in METHODS.items()
            if row.module and not any(key.name == "model" for key in row.keys)
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
    made = loaded.engine.drafts.drafter
    sides = [SpecSide(OFF, None, loaded.engine, False)]
    for i, config in enumerate(configs):
        parts = DrafterParts(loaded.limits, loaded.spec.vocab)
        drafter = made if i == 0 else make_drafter(config, parts)
        sides.append(SpecSide(config.method, drafter, loaded.engine, config.adaptive))
    context = min(loaded.limits.max_model_len, prompt + answer)
    limits = TextLimits(loaded.tokenizer, loaded.spec.vocab, context, answer)
    return SpecBench(loaded, sides, limits, replayed)
