"""Schemas with keywords that no grammar enforces, made looser until one does: for
`strictness: "validate"`, which checks the finished answer against the schema as it was given.

Invariant: a value that satisfies a schema satisfies what is made of it here.  A keyword is dropped
where that admits more values; where it might admit fewer (within `not`, `if`, and a `oneOf`), the
keyword around it is.  A schema that is wrong is refused as it always is.  Knows no grammar engine.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote

from flyweight.errors import RequestError
from flyweight.sampling.schema import prepare_schema
from flyweight.sampling.schema_keywords import (
    ALL_MAPS,
    ALL_SINGLE,
    DEFINITIONS,
    LISTS,
    Schema,
    UnsupportedSchema,
    escape,
    map_within,
    modernise,
)

MOST_DROPPED = 32  # keywords of one schema that are dropped one by one
CONDITION = ("if", "then", "else")
CONTAINING = ("contains", "minContains", "maxContains")
UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
# Keywords that go together, by the one that is dropped.
TOGETHER = {"if": CONDITION, "contains": CONTAINING}
KEPT = {"type", "nullable", "$id", "$anchor", "$dynamicAnchor", *DEFINITIONS}
NEGATIVE = ("not", "if", "oneOf", *UNEVALUATED, "contains")
DETAILS = (
    "pattern", "patternProperties", "propertyNames", "format", "multipleOf", "uniqueItems",
    "dependentRequired", "dependentSchemas", "dependencies", "minProperties", "maxProperties",
    "minLength", "maxLength",
)  # fmt: skip


def list_looser(schema: Mapping[str, Any] | bool) -> Iterator[dict[str, Any]]:
    """What a grammar may enforce of a schema, from the tightest on.  Raises `RequestError` for a
    schema that is wrong.
    """
    first = _prepare(schema)
    if first is not None:
        yield first
    for names in (NEGATIVE, (*NEGATIVE, *DETAILS)):
        with suppress(RequestError):  # a reference leads into what was dropped
            found = _prepare(_map_schemas(schema, partial(_drop_all, names=names)))
            if found is not None:
                yield found
    yield prepare_schema(_keep_type(schema))


def _prepare(schema: Mapping[str, Any] | bool) -> dict[str, Any] | None:
    """The schema without the keywords that are not supported; None where it has too many, or a
    reference leads into one.  After `MOST_DROPPED` they are dropped at every place.
    """
    try:
        return prepare_schema(schema)
    except UnsupportedSchema:
        given = _map_schemas(schema, _drop_dependent)
    names: dict[str, None] = {}
    for count in range(2 * MOST_DROPPED):
        try:
            return prepare_schema(given)
        except UnsupportedSchema as error:
            spot = _find(given, error.place, error.keyword)
        if spot is None:
            return None
        names[spot.name] = None
        given = _replace(given, spot.pointer, _drop(spot.schema, spot.name))
        if count == MOST_DROPPED:
            given = _map_schemas(given, partial(_drop_all, names=tuple(names)))
        if not _refers_within(given, schema):
            return None
    return None


class Unsupported(NamedTuple):
    """A keyword of the schema at a place; without a name, all of the schema."""

    pointer: str
    schema: Mapping[str, Any]
    name: str


def _find(top: Any, place: str, keyword: str) -> Unsupported | None:
    """What to drop for an error: the keyword around it where that may be negative."""
    steps = [step.replace("~1", "/").replace("~0", "~") for step in place.split("/")[1:]]
    pointer, schema, name = "", top, keyword
    while steps:
        name = steps[0]
        length = _count_steps(schema, name)
        if _is_negative(schema, name) or not length or len(steps) < length:
            break
        pointer += "".join(f"/{escape(step)}" for step in steps[:length])
        schema = schema[name] if length == 1 else _pick(schema[name], steps[1])
        if not isinstance(schema, Mapping):
            return None
        steps, name = steps[length:], keyword
    return None if name and name not in schema else Unsupported(pointer, schema, name)


def _count_steps(schema: Mapping[str, Any], name: str) -> int:
    """How many steps of a pointer lead through a keyword to a schema within it; 0: it has none."""
    value = schema.get(name)
    if name in ALL_MAPS and isinstance(value, Mapping):
        return 2
    if isinstance(value, list) and name in (*LISTS, "items"):
        return 2
    return int(name in ALL_SINGLE and isinstance(value, Mapping | bool))


def _pick(value: Any, step: str) -> Any:
    if isinstance(value, list):
        return value[int(step)] if step.isdecimal() and int(step) < len(value) else None
    return value.get(step)


def _replace(top: Any, pointer: str, schema: Any) -> Any:
    """A copy of a document with a schema at a place."""
    if not pointer:
        return schema
    step, _, rest = pointer[1:].partition("/")
    key = step.replace("~1", "/").replace("~0", "~")
    rest = f"/{rest}" if rest else ""
    if isinstance(top, list):
        return [_replace(one, rest, schema) if str(i) == key else one for i, one in enumerate(top)]
    return {**top, key: _replace(top[key], rest, schema)}


def _drop(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A schema without one keyword, open where that named properties; without a name, its type."""
    if not name:
        return {key: value for key, value in schema.items() if key in KEPT}
    found = dict(schema)
    if name == "oneOf":
        branches, others = found.pop(name), found.get("allOf", [])
        if "anyOf" in found and isinstance(others, list):
            found["allOf"] = [*others, {"anyOf": branches}]
        else:
            found["anyOf"] = branches
        return found
    gone = [found.pop(one) for one in TOGETHER.get(name, (name,)) if one in found]
    if name == "prefixItems":
        found.pop("items", None)
    if name == "patternProperties":
        found["additionalProperties"] = True
    elif name == "unevaluatedProperties":
        if gone != [False]:
            found.setdefault("additionalProperties", True)
    elif name != "not" and any(map(_names_properties, gone)):
        found.setdefault("additionalProperties", True)
    return found


def _drop_all(schema: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    found = dict(schema)
    for name in names:
        if name in found:
            found = _drop(found, name)
    return found


def _drop_dependent(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema without the keywords that may admit fewer values where others are looser."""
    names = [name for name in schema if _is_negative(schema, name) and _depends(schema[name])]
    return _drop_all(schema, (*names, *UNEVALUATED))


def _is_negative(schema: Mapping[str, Any], name: str) -> bool:
    """Whether a looser schema within a keyword may admit fewer values."""
    return name in ("not", "if", "oneOf") or (name == "contains" and "maxContains" in schema)


def _map_schemas(schema: Any, change: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Any:
    """A schema of which it and all within it are changed that may be looser, outer ones first."""
    if not isinstance(schema, Mapping):
        return schema
    found = change(schema)
    return map_within(
        found,
        lambda name, one: one if _is_negative(found, name) else _map_schemas(one, change),
    )


def _keep_type(schema: Mapping[str, Any] | bool) -> Schema:
    """The type of a schema and nothing else."""
    kinds = None if isinstance(schema, bool) else modernise(schema).get("type")
    return {} if kinds is None else {"type": kinds}


def _depends(value: object) -> bool:
    """Whether what a schema says depends on others."""
    names = {"$ref", "$dynamicRef", *UNEVALUATED}
    return any(names & one.keys() for one in _list_objects(value))


def _names_properties(value: object) -> bool:
    return any(one.keys() & {"properties", "patternProperties"} for one in _list_objects(value))


def _refers_within(schema: Any, original: Any) -> bool:
    """Whether every reference that leads to something in the original does so here, too."""
    targets = {one["$ref"] for one in _list_objects(schema) if isinstance(one.get("$ref"), str)}
    inner = [unquote(one)[1:] for one in targets if one.startswith("#/")]
    return all(_leads(schema, one) or not _leads(original, one) for one in inner)


def _leads(top: Any, pointer: str) -> bool:
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        top = _pick(top, key) if isinstance(top, Mapping | list) else None
    return isinstance(top, Mapping | bool)


def _list_objects(value: object) -> Iterator[Mapping[str, Any]]:
    """All objects within a value, to any depth."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            yield one
            left += one.values()
        elif isinstance(one, list):
            left += one
