"""Which drafters `bench spec` compares, each under a label of its own.

Invariant: a method may have several drafters, a label has one.  Raises `ConfigError` before
anything is loaded.  Loads nothing.
"""

from collections.abc import Mapping
from typing import Any

from flyweight.errors import ConfigError
from flyweight.speculation import SpeculationConfig, read_shape, read_speculation
from flyweight.speculation_methods import EXAMPLE, METHODS, SETTING, TREE, VERIFIERS, WIDTH

TOKENS = 10  # most draft tokens in a step, where the user gives none
COUNT = "num_speculative_tokens"
INSIDE = "stories"  # the model that has these drafters
# likely paths first, so that the first of them are a tree too
PATHS = (
    (0,), (0, 0), (1,), (0, 0, 0), (0, 1), (1, 0), (2,), (0, 0, 0, 0), (0, 0, 1), (0, 1, 0),
)  # fmt: skip
BUNDLED: Mapping[str, Mapping[str, Any]] = {
    "draft_model": {"method": "draft_model", "model": "stories-draft", COUNT: 4},
    "cascade": {"method": "cascade", "model": "stories-draft", COUNT: TOKENS},
    "medusa": {"method": "medusa", "model": "stories-medusa", COUNT: 4},
    "medusa tree": {
        "method": "medusa", "model": "stories-medusa", COUNT: len(PATHS), TREE: str(list(PATHS))
    },
    "eagle": {"method": "eagle", "model": "stories-eagle", COUNT: 5},
    "eagle tree": {"method": "eagle", "model": "stories-eagle", COUNT: 8, WIDTH: 4},
    "eagle3": {"method": "eagle3", "model": "stories-eagle3", COUNT: 5},
}  # fmt: skip
Drafters = dict[str, SpeculationConfig]  # by label


def choose_drafters(model: str, given: str | None, tokens: int | None) -> Drafters:
    """The drafter that is given, else all that read no files and those of the model inside, with at
    most as many draft tokens.  Raises `ConfigError`.
    """
    if given is not None:
        only = read_drafter(given, tokens)
        return {label_drafter(only): only}
    most = TOKENS if tokens is None else tokens
    wanted: dict[str, Mapping[str, Any]] = {
        name: {"method": name, COUNT: most} for name in METHODS if needs_no_files(name)
    }
    if model == INSIDE:
        wanted |= {label: shorten(one, most) for label, one in BUNDLED.items()}
    return {
        label: config
        for label, one in wanted.items()
        if (config := read_speculation(one)) is not None
    }


def needs_no_files(method: str) -> bool:
    """Whether drafters of the method can be made for any model, from nothing but its text."""
    row = METHODS[method]
    return bool(row.module) and not row.draws and all(key.name != "model" for key in row.keys)


def shorten(given: Mapping[str, Any], most: int) -> dict[str, Any]:
    """The configuration with at most `most` draft tokens; of a tree, its likeliest paths."""
    tokens = min(given[COUNT], most)
    tree = {TREE: str(list(PATHS[:tokens]))} if TREE in given else {}
    return {**given, COUNT: tokens, **tree}


def read_drafter(given: str, tokens: int | None) -> SpeculationConfig:
    """The drafter of a `speculative_config`.  Raises `ConfigError`."""
    if tokens is not None:
        raise ConfigError(
            f"does not apply with {SETTING}, which has a key of that name; leave one out",
            COUNT, value=tokens,
        )  # fmt: skip
    config = read_speculation(given)
    if config is None:
        raise ConfigError("is empty", SETTING, value=given, allowed=f"an object such as {EXAMPLE}")
    if config.verifier != VERIFIERS[0]:
        raise ConfigError(
            "cannot be compared: it gives other tokens than decoding without drafts",
            f"{SETTING}.verifier", value=config.verifier, allowed=VERIFIERS[0],
        )  # fmt: skip
    return config


def label_drafter(config: SpeculationConfig) -> str:
    """Its method, and whether it drafts trees."""
    grown = config.options.get(WIDTH) or 1
    return f"{config.method} tree" if grown > 1 or config.options.get(TREE) else config.method


def group_drafters(drafters: Drafters) -> list[Drafters]:
    """By the engine that they share: those that need no files and have equally many draft tokens,
    which are a setting of the engine.  Every other one has an engine of its own.
    """
    groups: dict[int | str, Drafters] = {}
    for label, one in drafters.items():
        key = one.num_speculative_tokens if needs_no_files(one.method) else label
        groups.setdefault(key, {})[label] = one
    return list(groups.values())


def count_places(config: SpeculationConfig) -> int:
    """Tokens of the longest path of a draft."""
    return max(map(len, read_shape(config)), default=config.num_speculative_tokens)
