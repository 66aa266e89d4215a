"""Reads a request's body as the type that its route takes, or explains what is wrong with it.

Invariant: a refusal is cheap, whatever the body is: its size is checked before it is decoded, the
number of its values before they are validated.  A null field is the same as an absent one.  Knows
no API.
"""

import json
import re
from contextlib import suppress
from functools import cache, partial
from typing import Any, TypeVar, get_args

import msgspec
from pydantic import BaseModel, Field, ValidationError
from starlette.requests import Request

from flyweight.errors import RequestError
from flyweight.server.apis.fields import constrains, list_ineffective, remove_unknown
from flyweight.server.apis.validation import Place, explain_errors
from flyweight.server.settings import ServerSettings
from flyweight.server.transport.replies import ignore, ignore_also

Body = TypeVar("Body", bound=BaseModel)
LIMIT = "x-limit"  # marks fields whose end is a limit of the server's, which it names
BOTH = "x-either-way"  # and those whose limit counts from 0 either way
FIRST = Field(fail_fast=True)  # of a list: only its first error is reported
TOKEN = "x-token"  # marks ids: their range is the model's
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
ROUNDS = 4  # of a lenient reading: a stray may be hidden behind another
Step = tuple["Step | None", int | str]  # a key, and the one before: paths share their beginnings
MOST_ITEMS = 1 << 15  # of a body, ids left out: what is wrong with each of them would be listed


def read_body(settings: ServerSettings, request: Request, raw: bytes, kind: type[Body]) -> Body:
    """A body as the type that its route takes.  Raises `RequestError`."""
    most = settings.max_body_values  # each costs a comma, and much more once it is read
    if raw.count(b",") >= most:
        problem = f"the body has {most} or more commas (--max-body-values)"
        raise RequestError(problem, code="body_values_limit")
    try:
        given = msgspec.json.decode(raw)
    except RecursionError:
        raise RequestError("the body is nested too deeply", code="body_values_limit") from None
    except (msgspec.DecodeError, UnicodeDecodeError):  # which one depends on msgspec's version
        raise _explain_malformed(raw) from None
    if not isinstance(given, dict):
        raise RequestError("the body is not a JSON object", code="invalid_json")
    if raw.count(b",") > MOST_ITEMS // 8 and count_items(given, kind) > MOST_ITEMS:
        problem = f"the body has more than {MOST_ITEMS} values, token ids not counted"
        raise RequestError(problem, code="body_values_limit")
    given = {name: value for name, value in given.items() if value is not None}
    try:
        body = (
            _read_leniently(request, given, kind)
            if settings.ignore_unknown_fields
            else kind.model_validate(given)
        )
    except ValidationError as error:
        raise make_refusal(error, kind, settings) from None
    except RecursionError:
        raise RequestError("the body is nested too deeply", code="body_values_limit") from None
    _check_limits(settings, body)
    for name in list_ineffective(body):
        ignore_also(request, name)
    return body


def count_items(given: dict[str, Any], kind: type[BaseModel]) -> int:
    """The number of values in lists and objects.  A list of ids counts as one in a field that takes
    ids, as at most one error is reported for it.
    """
    schemas = _get_schemas(kind)
    taking = {name for name in given if TOKEN in str(schemas.get(name))}
    return len(given) + sum(_count_values(value, name in taking) for name, value in given.items())


def _count_values(value: Any, ids: bool) -> int:
    count, left = 0, [value]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            count += len(one)
            left.extend(one.values())
        elif isinstance(one, list) and not (ids and set(map(type, one)) == {int}):
            count += len(one)
            left.extend(one)
    return count


def mark_limit(limit: str, *, both: bool = False) -> dict[str, Any]:
    """The schema mark of a field whose value or length has a limit of the server; `both`: the limit
    is also that of negative numbers.
    """
    return {LIMIT: limit, BOTH: True} if both else {LIMIT: limit}


@cache
def _find_limits(kind: type[BaseModel]) -> list[tuple[str, str, bool]]:
    """Fields with a limit: name, limit, and whether it is also that of negative numbers."""
    extra = {name: field.json_schema_extra for name, field in kind.model_fields.items()}
    marked = [(n, e) for n, e in extra.items() if isinstance(e, dict) and LIMIT in e]
    return [(name, str(e[LIMIT]), BOTH in e) for name, e in marked]


def _check_limits(settings: ServerSettings, body: BaseModel, before: str = "") -> None:
    """Checks a body, or a part of one, whose field names start with `before`.  Raises
    `RequestError`.
    """
    for part in type(body).model_fields:
        if isinstance(getattr(body, part), BaseModel):
            _check_limits(settings, getattr(body, part), f"{before}{part}.")
    for own, limit, both in _find_limits(type(body)):
        name = before + own
        value, most = getattr(body, own), getattr(settings, limit)
        listed = isinstance(value, list | dict)
        size = len(value) if listed else value
        if not isinstance(size, int) or (abs(size) if both else size) <= most:
            continue
        found = f"has {size} entries" if listed else "is out of range"
        allowed = f"{-most} to {most}" if both else f"at most {most}"
        if both and not most:
            allowed = "0: priorities are off (--scheduling-policy fcfs)"
        near = max(size, -most) if size < 0 else most
        value = ... if listed else size
        hint = f"nearest valid: {near}"
        raise RequestError(found, name, code="bad_value", value=value, allowed=allowed, hint=hint)


def _read_leniently(request: Request, given: dict[str, Any], kind: type[Body]) -> Body:
    """The body without unknown fields, which are noted; a field that would constrain the answer is
    refused nevertheless.  Raises `ValidationError`.
    """
    taken = list_names(kind)
    unknown = [n for n, v in given.items() if n not in taken and not constrains(n, v)]
    for name in unknown:
        del given[name]
    for left in reversed(range(ROUNDS)):
        ignore(request, unknown)
        try:
            return kind.model_validate(given)
        except ValidationError as error:
            removed = remove_unknown(given, error) if left else []
            if not removed:
                raise
            unknown += removed
    raise AssertionError("the last round returns or raises")


def list_names(kind: type[BaseModel]) -> set[str]:
    """The names that a body's fields may have."""
    fields = kind.model_fields
    return {*fields, *(f.alias for f in fields.values() if f.alias)}


@cache
def _get_schemas(kind: type[BaseModel]) -> dict[str, Any]:
    """Each field's JSON schema."""
    found: dict[str, Any] = kind.model_json_schema()["properties"]
    return found


def _narrow_schemas(kind: type[BaseModel], settings: ServerSettings) -> dict[str, Any]:
    """Each field's JSON schema, with this server's limits as maxima."""
    found = dict(_get_schemas(kind))
    for name, limit, both in _find_limits(kind):
        most = getattr(settings, limit)
        ends = {"maximum": most, "minimum": -most} if both else {"maximum": most}
        kinds = found[name].get("anyOf", [found[name]])
        numbers = [{**one, **ends} for one in kinds if one.get("type") == "integer"]
        if numbers:
            found[name] = {"anyOf": [{k: v for k, v in numbers[0].items() if k[:2] != "x-"}]}
    return found


def make_refusal(
    error: ValidationError, kind: type[BaseModel], settings: ServerSettings | None = None
) -> RequestError:
    """The first error of a body; with settings, the allowed values include the server's limits."""
    fields = _get_schemas(kind) if settings is None else _narrow_schemas(kind, settings)
    return explain_errors(error.errors(include_url=False), fields, partial(_find_names, kind))


def _find_names(kind: type[BaseModel], place: Place) -> list[str]:
    """The names that an object within a body may have; none if it may be of several kinds."""
    for part in place:
        fields = (f for name, f in kind.model_fields.items() if part in (name, f.alias))
        may_be = [
            one for field in fields for one in (field.annotation, *get_args(field.annotation))
        ]
        kinds = [one for one in may_be if isinstance(one, type) and issubclass(one, BaseModel)]
        if len(kinds) != 1:
            return []
        kind = kinds[0]
    return [field.alias or name for name, field in kind.model_fields.items()]


def _explain_malformed(raw: bytes) -> RequestError:
    """Why a body cannot be decoded.  A number that JSON or a float cannot hold is named by its
    field.
    """
    try:
        raw.decode()
    except UnicodeDecodeError:
        return RequestError("the body is not valid UTF-8", code="invalid_json")
    place = _find_no_number(raw)
    if place is not None:
        value = place.pop()
        name = ".".join(place)[:200] or "body"
        problem = f"= {value} is not valid"
        return RequestError(problem, name, code="bad_value", allowed="finite numbers")
    with suppress(msgspec.DecodeError, RecursionError):
        for name, part in msgspec.json.decode(raw, type=dict[str, msgspec.Raw]).items():
            try:
                msgspec.json.decode(part)
            except msgspec.DecodeError:
                value = bytes(part)[:100].decode("utf-8", "replace")
                allowed = "numbers that a float holds"
                return RequestError("is not valid", name[:200], value=value, allowed=allowed)
    if _has_lone_surrogates(raw):
        problem = "the body has an invalid UTF-16 surrogate in a JSON string"
        return RequestError(problem, code="invalid_json")
    return RequestError(f"the body is not valid JSON{_locate_error(raw)}", code="invalid_json")


def _locate_error(raw: bytes) -> str:
    """What is wrong with a text that is not JSON, and where; empty if that is not known."""
    try:
        json.loads(raw.decode())
    except json.JSONDecodeError as error:
        return (
            f": {error.msg[:1].lower()}{error.msg[1:]} (line {error.lineno}, column {error.colno})"
        )
    except (ValueError, RecursionError):
        pass
    return ""


def _has_lone_surrogates(raw: bytes) -> bool:
    """Whether the only errors are lone surrogates: some clients cut emoji in two."""
    if SURROGATE.search(raw) is None:
        return False
    try:
        json.dumps(json.loads(raw), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    except (ValueError, RecursionError):
        return False
    return False


class _NoNumber(str):
    """A float that JSON does not have, as Python writes it: NaN, Infinity or -Infinity."""


def _find_no_number(raw: bytes) -> list[str] | None:
    """The keys that lead to the first of them, and its text; None if something else is wrong."""
    if b"NaN" not in raw and b"Infinity" not in raw:
        return None
    try:
        whole = json.loads(raw, parse_constant=_NoNumber)
    except (ValueError, RecursionError):
        return None
    left: list[tuple[Step | None, Any]] = [(None, whole)]
    while left:
        step, value = left.pop()
        if isinstance(value, _NoNumber):
            return [*_list_keys(step), str(value)]
        inside: list[tuple[int | str, Any]] = []
        if isinstance(value, dict | list):
            inside += value.items() if isinstance(value, dict) else enumerate(value)
        left.extend(((step, key), one) for key, one in reversed(inside))
    return None


def _list_keys(step: Step | None) -> list[str]:
    found: list[str] = []
    while step is not None:
        step, key = step
        found.append(str(key))
    return found[::-1]
