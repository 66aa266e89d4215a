"""The keywords of JSON Schema: which are enforced, which annotate, and which names are ignored.

Invariant: a name that no draft knows cannot constrain a value, so it is ignored; one that is nearly
a keyword's is a misspelling of it, and refused.  Knows no grammar engine.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Any, NoReturn
from urllib.parse import unquote

from flyweight.errors import RequestError, count_edits
from flyweight.params.structured import NAME
from flyweight.sampling.formats import is_ignored_format
from flyweight.validation.untrusted import shown

ANNOTATIONS = {
    "$schema", "$comment", "title", "description", "default", "examples", "deprecated", "readOnly",
    "writeOnly", "contentMediaType", "contentEncoding", "contentSchema", "discriminator",
    "$vocabulary", "$dynamicAnchor", "$recursiveAnchor",
}  # fmt: skip
NAMES = {"$id", "$anchor", "$ref"}
PLAIN = {  # enforced unchanged
    "type", "enum", "const", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum",
    "exclusiveMaximum", "multipleOf", "minItems", "maxItems", "minProperties", "maxProperties",
    "required",
}  # fmt: skip
DEFINITIONS = {"$defs", "definitions"}
MAPS = {"properties", "patternProperties", *DEFINITIONS}
LISTS = {"allOf", "anyOf", "oneOf", "prefixItems"}
SINGLE = {"items", "additionalProperties", "additionalItems"}
# With those that are rewritten.
ALL_MAPS = MAPS | {"dependentSchemas", "dependencies"}
ALL_SINGLE = SINGLE | {
    "not", "if", "then", "else", "contains", "propertyNames", "unevaluatedProperties",
    "unevaluatedItems",
}  # fmt: skip
ENFORCED = PLAIN | MAPS | LISTS | SINGLE | NAMES | {"pattern", "format"}
LACKING = {  # known to JSON Schema, not to us
    "not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems",
    "propertyNames", "dependentRequired", "dependentSchemas", "dependencies",
    "unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef", "x-guidance",
}  # fmt: skip
ENDS = {"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"}
# Other tools' annotations, nearly spelled as keywords are, or known under a condition.
HARMLESS = {"id", "example", "readonly", "_format", "strict", "nullable", "enumNames"}


Schema = dict[str, Any] | bool

COUNTS = {"minProperties", "maxProperties"}
OF_OBJECTS = {
    "type", "properties", "patternProperties", "additionalProperties", "propertyNames", "required",
}  # fmt: skip


class UnsupportedSchema(RequestError):
    """A part of a schema, which may be valid, that no grammar enforces: the keyword at the end of
    the JSON pointer `place`, or `keyword` of the schema there.
    """

    def __init__(self, place: str, problem: str, keyword: str = "") -> None:
        where = shown(place or "#")
        super().__init__(f": at {where}: {problem}", f"{NAME}.json", code="bad_constraint")
        self.place, self.keyword = place, keyword


class Opposite(dict[str, Any]):
    """A schema that says what a value is not: it names no properties that a value may have."""


def any_of(found: Iterable[Schema]) -> Schema:
    """A schema that holds what any of these does."""
    listed = [one for one in found if one is not False]
    if not listed or True in listed:
        return bool(listed)
    return listed[0] if len(listed) == 1 else {"anyOf": listed}


def all_of(found: Iterable[Schema]) -> Schema:
    """A schema that holds what all of these do."""
    listed = [one for one in found if one is not True]
    if not listed or False in listed:
        return not listed
    return listed[0] if len(listed) == 1 else {"allOf": listed}


def refuse(place: str, problem: str) -> NoReturn:
    """Raises the error of a schema that is not valid."""
    where = shown(place or "#")
    raise RequestError(f": at {where}: {problem}", f"{NAME}.json", code="bad_constraint")


def map_within(schema: Mapping[str, Any], change: Callable[[str, Any], Any]) -> dict[str, Any]:
    """A copy of a schema in which each schema directly within it is what `change` makes of the
    keyword and the schema.
    """
    found = dict(schema)
    for name, value in schema.items():
        if name in ALL_MAPS and isinstance(value, Mapping):
            found[name] = {key: change(name, one) for key, one in value.items()}
        elif isinstance(value, list) and name in (*LISTS, "items"):
            found[name] = [change(name, one) for one in value]
        elif name in ALL_SINGLE:
            found[name] = change(name, value)
    return found


def list_within(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas directly within one, each with the JSON pointer that leads to it."""
    for name, value in schema.items():
        if name in ALL_MAPS and isinstance(value, Mapping):
            yield from ((f"/{name}/{escape(key)}", one) for key, one in value.items())
        elif isinstance(value, list) and name in (*LISTS, "items"):
            yield from ((f"/{name}/{i}", one) for i, one in enumerate(value))
        elif name in ALL_SINGLE:
            yield f"/{name}", value


def find_at(top: object, pointer: str) -> object:
    """What is at a place of a schema; None where there is nothing."""
    found: Any = top
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(key)
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found


def find_anchors(top: Mapping[str, Any]) -> dict[str, str]:
    """Where each `$dynamicRef` leads: in one document, to the only anchor of its name."""
    found: dict[str, list[str]] = {}
    left: list[tuple[object, str]] = [(top, "#")]
    while left:
        one, place = left.pop()
        if isinstance(one, Mapping):
            if isinstance(one.get("$dynamicAnchor"), str):
                found.setdefault(f"#{one['$dynamicAnchor']}", []).append(place)
            left += [(value, f"{place}/{escape(name)}") for name, value in one.items()]
        elif isinstance(one, list):
            left += [(value, f"{place}/{i}") for i, value in enumerate(one)]
    return {name: places[0] for name, places in found.items() if len(places) == 1}


def escape(key: str) -> str:
    """A key as a JSON pointer spells it."""
    return key.replace("~", "~0").replace("/", "~1")


def find_meant(name: str) -> str:
    """The keyword that an unknown name is a misspelling of; empty where it is of none."""
    if name in HARMLESS:
        return ""
    bare = _simplify(name[:40])
    found = ((_count_wrong(bare, _simplify(known)), known) for known in ENFORCED | LACKING)
    wrong, known = min(found)
    return known if wrong < 3 else ""


def _count_wrong(name: str, word: str) -> int:
    """Letters in which a name differs from a keyword; 3 where it is another name."""
    if name == word or abs(len(name) - len(word)) > 2:
        return 0 if name == word else 3
    most = 0 if len(word) < 4 else 1 if len(word) < 8 else 2
    found = count_edits(name, word)
    return found if found <= most and name[:1] == word[:1] else 3


def _simplify(name: str) -> str:
    return name.casefold().replace("_", "").replace("-", "").strip("$")


def is_ignored(name: str) -> bool:
    """Whether an unknown name has no effect.  Those that begin with `x-` are meant to have none."""
    if name in ENFORCED or name in ANNOTATIONS or name in LACKING:
        return False
    return not name.startswith("x-") and not find_meant(name)


def modernise(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema as the newest draft has it: OpenAPI 3.0's `nullable` adds null to a `type`, and
    draft 4's `exclusiveMinimum: true` opens the end that `minimum` has.
    """
    found = dict(schema)
    for plain, exclusive in ENDS.items():
        if isinstance(found.get(exclusive), bool) and found.pop(exclusive) and plain in found:
            found[exclusive] = found.pop(plain)
    if found.pop("nullable", False) is True and "type" in found:
        kinds = found["type"] if isinstance(found["type"], list) else [found["type"]]
        found["type"] = kinds if "null" in kinds else [*kinds, "null"]
    return found


def inline_counted_references(top: Mapping[str, Any]) -> dict[str, Any]:
    """A schema in which each reference that leads back to itself, and has only `COUNTS` next to it,
    is replaced by the object schema that it refers to: the grammar engine takes no keywords next to
    a circular reference.
    """

    is_circular = cache(partial(_is_circular, top))

    def visit(_: str, one: Any) -> Any:
        if not isinstance(one, Mapping):
            return one
        said = one.keys() - ANNOTATIONS
        if "$ref" in said and said & COUNTS and said <= {"$ref", *COUNTS}:
            target = _find_target(top, one)
            plain = isinstance(target, Mapping) and target.keys() - ANNOTATIONS <= OF_OBJECTS
            if isinstance(target, Mapping) and plain and is_circular(one["$ref"]):
                return {**target, **{key: one[key] for key in said & COUNTS}}
        return map_within(one, visit)

    return dict(visit("", top))


def _find_target(top: Mapping[str, Any], schema: Mapping[str, Any]) -> object:
    """What a schema refers to within one document."""
    target = unquote(str(schema.get("$ref", "")))
    return find_at(top, target[1:]) if target.startswith("#/") else None


def _is_circular(top: Mapping[str, Any], reference: str) -> bool:
    """Whether a reference leads back to itself, by way of any others."""
    start: dict[str, Any] = {"$ref": reference}
    seen, left = set[str](), [_find_target(top, start)]
    while left:
        one = left.pop()
        if not isinstance(one, Mapping):
            continue
        left += (part for _, part in list_within(one))
        target = str(one.get("$ref", ""))
        if target == reference:
            return True
        if target and target not in seen:
            seen.add(target)
            left.append(_find_target(top, one))
    return False


def list_ignored_keywords(schema: object) -> list[str]:
    """Names within a schema that have no effect, in order, each once: those that no draft knows,
    `nullable` where there is no type that it adds null to, and formats (`format=int32`).
    """
    found: dict[str, None] = {}
    left = [schema]
    while left:
        one = left.pop()
        if not isinstance(one, Mapping):
            continue
        for name in one:
            if (name != "nullable" or "type" not in one) and is_ignored(name):
                found[name] = None
        if "format" in one and is_ignored_format(one["format"]):
            found[f"format={one['format']}"] = None
        left += reversed(list(_list_within(one)))
    return list(found)


def _list_within(schema: Mapping[str, Any]) -> Iterator[object]:
    """The schemas directly within one."""
    for name, value in schema.items():
        if name in MAPS and isinstance(value, Mapping):
            yield from value.values()
        elif isinstance(value, list) and name in (*LISTS, "items"):
            yield from value
        elif name in SINGLE:
            yield value
