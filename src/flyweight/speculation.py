"""Reads `speculative_config` strictly, and keeps what was read.

Invariant: a `SpeculationConfig` that exists is valid, and has a value for every key of its method.
Knows no drafter.  Standard library only.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flyweight.errors import CheckpointError, ConfigError, nearest
from flyweight.speculation_methods import (
    ALIASES,
    BUNDLED_HEADS,
    COMMON,
    EXAMPLE,
    METHODS,
    MOST_DRAFTS,
    PARALLEL,
    REASONS,
    SETTING,
    TREE,
    VERIFIERS,
    SpeculationMethod,
)
from flyweight.validation.setting import check_choice, whole
from flyweight.validation.token_tree import TokenTree, read_token_tree
from flyweight.validation.untrusted import parse_object, shown, spell


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """At most `num_speculative_tokens` draft tokens a step, drafted by `method`, whose own keys are
    the `options`; an `adaptive` one drafts fewer where more would not pay.  The verifier `coupled`
    keeps the very text, `rejection` its distribution.
    """

    method: str
    num_speculative_tokens: int
    options: Mapping[str, Any] = field(default_factory=dict)
    adaptive: bool = True
    verifier: str = VERIFIERS[0]

    @property
    def probs(self) -> bool:
        """Whether what each draft token was drawn from is kept."""
        return self.verifier == "rejection" and METHODS[self.method].draws

    @property
    def states(self) -> bool:
        """Whether it keeps a state for each computed token, besides K/V."""
        return METHODS[self.method].states

    @property
    def promise(self) -> str:
        """What is drafted, and what drafts do not change."""
        fewer = "fewer where more would not pay; " if self.adaptive else ""
        same = "have the same distribution" if self.verifier == "rejection" else "are the same"
        return f"{fewer}answers {same} with and without"

    @property
    def depth(self) -> str:
        """The most draft tokens of a step, in words."""
        tokens = self.num_speculative_tokens
        return f"{tokens} token{'s' * (tokens > 1)} a step"

    def describe(self) -> str:
        """In few words."""
        own = "".join(f", {name} = {spell(value)}" for name, value in self._given())
        most = "up to " if self.adaptive else ""
        return f"{self.method}, {most}{self.depth}{own}"

    def write(self) -> dict[str, Any]:
        """The mapping that it is read from."""
        return {
            "method": self.method,
            "num_speculative_tokens": self.num_speculative_tokens,
            **dict(self._given()),
            **({} if self.adaptive else {"adaptive": False}),
            **({} if self.verifier == VERIFIERS[0] else {"verifier": self.verifier}),
        }

    def _given(self) -> list[tuple[str, Any]]:
        """Options without texts that are empty: those are not given."""
        return [(name, value) for name, value in self.options.items() if value != ""]


def read_shape(config: SpeculationConfig) -> TokenTree:
    """The paths of the key speculative_token_tree, () without it.  Raises `ConfigError` where they
    are not as many as the draft tokens.
    """
    text, tokens = config.options.get(TREE), config.num_speculative_tokens
    shape = read_token_tree(text, f"{SETTING}.{TREE}", MOST_DRAFTS) if text else ()
    if shape and tokens != len(shape):
        raise ConfigError(
            f"is not the number of paths in {TREE}",
            f"{SETTING}.num_speculative_tokens",
            value=tokens,
            allowed=f"{len(shape)}",
            hint=f"nearest valid: {len(shape)}",
        )
    return shape


def read_speculation(given: object) -> SpeculationConfig | None:
    """The configuration that a mapping, or the JSON text of an object, describes; None for an empty
    text.  A key that is null is as good as not given.  Raises `ConfigError`, which for broken JSON
    points at the character, and spells values as JSON does.
    """
    if given == "":
        return None
    try:
        return _read_object(_parse_text(given) if isinstance(given, str) else given)
    except ConfigError as error:
        raise _spell_value(error) from None


def _read_object(given: object) -> SpeculationConfig:
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ConfigError(
            "is not valid", SETTING, value=given, allowed=f"an object such as {EXAMPLE}"
        )
    found = {name: value for name, value in given.items() if value is not None}
    if found.get(PARALLEL) == 1:  # one process, as it is here
        del found[PARALLEL]
    _refuse_unknown(found)
    if "num_speculative_tokens" in found:
        tokens = found["num_speculative_tokens"]
        whole(f"{SETTING}.num_speculative_tokens", tokens, 1, MOST_DRAFTS)
    method = _find_method(found)
    tokens = found.get("num_speculative_tokens", method.tokens)
    if not tokens:
        raise ConfigError(
            "is missing", f"{SETTING}.num_speculative_tokens", allowed=f"1 to {MOST_DRAFTS}"
        )
    adaptive, verifier = found.get("adaptive", True), found.get("verifier", VERIFIERS[0])
    if not isinstance(adaptive, bool):
        path = f"{SETTING}.adaptive"
        raise ConfigError("is not valid", path, value=adaptive, allowed="true or false")
    check_choice(f"{SETTING}.verifier", verifier, VERIFIERS)
    options = _read_options(found, method)
    return SpeculationConfig(method.name, int(tokens), options, adaptive, verifier)


def _spell_value(error: ConfigError) -> ConfigError:
    """The same error, whose value is written as in JSON."""
    if error.value is ... or isinstance(error.value, str):
        return error
    gap = "" if error.problem.startswith((":", ",", ";")) else " "
    return ConfigError(
        f"= {spell(error.value)}{gap}{error.problem}",
        error.path, code=error.code, allowed=error.allowed, hint=error.hint,
    )  # fmt: skip


def _parse_text(text: str) -> dict[str, Any]:
    example = f"an object such as {EXAMPLE}"
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        before, after = text[max(0, error.pos - 40) : error.pos], text[error.pos : error.pos + 40]
        place = shown(f"{before} >>> {after}", 90) if after.strip() else f"the end of {shown(text)}"
        problem = f": not valid JSON: {error.msg} at character {error.pos + 1}, {place}"
        raise ConfigError(problem, SETTING, allowed=example) from None
    except (ValueError, RecursionError):  # `parse_object` says why
        pass
    try:
        return parse_object(text.encode("utf-8", "replace"), "")
    except CheckpointError as error:
        raise ConfigError(str(error), SETTING, allowed=example) from None


def _refuse_unknown(given: Mapping[str, Any]) -> None:
    """Raises where a key is none of any method."""
    known = [*COMMON, *(key.name for row in METHODS.values() for key in row.keys), *REASONS]
    strays = [
        f"{shown(name)} is unknown{nearest(name, known)}" for name in given if name not in known
    ]
    if strays:
        raise ConfigError(f": {', '.join(strays)}", SETTING)


def _find_method(given: dict[str, Any]) -> SpeculationMethod:
    """The row of the requested method.  Raises where there is none, or no drafter for it."""
    name, model = given.get("method"), given.get("model")
    if model in ("ngram", "[ngram]") and name in (None, "ngram"):  # vLLM's old name of the method
        name = given.pop("model").strip("[]")
    if name is None:
        name = "ngram" if model is None else BUNDLED_HEADS.get(str(model), "draft_model")
    path, built = f"{SETTING}.method", [row.name for row in METHODS.values() if row.module]
    row = METHODS.get(ALIASES.get(name, name)) if isinstance(name, str) else None
    if row is None:
        allowed = f"{', '.join(built)}{nearest(str(name), METHODS)}"
        raise ConfigError("is not valid", path, value=name, allowed=allowed)
    if not row.module:
        tokens = given.get("num_speculative_tokens", 4)
        of = f" (model = {shown(model)})" if model is not None else ""
        raise ConfigError(
            f"{of} is not supported yet".lstrip(), path, value=name, allowed=", ".join(built),
            hint=f'nearest valid: {{"method": "ngram", "num_speculative_tokens": {tokens}}}, which '
            "drafts from the text itself",
        )  # fmt: skip
    return row


def _read_options(given: Mapping[str, Any], method: SpeculationMethod) -> dict[str, Any]:
    """The method's own keys, each with a value.  Raises where one cannot be."""
    own = {key.name: key for key in method.keys}
    for name in given:
        if name not in own and name not in COMMON:
            allowed = ", ".join([*COMMON, *own])
            reason = f": {REASONS[name]}" if name in REASONS else ""
            raise ConfigError(
                f"does not apply to {method.name}{reason}; leave it out",
                f"{SETTING}.{name}",
                value=given[name],
                allowed=allowed,
            )
    options: dict[str, Any] = {}
    for name, key in own.items():
        if name in given:
            key.check(given[name])
            options[name] = given[name]
        elif key.default is not None:
            options[name] = key.default
    method.settle(options)
    for name in own:
        if name not in options:
            raise ConfigError("is missing", f"{SETTING}.{name}", allowed=own[name].allowed)
    return options
