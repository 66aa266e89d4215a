"""Turns pydantic's list of errors into one refusal.

Invariant: the reported error is the first, or, if a value may be of several kinds, the first of the
kind that matches best; its text contains none of the library's.  Knows no API.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from pydantic_core import ErrorDetails

from flyweight.errors import RequestError, nearest
from flyweight.validation.untrusted import printable

Place = tuple[int | str, ...]
Names = Collection[str]
KINDS = ("str", "int", "float", "bool", "none")  # as pydantic names what a union has tried
ALIKE = 0.8  # of a field's letters, for it to be a slip of the pen
INSTEAD = {  # what took their place
    "functions": "tools",
    "function_call": "tool_choice",
    "messages.function_call": "tool_calls",
}
CONSTRAINTS = (  # vLLM's until it gave them up, and llama-server's
    "guided_json", "guided_regex", "guided_choice", "guided_grammar", "grammar", "json_schema",
)  # fmt: skip
MEDIA = (
    "image", "input_image", "image_url", "document", "file", "input_file", "input_audio", "audio",
    "video", "video_url",
)  # fmt: skip
NAME = re.compile(r"'([^']*)'")  # in pydantic's lists of them
BOUNDS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")
WORDS = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "none_required": "null",
    "literal_error": "{expected}",
    "union_tag_invalid": "{expected_tags}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "less than {lt}",
    "less_than_equal": "{le} or less",
    "string_too_short": "{min_length} characters or more",
    "string_too_long": "{max_length} characters or fewer",
    "string_pattern_mismatch": "text of the pattern {pattern}",
    "too_short": "{min_length} entries or more",
    "too_long": "{max_length} entries or fewer",
    "value_error": "{error}",
}


def explain_errors(
    errors: Sequence[ErrorDetails], fields: Mapping[str, Any], inside: Callable[[Place], Names]
) -> RequestError:
    """The error of a body with these `fields` and their schemas; `inside` lists the names of an
    object's fields.
    """
    chosen = _choose_errors(errors, 1)
    first = chosen[0]
    kind, loc, given = first["type"], first["loc"], first.get("ctx", {})
    name = _join_name(loc, whole=kind == "extra_forbidden")
    if kind == "extra_forbidden":
        hint = nearest(str(loc[-1])[:100], inside(loc[:-1]), ALIKE)
        if name in CONSTRAINTS and "structured_outputs" in fields:
            hint = "; use 'structured_outputs'"
        return RequestError(f": unknown field{hint}", printable(name), code="unknown_field")
    if kind == "union_tag_not_found":
        kind, name = "missing", f"{name}.type"
    if kind == "missing_content":
        kind, name = "missing", f"{name}.content"
    if kind == "missing":
        return RequestError("is missing", name, code="missing_field")
    value = first["input"]
    if kind == "union_tag_invalid":
        name, value = f"{name}.type", given["tag"]
    schema = fields.get(name, {}) if kind in BOUNDS and len(chosen) == 1 else {}
    span = _describe_range(schema)
    allowed = span or ", or ".join(dict.fromkeys(_describe_allowed(one) for one in chosen))
    allowed += _find_name(value, given)
    hint = _suggest(value, loc) or (_find_end(kind, schema) if span else "")
    return RequestError("is not valid", name, value=value, allowed=allowed, hint=hint)


def _suggest(value: object, loc: Place) -> str:
    """What to do instead of a value or field that is not supported."""
    instead = INSTEAD.get(".".join(str(part) for part in loc if isinstance(part, str)))
    if instead is not None:
        return f"use {instead!r}"
    return "images and files are not supported" if _is_media(value, loc[-1]) else ""


def _find_name(value: object, given: Mapping[str, Any]) -> str:
    """The nearest of the names that a literal or a tag may be."""
    names = str(given.get("expected", given.get("expected_tags", "")))
    return nearest(value, NAME.findall(names)) if isinstance(value, str) else ""


def _find_end(kind: str, schema: Mapping[str, Any]) -> str:
    """The end of a range that a number is beyond, if it is in the range."""
    end = "minimum" if kind.startswith("greater") else "maximum"
    found = next((one[end] for one in schema.get("anyOf", [schema]) if end in one), None)
    return "" if found is None else f"nearest valid: {_format_number(found)}"


def _choose_errors(errors: Sequence[ErrorDetails], start: int) -> list[ErrorDetails]:
    """The first error; several if a value matches none of its possible kinds."""
    loc = errors[0]["loc"]
    fork = next((i for i in range(start, len(loc)) if _is_kind(loc[i])), None)
    if fork is None:
        return [errors[0]]
    kinds: dict[int | str, list[ErrorDetails]] = {}
    for error in errors:
        if error["loc"][:fork] == loc[:fork] and len(error["loc"]) > fork:
            kinds.setdefault(error["loc"][fork], []).append(error)
    reached = {kind: _measure_match(found, fork + 1) for kind, found in kinds.items()}
    best = [kinds[kind] for kind, far in reached.items() if far == max(reached.values())]
    if len(best) == 1:
        return _choose_errors(best[0], fork + 1)
    return [found[0] for found in best]


def _measure_match(found: Sequence[ErrorDetails], start: int) -> tuple[int, bool, bool, int, int]:
    """How well a value matches a kind: entries of a list, its type, its own mark, depth, errors."""
    place = [part for part in found[0]["loc"][start:] if not _is_kind(part)]
    entry = place[0] if place and isinstance(place[0], int) else -1
    other = any(e["type"] == "literal_error" and e["loc"][start:] == ("type",) for e in found)
    alien = len(place) <= (entry >= 0) and _is_alien(found[0])
    return entry, not alien, not other, len(place), -len(found)


def _is_alien(error: ErrorDetails) -> bool:
    """Whether a value has a wrong type."""
    if error["type"] == "literal_error":
        texts = str(error["ctx"]["expected"]).startswith("'")
        return texts is not isinstance(error["input"], str)
    return error["type"].endswith(("_type", "_required"))


def _is_kind(part: int | str) -> bool:
    """Whether a part of an error's place is a kind that a union tried, not a key of the client."""
    if isinstance(part, int):
        return False
    return part[:1].isupper() or "[" in part or part.rsplit("-")[-1] in KINDS


def _join_name(loc: Place, *, whole: bool) -> str:
    """An error's place as the client writes it; if it is `whole`, its last part is a field's
    name.
    """
    kept = {0, len(loc) - 1} if whole else {0}
    parts = [str(part) for i, part in enumerate(loc) if i in kept or not _is_kind(part)]
    return ".".join(parts)[:200] or "body"


def _describe_allowed(error: ErrorDetails) -> str:
    """The allowed values."""
    if error["type"] not in WORDS:
        return error["msg"].removeprefix("Input should be ")
    given = {name: _format_number(value) for name, value in error.get("ctx", {}).items()}
    if given.get("max_length") == "0":
        return "none"
    found = WORDS[error["type"]].format(**given)
    one = given.get("min_length", given.get("max_length")) == "1"
    return found.replace("entries", "entry").replace("characters", "character") if one else found


def _describe_range(schema: Mapping[str, Any]) -> str:
    """The range of a number, if it has two ends and no server or model narrows it."""
    for one in schema.get("anyOf", [schema]):
        if any(name.startswith("x-") for name in (*schema, *one)):
            continue
        whole = one.get("type") == "integer"
        high = one["exclusiveMaximum"] - 1 if whole and "exclusiveMaximum" in one else None
        high = one.get("maximum", high)
        if high is not None and "minimum" in one:
            return f"{_format_number(one['minimum'])} to {_format_number(high)}"
        if high is not None and "exclusiveMinimum" in one:
            return (
                f"more than {_format_number(one['exclusiveMinimum'])}, up to {_format_number(high)}"
            )
    return ""


def _format_number(value: object) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _is_media(value: Any, field: int | str) -> bool:
    """Whether a value is, or is marked as, something other than text."""
    if field in ("images", "audio"):
        return True
    mark = value.get("type") if isinstance(value, dict) else value
    return isinstance(mark, str) and mark in MEDIA
