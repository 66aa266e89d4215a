"""Typed access to a config.json: numbers, whole numbers, words, each refused by name and value.

Invariant: what comes out is in range for any real model; a lying config must not size memory.
"""

from collections.abc import Mapping
from typing import Any

from flyweight.errors import CheckpointError, nearest
from flyweight.validation.untrusted import spell

ACTS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
}
LIMIT = 1 << 20  # no dimension of a real model is larger
MOST_POSITIONS = 1 << 24  # published contexts pass 2^20
MAX_LAYERS = 1024  # a plan has slots for each
LARGEST = 1e30
Config = Mapping[str, Any]


def read_real(config: Config, key: str, default: float) -> float:
    """A number above 0, or `CheckpointError` naming key and value."""
    value = config.get(key)
    value = default if value is None else value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < LARGEST:
        raise CheckpointError(f"config: {key} = {spell(value)}; it must be a number above 0")
    return float(value)


def read_integer(
    config: Config, key: str, default: int | None = None, most: int = LIMIT, least: int = 1
) -> int:
    """A whole number of the config, or `CheckpointError` naming the key and the value."""
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        found = "is missing" if value is None else f"= {spell(value)}"
        raise CheckpointError(
            f"config: {key} {found}; it must be a whole number from {least} to {most}"
        )
    return value


def read_choice(config: Config, key: str, allowed: Mapping[str, str], default: str) -> str:
    """What a word of the config means, or `CheckpointError` listing those there are."""
    value = config.get(key)
    word = default if value is None else str(value)
    if word not in allowed:
        raise CheckpointError(
            f"config: {key} = {spell(word)} is not supported; known: {', '.join(allowed)}"
            f"{nearest(word[:80], allowed)}"
        )
    return allowed[word]


def fill_defaults(config: Config, usual: Config) -> dict[str, Any]:
    """The config with what is usual where it says nothing, or null."""
    return {**usual, **{key: value for key, value in config.items() if value is not None}}


def read_flag(config: Config, key: str, default: bool = False) -> bool:
    """True or false; "false" is neither."""
    value = config.get(key)
    value = default if value is None else value
    if value not in (True, False):
        raise CheckpointError(f"config: {key} = {spell(value)}; allowed: true, false")
    return bool(value)


def refuse(config: Config, key: str, *usual: object) -> None:
    """`CheckpointError` when the key says anything but what is usual (or nothing)."""
    value = config.get(key)
    if value is not None and value not in usual:
        allowed = ", ".join(str(u).lower() for u in usual)
        raise CheckpointError(
            f"config: {key} = {spell(value)} is not supported; allowed: {allowed}"
        )


def find_text_config(config: Config) -> Config:
    """The text model's part of a config for text and images, or the config itself."""
    text = config.get("text_config", config)
    if not isinstance(text, dict):
        raise CheckpointError(f"config: text_config = {spell(text)} is not an object")
    return text


def read_layer_switches(config: Config, key: str, usual: list[bool]) -> list[bool]:
    """True or false for every layer: a list of 1 and 0; where it is empty or missing, `usual`."""
    value = config.get(key) or usual
    if not isinstance(value, list) or len(value) != len(usual):
        raise CheckpointError(f"config: {key} = {spell(value)}; a list of {len(usual)} is needed")
    return [bool(entry) for entry in value]


def read_layer_choices(config: Config, key: str, usual: list[str]) -> list[str]:
    """A word for every layer, such as layer_types: full_attention or sliding_attention."""
    value = config.get(key)
    words = usual if value is None else value
    allowed = ("full_attention", "sliding_attention")
    if not isinstance(words, list) or not all(word in allowed for word in words):
        raise CheckpointError(f"config: {key} = {spell(words)}; allowed: {' or '.join(allowed)}")
    if len(words) != len(usual):
        raise CheckpointError(f"config: {key} has {len(words)} entries for {len(usual)} layers")
    return words
