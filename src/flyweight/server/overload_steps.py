"""The option --overload-steps: what is done to new requests before they are refused.

Invariant: a step that exists is valid, except for the name of its model, which the models decide.
Standard library only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flyweight.errors import ConfigError, nearest

Kind = Literal["max_tokens", "model", "no_speculation"]
KINDS: tuple[Kind, ...] = ("max_tokens", "model", "no_speculation")
OPTION = "overload_steps"
FORMS = "max_tokens=N, model=NAME, no_speculation"


@dataclass(frozen=True, slots=True)
class OverloadStep:
    """Applies from that share of the queue on; `tokens` are those of max_tokens, `model` is the
    other model's name.
    """

    kind: Kind
    share: float
    tokens: int = 0
    model: str = ""

    def __str__(self) -> str:
        value = {"max_tokens": str(self.tokens), "model": self.model}.get(self.kind)
        return self.kind if value is None else f"{self.kind}={value}"


def parse_overload_steps(text: str, percent: int) -> tuple[OverloadStep, ...]:
    """The steps in their order.  The first applies from `percent` of the queue on, the others at
    equal distances up to a full queue.  Raises `ConfigError`.
    """
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    first = percent / 100
    return tuple(
        _parse_step(word, first + (1 - first) * i / len(words)) for i, word in enumerate(words)
    )


def _parse_step(word: str, share: float) -> OverloadStep:
    name, equals, value = word.partition("=")
    kind = next((one for one in KINDS if one == name), None)
    if kind is None:
        hint = nearest(name, KINDS)
        raise ConfigError("is not a step", OPTION, value=word, allowed=f"{FORMS}{hint}")
    if kind == "no_speculation":
        if equals:
            raise ConfigError(
                "has a value", OPTION, value=word, allowed=kind, hint=f"nearest valid: {kind}"
            )
        return OverloadStep(kind, share)
    if kind == "model":
        if not value:
            raise ConfigError("names no model", OPTION, value=word, allowed="model=NAME")
        return OverloadStep(kind, share, model=value)
    if not (value.isascii() and value.isdecimal() and len(value) < 10 and int(value) > 0):
        raise ConfigError(
            "is not valid", OPTION, value=word, allowed="max_tokens=N, with a whole number N of 1 "
            "or more", hint="nearest valid: max_tokens=1",
        )  # fmt: skip
    return OverloadStep(kind, share, tokens=int(value))


def check_overload_models(steps: Sequence[OverloadStep], served: Sequence[str]) -> None:
    """Raises `ConfigError` for a step to a model that is not served."""
    for step in steps:
        if step.kind == "model" and step.model not in served:
            listed = ", ".join(f"model={name}" for name in served)
            hint = nearest(step.model, served)
            raise ConfigError(
                "is not a served model", OPTION, value=str(step), allowed=f"{listed}{hint}"
            )
