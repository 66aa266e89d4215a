"""Options whose value is a JSON object: read strictly, and what is known of their keys.

Invariant: a key that means nothing is refused by name, all of them at once.  Whether a model's
template reads a switch is not known here.
"""

from collections.abc import Collection, Mapping
from typing import Any

from flyweight.errors import CheckpointError, ConfigError, RequestError, nearest
from flyweight.untrusted import parse_object, shown

SWITCHES, LONGEST_NAME, LONGEST_TEXT = 32, 64, 4096  # what a request may have of them too


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


def switches(option: str, text: str) -> dict[str, Any]:
    """Variables of a chat template, as `chat_template_kwargs` of a request has them."""
    from flyweight.text.messages import OPTIONS, OWN

    given = parsed(option, text)
    if len(given) > SWITCHES:
        raise ConfigError(f"{option}: {len(given)} switches; allowed: up to {SWITCHES}")
    for name, value in given.items():
        if name in OWN or name in OPTIONS or not 0 < len(name) <= LONGEST_NAME:
            raise ConfigError(
                f"{option}: {shown(name)} is no switch of a template; allowed: names of its own "
                f"variables, as enable_thinking, of up to {LONGEST_NAME} characters"
            )
        plain = value is None or isinstance(value, bool | int | float | str)
        if not plain or (isinstance(value, str) and len(value) > LONGEST_TEXT):
            raise ConfigError(
                f"{option}: {name} = {shown(value)} is not valid; allowed: true, false, null, a "
                f"number, or text of up to {LONGEST_TEXT} characters"
            )
    return given


def sampling(option: str, text: str) -> dict[str, Any]:
    """Keys of a generation_config.json, as options of a request; null takes the model's away."""
    from flyweight.asking import DEFAULTS
    from flyweight.types import SamplingParams

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
