"""Options whose value is a JSON object: read strictly, and what is known of their keys.

Invariant: a key that means nothing is refused by name, all of them at once.
"""

from collections.abc import Collection, Mapping
from typing import Any

from flyweight.errors import CheckpointError, ConfigError, RequestError, nearest
from flyweight.types import OPTIONS, SamplingParams
from flyweight.validation.untrusted import parse_object, shown

DEFAULTS = {  # of generation_config.json, as vLLM reads it
    one.generation_config: name for name, one in OPTIONS.items() if one.generation_config
}


def parsed(option: str, text: str) -> dict[str, Any]:
    """Raises `ConfigError`."""
    try:
        return parse_object(text.encode("utf-8", "replace"), option)
    except CheckpointError as error:
        raise ConfigError(str(error)) from None


def known(option: str, given: Mapping[str, Any], names: Collection[str]) -> None:
    """Raises `ConfigError` where a key is none of them."""
    strays = [f"{shown(name)}{nearest(name, names)}" for name in given if name not in names]
    if strays:
        are = "is" if len(strays) == 1 else "are"
        listed = ", ".join(names)
        raise ConfigError(f"{option}: {', '.join(strays)} {are} unknown; allowed: {listed}")


def sampling(option: str, text: str) -> dict[str, Any]:
    """Keys of a generation_config.json, as options of a request; null takes the model's away."""
    given = parsed(option, text)
    known(option, given, tuple(DEFAULTS))
    found = {DEFAULTS[name]: value for name, value in given.items()}
    try:
        SamplingParams(**{name: value for name, value in found.items() if value is not None})
    except RequestError as error:
        raise ConfigError(f"{option}: {error}") from None
    return found


def told(given: Mapping[str, Any]) -> str:
    """In few words, for the ledger."""
    words = {True: "true", False: "false", None: "null"}
    return ", ".join(
        f"{name} = {words[value] if value is None or isinstance(value, bool) else shown(value)}"
        for name, value in given.items()
    ) or "none"  # fmt: skip
