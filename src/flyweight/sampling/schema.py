"""JSON schemas made ready for the grammar engine: checked keyword by keyword, their formats and
patterns tightened.

Invariant: every keyword of a schema that passes is enforced or is an annotation; what is not is
refused by name, with its place.  Depth is bounded before (`structured`).  Knows no grammar engine.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple
from urllib.parse import unquote

from flyweight.errors import nearest
from flyweight.sampling.formats import (
    KEPT,
    LACKING_FORMATS,
    LONGEST_HOST,
    TIGHT,
    find_meant_format,
    is_ignored_format,
)
from flyweight.sampling.levels import check_schema
from flyweight.sampling.patterns import translate_pattern
from flyweight.sampling.schema_closing import COMPOSING, OWN, Closing
from flyweight.sampling.schema_keywords import (
    ALL_MAPS,
    ANNOTATIONS,
    DEFINITIONS,
    ENFORCED,
    LACKING,
    LISTS,
    MAPS,
    NAMES,
    SINGLE,
    Opposite,
    UnsupportedSchema,
    escape,
    find_meant,
    inline_counted_references,
    list_within,
    refuse,
)
from flyweight.sampling.schema_rewriting import Rewriting
from flyweight.sampling.schema_values import TYPES, shape_value, tighten_range
from flyweight.validation.untrusted import shown

MOST_ADDED = 1 << 14  # names that are repeated where objects are closed around several schemas


def prepare_schema(schema: Mapping[str, Any] | bool) -> dict[str, Any]:
    """The schema to enforce; objects that name properties have no others, unless they say so.
    Raises `RequestError` that names what cannot be enforced.
    """
    try:
        return _prepare(schema)
    except RecursionError:
        problem = "schemas that are negated lead back to themselves"
        raise UnsupportedSchema("", problem) from None


def _prepare(schema: Mapping[str, Any] | bool) -> dict[str, Any]:
    if schema is False:
        refuse("", "false: nothing is valid")
    top = {} if isinstance(schema, bool) else schema
    check_schema(top)
    _check_shapes(top)
    plain = not (_has_keyword(top, "$id") or _has_keyword(top, "$anchor"))
    alone = plain or not any(
        _has_keyword(part, "$id") or _has_keyword(part, "$anchor") for part in top.values()
    )
    rewriting = Rewriting(inline_counted_references(top) if alone else top, plain=alone)
    whole = rewriting.rewrite()
    if isinstance(whole, bool):
        refuse("", "nothing is valid")
    top = whole
    check_schema(top)
    closing = Closing(top, on=plain)
    reader = _SchemaReader(closing, rewriting.places, exactly=_has_keyword(top, "oneOf"))
    found = reader.read(top, Spot("", ""))
    check_refs(reader)
    assert isinstance(found, dict)
    made = 0
    while made < len(closing.variants):  # reading one may call for others
        (pointer, deep), name = list(closing.variants.items())[made]
        mode = Mode.DEEP if deep else Mode.OPEN
        given = closing.find_at(pointer)
        if isinstance(given, Mapping):  # what is defined within it is there already
            given = {key: value for key, value in given.items() if key not in DEFINITIONS}
        one = reader.read(given, Spot(pointer, pointer), mode)
        found.setdefault("$defs", {})[name] = one
        made += 1
    return found


def _check_shapes(top: Mapping[str, Any]) -> None:
    """Raises `RequestError` where schemas that others are made of have no schemas in them."""
    left: list[tuple[str, Any]] = [("", top)]
    while left:
        place, schema = left.pop()
        if not isinstance(schema, Mapping):
            continue
        for name, value in schema.items():
            if name in ALL_MAPS | {"dependentRequired"} and not isinstance(value, Mapping):
                refuse(f"{place}/{name}", f"{shown(value)} is not an object")
            if name in LISTS and not isinstance(value, list):
                refuse(f"{place}/{name}", f"{shown(value)} is not a list")
            if name in ("required", "enum"):
                shape_value(name, value, f"{place}/{name}")
        left += ((place + step, one) for step, one in list_within(schema))


class Spot(NamedTuple):
    """Where a schema stands, and the place that it goes by: that of what it was made of."""

    pointer: str
    place: str

    def __truediv__(self, key: object) -> "Spot":
        step = f"/{escape(str(key))}"
        return Spot(self.pointer + step, self.place + step)


class Mode(Enum):
    """Whether an object is closed; `OPEN`: it is not, but those within it are; `DEEP`: none is."""

    CLOSED = 0
    OPEN = 1
    DEEP = 2


class _SchemaReader:
    """Copies a schema; keeps the places of all schemas within it, and who refers where.  `exactly`:
    a range says of other schemas too what they do not hold.
    """

    def __init__(self, closing: Closing, places: Mapping[int, str], *, exactly: bool) -> None:
        self.closing, self.exactly = closing, exactly
        self._places = places  # of schemas that have moved, by their identity
        self.seen: set[str] = set()
        self.refs: list[tuple[Spot, str]] = []
        self.named: set[str] = set()  # $id and $anchor
        self.added = 0  # names that closing has put into objects

    def read(self, schema: object, spot: Spot, mode: Mode = Mode.CLOSED) -> dict[str, Any] | bool:
        self.seen.add(spot.pointer)
        if isinstance(schema, bool):
            return schema
        spot = Spot(spot.pointer, self._places.get(id(schema), spot.place))
        place = spot.place
        if not isinstance(schema, Mapping):
            refuse(place, f"{shown(schema)} is not a schema; allowed: an object, true or false")
        if isinstance(schema, Opposite) and mode is Mode.CLOSED:
            mode = Mode.OPEN
        inner = self._choose_mode(schema, mode)
        found: dict[str, Any] = {}
        for name, value in schema.items():
            if name in ENFORCED:
                found[name] = self._read_keyword(name, value, spot / name, inner)
            elif name not in ANNOTATIONS:
                _check_known(name, place)
        _check_ends(found, place)
        if mode is Mode.CLOSED and (inner is not mode or OWN & schema.keys()):
            self._close(found, schema, place)
        if "oneOf" in found and self.closing.is_divided(schema):
            _replace_one_of(found)
        _tighten_format(found, place)
        tighten_range(found, place, exactly=self.exactly)
        return found

    def _choose_mode(self, schema: Mapping[str, Any], mode: Mode) -> Mode:
        """Of the schemas that describe the same object."""
        if mode is Mode.DEEP or not self.closing.on:
            return mode
        if self.closing.is_undivided(schema):
            return Mode.DEEP
        return Mode.OPEN if self.closing.is_composed(schema) else mode

    def _close(self, found: dict[str, Any], schema: Mapping[str, Any], place: str) -> None:
        """Leaves no properties but those that are named."""
        around = self.closing.list_names(schema) if self.closing.on else None
        if around is None:
            return
        properties, patterns = found.get("properties", {}), found.get("patternProperties", {})
        more = {name: True for name in around.names if name not in properties}
        known = {translate_pattern(one, place): True for one in around.patterns}
        self.added += len(more) + len(known)
        if self.added > MOST_ADDED:
            what = f"objects that several schemas describe have more than {MOST_ADDED} names in all"
            raise UnsupportedSchema(place, f"{what}; say additionalProperties in them")
        if more or properties:
            found["properties"] = {**properties, **more}
        if known:
            found["patternProperties"] = {**known, **patterns}
        found["additionalProperties"] = False

    def _read_keyword(self, name: str, value: Any, spot: Spot, inner: Mode) -> Any:
        """A keyword's value; `inner` is the mode of schemas of the same object."""
        place = spot.place
        below = Mode.DEEP if inner is Mode.DEEP else Mode.CLOSED
        if name in MAPS:
            if not isinstance(value, Mapping):
                refuse(place, f"{shown(value)} is not an object")
            return {
                translate_pattern(key, place) if name == "patternProperties" else key: self.read(
                    one, spot / key, below
                )
                for key, one in value.items()
            }
        if name in LISTS or (name == "items" and isinstance(value, list)):
            if not isinstance(value, list):
                refuse(place, f"{shown(value)} is not a list")
            own = inner if name in COMPOSING else below
            return [self.read(one, spot / i, own) for i, one in enumerate(value)]
        if name in SINGLE:
            return self.read(value, spot, below)
        if name in (*NAMES, "pattern") and not isinstance(value, str):
            refuse(place, f"{shown(value)} is not text")
        if name == "$ref":
            self.refs.append((spot, value))
            if inner is not Mode.CLOSED and isinstance(
                self.closing.resolve({"$ref": value}), Mapping
            ):
                return self.closing.open_reference(value, deep=inner is Mode.DEEP)
        elif name in NAMES:
            self.named.add(value if name == "$id" else f"#{value}")
        if name == "type":
            _check_types(value, place)
        if name == "pattern":
            return translate_pattern(value, place)
        return shape_value(name, value, place)


def check_refs(reader: _SchemaReader) -> None:
    """Raises `RequestError` where a $ref names no schema, a place outside this one, or itself
    without a step into the value.
    """
    leads: dict[str, str] = {}
    for spot, target in reader.refs:
        place = spot.place
        pointer = unquote(target)
        inside = pointer == "#" or pointer.startswith("#/")
        if inside and pointer[1:] not in reader.seen:
            known = sorted(f"#{one}" for one in reader.seen)
            refuse(place, f"$ref = {shown(target)} does not name a schema{nearest(pointer, known)}")
        if not inside and not reader.named:
            what = "allowed: '#' or '#/...'; nothing is fetched"
            refuse(place, f"$ref = {shown(target)} is outside this schema; {what}")
        if inside:
            leads[spot.pointer.removesuffix("/$ref")] = pointer[1:]
    for start in leads:
        at, passed = start, set[str]()
        while at in leads and at not in passed:
            passed.add(at)
            at = leads[at]
        if at in passed:
            refuse(f"{at}/$ref", "it refers to itself, and describes no value")


def _check_types(given: Any, place: str) -> None:
    """Raises `RequestError` unless these are types of JSON's values."""
    for one in given if isinstance(given, list) else [given]:
        if one not in TYPES:
            hint = nearest(one[:40], TYPES) if isinstance(one, str) else ""
            refuse(place, f"type = {shown(one)} is not valid{hint}; allowed: {', '.join(TYPES)}")


def _check_ends(schema: Mapping[str, Any], place: str) -> None:
    """A key may be written twice and counts once: a least number can only be promised of keys that
    are known.
    """
    least, required = schema.get("minProperties", 0), schema.get("required", ())
    if not isinstance(least, int) or not isinstance(required, list | tuple):
        return
    if least > max(1, len(set(map(str, required)))):
        known = f"above 1 and the {len(required)} required names"
        problem = f"minProperties = {least} is {known}, which is not supported"
        raise UnsupportedSchema(place, problem, "minProperties")


def _replace_one_of(schema: dict[str, Any]) -> None:
    """Of branches that exclude each other; the grammar engine sees it only where none is a $ref."""
    branches = schema.pop("oneOf")
    if "anyOf" in schema:
        schema["allOf"] = [*schema.get("allOf", ()), {"anyOf": branches}]
    else:
        schema["anyOf"] = branches


def _tighten_format(schema: dict[str, Any], place: str) -> None:
    """Puts a pattern in the place of a format that the grammar engine takes too loosely."""
    name = schema.get("format")
    if name is None:
        return
    if is_ignored_format(name):
        del schema["format"]
        return
    if not isinstance(name, str) or name not in (*TIGHT, *KEPT):
        known = sorted((*TIGHT, *KEPT))
        likely = find_meant_format(name) if isinstance(name, str) else ""
        hint = f" (did you mean {likely!r}?)" if likely in known else ""
        problem = f"format = {shown(name)} is not supported{hint}; supported: {known}"
        if name in LACKING_FORMATS:
            raise UnsupportedSchema(place, problem, "format")
        refuse(place, problem)
    if name not in TIGHT:
        return
    del schema["format"]
    own: dict[str, Any] = {"pattern": f"^(?:{TIGHT[name]})$"}
    if name == "hostname":
        own["maxLength"] = LONGEST_HOST
    if own.keys() & schema.keys():
        schema["allOf"] = [*schema.get("allOf", ()), own]
    else:
        schema.update(own)


def _has_keyword(schema: object, keyword: str) -> bool:
    """Whether a keyword is anywhere in a schema."""
    left = [schema]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            if keyword in one:
                return True
            left += one.values()
        elif isinstance(one, list):
            left += one
    return False


def _check_known(name: str, place: str) -> None:
    """Raises `RequestError` of what would constrain a value, or is meant to."""
    known = find_meant(name)
    if name in LACKING or (known and not name.startswith("x-")):
        problem = f"the keyword {shown(name)} is not supported"
        if name in LACKING:
            raise UnsupportedSchema(place, problem, name)
        refuse(place, f"{problem} (did you mean {known!r}?)")
