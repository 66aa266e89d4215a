"""Which objects of a JSON schema are closed: those that name properties and do not say what others
may be there have no others.

Invariant: closing only narrows what is generated, so a generated text satisfies the schema as it
was given.  Objects that several schemas describe together (`allOf`, or `$ref`, `anyOf`, `oneOf` in
addition to properties) are closed as one, around the names of all.  A `oneOf` is proven of branches
as they were given.  Knows no grammar engine.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import unquote

from flyweight.sampling.schema_keywords import Opposite, find_at

NAMING = ("properties", "patternProperties")
OWN = {*NAMING, "required", "additionalProperties"}
FIXED = {"enum", "const"}  # the object is there as a value
COMPOSING = ("allOf", "anyOf", "oneOf")
PREFIX = "open-"  # of definitions that are made here


class ClosedNames(NamedTuple):
    """What an object may have when it is closed: names and patterns."""

    names: dict[str, None]
    patterns: dict[str, None]


@dataclass(slots=True)
class Closing:
    """Decides for the schemas within `top`.  `variants` are copies of definitions that are needed
    with their objects open: by (pointer, whether all within is open), the names they go by.
    """

    top: Mapping[str, Any]
    on: bool
    variants: dict[tuple[str, bool], str] = field(default_factory=dict)

    def is_composed(self, schema: Mapping[str, Any]) -> bool:
        """Whether several schemas describe the same object here."""
        parts = bool(OWN & schema.keys()) + ("$ref" in schema)
        parts += len(_list_branches(schema, "allOf"))
        parts += bool(_list_branches(schema, "anyOf")) + bool(_list_branches(schema, "oneOf"))
        return parts > 1 or self.is_undivided(schema)

    def is_undivided(self, schema: Mapping[str, Any]) -> bool:
        """Whether only objects as they were given show that no two branches of a `oneOf` meet."""
        found = [self.resolve(one) for one in _list_branches(schema, "oneOf")]
        objects = [one for one in found if not _excludes_objects(one)]
        if len(objects) < 2:
            return False
        return not any(_divides(name, objects) for name in _list_required(objects[0]))

    def is_divided(self, schema: Mapping[str, Any]) -> bool:
        """Whether the branches of a `oneOf` exclude each other: all are objects that differ in the
        constants of a required property, except for one at most, which is no object.
        """
        found = [self.resolve(one) for one in _list_branches(schema, "oneOf")]
        objects = [one for one in found if _requires_object(one)]
        others = [one for one in found if not _requires_object(one)]
        if not self.on or not found or len(others) > 1 or not all(map(_excludes_objects, others)):
            return False
        return len(objects) < 2 or any(
            _divides(name, objects) for name in _list_required(objects[0])
        )

    def list_names(self, schema: Mapping[str, Any]) -> ClosedNames | None:
        """Around which the object is closed; None where it stays as it is."""
        found, named = ClosedNames({}, {}), False
        for one in self._list_parts(schema):
            if one is None or "additionalProperties" in one or FIXED & one.keys():
                return None
            for name, into in zip(NAMING, found, strict=True):
                given = one.get(name)
                named = named or name in one
                into.update(dict.fromkeys(given if isinstance(given, Mapping) else ()))
            found.names.update(dict.fromkeys(_list_required(one)))
        least = schema.get("minProperties", 0)
        wide = isinstance(least, int) and least > len(found.names) and not found.patterns
        return found if named and not wide else None

    def open_reference(self, target: str, *, deep: bool) -> str:
        """A $ref to the same with its object open."""
        key = (unquote(target)[1:], deep)
        if key not in self.variants:
            known, name = self.top.get("$defs"), f"{PREFIX}{len(self.variants)}"
            while isinstance(known, Mapping) and name in known:
                name += "-"
            self.variants[key] = name
        return f"#/$defs/{self.variants[key]}"

    def resolve(self, schema: object) -> object:
        """A schema, or what its $ref leads to where it is nothing but that."""
        passed = set[str]()
        while isinstance(schema, Mapping) and "$ref" in schema and not OWN & schema.keys():
            target = schema["$ref"]
            if not isinstance(target, str) or target in passed:
                return None
            passed.add(target)
            schema = self.find_at(unquote(target)[1:]) if target.startswith("#") else None
        return schema

    def find_at(self, pointer: str) -> object:
        """The schema at a place; None where there is nothing."""
        return find_at(self.top, pointer)

    def _list_parts(self, schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any] | None]:
        """All schemas that describe this object; None for one that is not known."""
        left: list[object] = [schema]
        passed = set[str]()
        while left:
            one = left.pop(0)
            if not isinstance(one, Mapping) or isinstance(one, Opposite):
                continue
            yield one
            target = one.get("$ref")
            if isinstance(target, str) and target not in passed:
                passed.add(target)
                found = self.find_at(unquote(target)[1:]) if target.startswith("#") else None
                if found is None:
                    yield None
                left.append(found)
            for name in COMPOSING:
                left += _list_branches(one, name)


def _list_branches(schema: Mapping[str, Any], name: str) -> list[Any]:
    given = schema.get(name)
    return given if isinstance(given, list) else []


def _list_required(schema: object) -> list[str]:
    given = schema.get("required") if isinstance(schema, Mapping) else None
    return [one for one in given if isinstance(one, str)] if isinstance(given, list) else []


def _excludes_objects(schema: object) -> bool:
    """Whether no object satisfies a schema, as its type says."""
    kinds = schema.get("type") if isinstance(schema, Mapping) else None
    return kinds is not None and "object" not in (kinds if isinstance(kinds, list) else [kinds])


def _requires_object(schema: object) -> bool:
    """Whether nothing but an object satisfies a schema, as its type says."""
    if not isinstance(schema, Mapping) or schema.get("nullable", False):
        return False
    return schema.get("type") in ("object", ["object"])


def _divides(name: str, objects: list[Any]) -> bool:
    """Whether each of some objects must have a property, with values that no other has."""
    seen = set[str]()
    for one in objects:
        values = _list_values(one, name) if name in _list_required(one) else None
        if values is None or seen & values:
            return False
        seen |= values
    return True


def _list_values(schema: Mapping[str, Any], name: str) -> set[str] | None:
    """The values that a property may have, as texts; None where they are not listed."""
    properties = schema.get("properties")
    given = properties.get(name) if isinstance(properties, Mapping) else None
    if not isinstance(given, Mapping) or not FIXED & given.keys():
        return None
    listed = [given["const"]] if "const" in given else given["enum"]
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        return None
    return {json.dumps(one) for one in listed}
