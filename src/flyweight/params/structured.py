"""What an answer must look like: a JSON schema, a regex, one of some choices, or a grammar.

Invariant: a `StructuredOutputs` that exists has exactly one constraint, of bounded size and depth;
whether it can be kept to is for `sampling.grammar` to say.  Standard library only.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from flyweight.errors import RequestError
from flyweight.validation.ranges import check_list, check_size, require

NAME = "structured_outputs"
EXACT: Literal["exact"] = "exact"  # what `strictness` may be
VALIDATE: Literal["validate"] = "validate"
KINDS = ("json", "json_object", "regex", "choice", "grammar")
LONGEST = 64 << 10  # bytes of a constraint
DEEPEST = 64  # levels of a schema
MOST_CHOICES = 4096
# White space of a bounded length: single blanks, escapes or classes of them, each at most so often.
_BLANK = r"(?:[ \t\n\r]|\\[ntrs]|\[(?:[ \t\n\r]|\\[ntrs])+\])"
BOUNDED = re.compile(rf"(?:{_BLANK}(?:\?|\{{\d{{1,2}}(?:,\d{{1,2}})?\}})?){{0,8}}")


@dataclass(frozen=True, slots=True)
class StructuredOutputs:
    """vLLM's options; exactly one of the first five.  `json` is a schema, an object or its text
    (kept as text); `grammar` is GBNF as llama.cpp reads it (its rules are `name ::= …`), or Lark as
    llguidance does.  JSON is written with at most one space after a comma or colon;
    `disable_any_whitespace` leaves that out too, and `whitespace_pattern`, a regex of bounded
    length, puts other white space there.
    Objects that name properties have no others unless `additionalProperties` says so;
    `disable_additional_properties`, vLLM's, requests the same.  `strictness` says what becomes of a
    schema with keywords that no grammar enforces: "exact" refuses it; "validate" generates without
    them, checks the finished text, and generates it again where it is not valid.  Raises
    `RequestError`.
    """

    json: str | Mapping[str, Any] | bool | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    strictness: str = EXACT

    if TYPE_CHECKING:  # what a caller may give, where a field is narrower

        def __init__(
            self,
            json: str | Mapping[str, Any] | bool | None = None,
            json_object: bool | None = None,
            regex: str | None = None,
            choice: Sequence[str] | None = None,
            grammar: str | None = None,
            disable_any_whitespace: bool = False,
            disable_additional_properties: bool = False,
            whitespace_pattern: str | None = None,
            strictness: Literal["exact", "validate"] = "exact",
        ) -> None: ...

    def __post_init__(self) -> None:
        if self.json_object is False:
            object.__setattr__(self, "json_object", None)
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            raise RequestError(
                f"has {' and '.join(given) or 'no constraint'}",
                NAME,
                allowed=f"exactly one of {', '.join(KINDS)}",
            )
        flag = f"{NAME}.json_object"
        require(
            self.json_object is None or self.json_object is True,
            flag,
            self.json_object,
            "true or false",
        )
        for flag in ("disable_any_whitespace", "disable_additional_properties"):
            value = getattr(self, flag)
            require(isinstance(value, bool), f"{NAME}.{flag}", value, "true or false")
        if self.json is not None:
            object.__setattr__(self, "json", to_schema_text(self.json))
        for name in ("regex", "grammar", "whitespace_pattern"):
            value = getattr(self, name)
            if value is not None:
                _check_text(f"{NAME}.{name}", value)
        if self.choice is not None:
            object.__setattr__(self, "choice", _check_choices(self.choice))
        self._check_whitespace()
        self._check_strictness()

    @property
    def kind(self) -> str:
        """Which of the five it is."""
        return next(name for name in KINDS if getattr(self, name) is not None)

    @property
    def given(self) -> dict[str, Any]:
        """The options that are set, as plain values: `StructuredOutputs(**given)` is equal."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if value not in (None, False, EXACT)}

    @property
    def size(self) -> int:
        """About how many characters say it."""
        return sum(len(str(value)) for value in self.given.values())

    @property
    def validated(self) -> bool:
        """Whether the finished text is checked."""
        return self.strictness == VALIDATE

    def _check_strictness(self) -> None:
        name = f"{NAME}.strictness"
        known = self.strictness in (EXACT, VALIDATE)
        require(known, name, str(self.strictness)[:80], f"{EXACT!r} or {VALIDATE!r}")
        if self.validated and self.kind != "json":
            raise RequestError(f"= {VALIDATE!r} can be used with json, not with {self.kind}", name)

    def _check_whitespace(self) -> None:
        pattern = self.whitespace_pattern
        if pattern is None:
            return
        name = f"{NAME}.whitespace_pattern"
        bounded = BOUNDED.fullmatch(pattern) is not None
        allowed = "blanks of a bounded length, such as '[ \\n]?' or '\\n {0,8}'"
        require(bounded, name, pattern[:80], allowed, "[ ]?")
        if self.disable_any_whitespace:
            raise RequestError("cannot be combined with disable_any_whitespace", name)
        if self.kind not in ("json", "json_object"):
            raise RequestError(f"can be used with json and json_object, not with {self.kind}", name)


def check(outputs: StructuredOutputs, longest: int, deepest: int) -> None:
    """Raises `RequestError` above bounds that are narrower than those here."""
    for name, value in outputs.given.items():
        parts = value if isinstance(value, tuple) else (str(value),)
        size = sum(len(part.encode()) for part in parts)
        check_size(f"{NAME}.{name}", size, "bytes", longest)
    found = _measure_depth(str(outputs.json or ""))
    check_size(f"{NAME}.json", found, "levels", deepest)


def to_schema_text(schema: object) -> str:
    """A schema as one text of bounded size and depth, whose top is an object or a truth value."""
    name = f"{NAME}.json"
    text = schema if isinstance(schema, str) else _dump(name, schema)
    _check_text(name, text)
    check_size(name, _measure_depth(text), "levels", DEEPEST)
    try:
        found = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        problem = f"is not valid JSON: {str(error)[:100]}"
        raise RequestError(problem, name, code="bad_constraint") from None
    require(isinstance(found, dict | bool), name, text[:80], "a schema: an object, true or false")
    return text


def _dump(name: str, schema: object) -> str:
    require(isinstance(schema, Mapping | bool), name, str(schema)[:80], "an object, or its text")
    try:
        return json.dumps(schema, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        problem = f"cannot be written as JSON: {str(error)[:100]}"
        raise RequestError(problem, name, code="bad_constraint") from None


def _refuse_constant(word: str) -> float:
    raise ValueError(f"{word} is not JSON")


def _measure_depth(text: str) -> int:
    """Levels of brackets outside strings; no recursion on what a client sent."""
    deepest = level = 0
    # A string that does not end goes to the end, so that no part is looked at twice.
    for mark in re.findall(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', text, re.S):
        level += (mark in "[{") - (mark in "]}")
        deepest = max(deepest, level)
    return deepest


def _check_text(name: str, value: object) -> None:
    require(isinstance(value, str), name, str(value)[:80], "text")
    try:
        size = len(str(value).encode())
    except UnicodeEncodeError:
        raise RequestError("has an invalid UTF-16 surrogate", name) from None
    check_size(name, size, "bytes", LONGEST)


def _check_choices(given: object) -> tuple[str, ...]:
    name = f"{NAME}.choice"
    found = check_list(name, given)
    check_size(name, len(found), "choices", MOST_CHOICES, 1)
    for one in found:
        require(isinstance(one, str), name, str(one)[:80], "texts")
    _check_text(name, "".join(str(one) for one in found))
    return tuple(str(one) for one in found)
