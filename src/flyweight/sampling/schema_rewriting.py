"""Keywords that the grammar engine lacks, said in those that it has.

Invariant: what comes out holds what the schema does, and nothing else, except arrays of distinct
items (in the order of an `enum` that is long) and for properties that are unevaluated.  What cannot
be said so is refused by name, with its place.  Knows no grammar engine.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import combinations, permutations
from typing import Any
from urllib.parse import quote, unquote

from flyweight.sampling.formats import TIGHT, is_ignored_format
from flyweight.sampling.schema_closing import Closing
from flyweight.sampling.schema_keywords import (
    ANNOTATIONS,
    LISTS,
    MAPS,
    SINGLE,
    Opposite,
    Schema,
    UnsupportedSchema,
    all_of,
    any_of,
    escape,
    find_anchors,
    find_at,
    modernise,
    refuse,
)
from flyweight.sampling.schema_negation import DEEPEST, Negation, NotExpressible, Unevaluated
from flyweight.validation.untrusted import shown

MOST_MADE = 20_000  # schemas in what comes out
MOST_EXCLUSIVE = 12  # branches of a oneOf that are distinguished by negations
MOST_ORDERED, MOST_DISTINCT = 5, 8  # items whose orders, or whose sets, are all listed
MOST_PLACES = 8  # of an array in which an item is looked for
CONDITION = {"if", "then", "else"}
DEPENDENT = {"dependentRequired", "dependentSchemas", "dependencies"}
OTHERS = ["null", "boolean", "number", "string", "object"]  # than arrays
CONTAINING = {"contains", "minContains", "maxContains"}
REPLACED = {
    *CONDITION, *DEPENDENT, *CONTAINING, "not", "propertyNames", "uniqueItems",
    "unevaluatedProperties", "unevaluatedItems",
}  # fmt: skip
LITERAL = re.compile(r"\^((?:[A-Za-z0-9_ -]|\\[$.^*+?()\[\]{}|/\\-])+)\$")
NAME = {"pattern", "format", "minLength", "maxLength"}
NAMED_BY = "the keyword 'propertyNames' is supported only with a pattern or names"
MOVED = "moved-"  # of definitions that are made here


class Rewriting:
    """Rewrites the schema `top`, whose references are `plain` pointers, or not all.  `places` are
    those of schemas that have moved, by identity.
    """

    def __init__(self, top: Mapping[str, Any], *, plain: bool) -> None:
        self.top, self._plain = top, plain
        self.places: dict[int, str] = {}
        self._kept: list[object] = []  # whose identities are in use
        self._moved: dict[str, str] = {}
        self._made = 0
        self._negation = Negation(self._resolve)
        self._evaluated = Unevaluated(self._resolve, self._negation)
        self._closing = Closing(top, on=True)
        self._anchors = find_anchors(top) if plain else {}

    def rewrite(self) -> Schema:
        """Raises `RequestError`."""
        found: Schema = self.rewrite_schema(self.top, "")
        made = 0
        while made < len(self._moved):  # reading one may call for others
            pointer, name = list(self._moved.items())[made]
            if isinstance(found, dict):
                found.setdefault("$defs", {})[name] = self._move(
                    find_at(self.top, pointer), pointer
                )
            made += 1
        return found

    def rewrite_schema(self, given: Any, place: str) -> Any:
        """A schema rewritten, with all within it."""
        if not isinstance(given, Mapping):
            return given
        self._made += 1
        if self._made > MOST_MADE:
            raise UnsupportedSchema(place, "it has too many alternatives")
        if not isinstance(given.get("nullable", False), bool):
            refuse(f"{place}/nullable", f"{shown(given['nullable'])}; allowed: true or false")
        one = modernise(given)
        if one.get("$dynamicRef") in self._anchors and "$ref" not in one:
            one["$ref"] = self._anchors[one.pop("$dynamicRef")]
        found: dict[str, Any] = Opposite() if isinstance(given, Opposite) else {}
        for name, value in one.items():
            if name not in REPLACED:
                found[name] = self._rewrite_value(name, value, f"{place}/{escape(name)}")
        _name_literals(found)
        if not one.keys() & (REPLACED | {"oneOf"}):
            return found
        more = [*self._list_replacements(one, found, place)]
        if False in more:
            return False
        more = [part for part in more if part is not True]
        if more:
            found["allOf"] = [*found.get("allOf", ()), *more]
        return found

    def _rewrite_value(self, name: str, value: Any, place: str) -> Any:
        if name in MAPS and isinstance(value, Mapping):
            return {
                key: self.rewrite_schema(one, f"{place}/{escape(key)}")
                for key, one in value.items()
            }
        if isinstance(value, list) and name in (*LISTS, "items"):
            return [self.rewrite_schema(one, f"{place}/{i}") for i, one in enumerate(value)]
        if name in SINGLE:
            return self.rewrite_schema(value, place)
        if name == "$ref" and isinstance(value, str):
            return self._rewrite_target(value)
        return value

    def _rewrite_target(self, target: str) -> str:
        """A $ref to where the schema is now."""
        pointer = unquote(target)
        if not pointer.startswith("#/"):
            return target
        if self._plain and find_at(self.top, pointer[1:]) is not None and not _stays(pointer):
            name = self._moved.setdefault(pointer[1:], f"{MOVED}{len(self._moved)}")
            return f"#/$defs/{name}"
        return "#" + quote(pointer[1:], safe="/~!$&'()*+,;=:@?")

    def _move(self, given: Any, place: str) -> Schema:
        """A schema that comes to stand elsewhere."""
        found: Schema = self.rewrite_schema(given, place)
        self.places[id(found)] = place
        self._kept.append(found)
        return found

    def _resolve(self, target: str) -> object:
        inside = self._plain and target.startswith("#")
        return find_at(self.top, unquote(target)[1:]) if inside else None

    def _follow(self, given: Any) -> Any:
        """A schema, or what it leads to where it is nothing but a reference."""
        for _ in range(DEEPEST):
            if not isinstance(given, Mapping) or given.keys() - ANNOTATIONS != {"$ref"}:
                return given
            given = self._resolve(str(given["$ref"]))
        return None

    def _negate(self, given: Any, name: str, place: str) -> Schema:
        """What a schema does not hold; `name` is the keyword that wants it."""
        try:
            return self._move(self._negation.negate(given), f"{place}/{name}")
        except NotExpressible as error:
            what = f"the keyword {name!r} is not supported for a schema with {error}"
            raise UnsupportedSchema(place, what, name) from None

    def _list_replacements(
        self, one: Mapping[str, Any], found: dict[str, Any], place: str
    ) -> Iterator[Schema]:
        """Schemas that replace the keywords that were left out."""
        if "not" in one:
            yield self._negate(one["not"], "not", place)
        if "if" in one and one.keys() & {"then", "else"}:
            yield self._rewrite_condition(one, place)
        for name in DEPENDENT & one.keys():
            yield from self._rewrite_dependent(one[name], f"{place}/{name}")
        if "propertyNames" in one:
            yield self._rewrite_names(one["propertyNames"], place)
        if "contains" in one:
            yield self._rewrite_contains(one, place)
        if one.get("uniqueItems", False) is not False:
            yield self._rewrite_distinct(one, found, place)
        if "unevaluatedProperties" in one:
            yield self._rewrite_unevaluated(one, place)
        if "unevaluatedItems" in one:
            self._rewrite_items(one, found, place)
        if isinstance(one.get("oneOf"), list):
            yield self._rewrite_exclusive(one, found, place)

    def _rewrite_condition(self, one: Mapping[str, Any], place: str) -> Schema:
        other = self._negate(one["if"], "if", place)
        then, otherwise = one.get("then", True), one.get("else", True)
        yes = self._move(then, f"{place}/then")
        if "else" not in one:
            return any_of([other, yes])
        held = self._move(one["if"], f"{place}/if")
        no = self._move(otherwise, f"{place}/else")
        return any_of([all_of([held, yes]), all_of([other, no])])

    def _rewrite_dependent(self, given: Any, place: str) -> Iterator[Schema]:
        if not isinstance(given, Mapping):
            refuse(place, f"{shown(given)} is not an object")
        for name, value in given.items():
            value = [value] if isinstance(value, str) else value
            there: dict[str, Any] = {"required": [name]}
            if isinstance(value, list):
                there = {"required": [name, *value]}
            elif value is not True:
                there["allOf"] = [self._move(value, f"{place}/{escape(name)}")]
            yield any_of([Opposite(properties={name: False}), there])

    def _rewrite_names(self, given: Any, place: str) -> Schema:
        """Objects whose properties' names satisfy a schema."""
        at_names = f"{place}/propertyNames"
        given = self._follow(given)
        if isinstance(given, bool):
            return given or Opposite(additionalProperties=False)
        if not isinstance(given, Mapping):
            refuse(at_names, f"{shown(given)} is not a schema")
        kinds = given.get("type", "string")
        said = given.keys() - ANNOTATIONS - {"type"}
        if kinds != "string" or not said <= {*NAME, "enum", "const"}:
            raise UnsupportedSchema(place, NAMED_BY, "propertyNames")
        if said & {"enum", "const"}:
            listed = [given["const"]] if "const" in given else given["enum"]
            if said & NAME or not isinstance(listed, list):
                raise UnsupportedSchema(place, NAMED_BY, "propertyNames")
            names = {one: True for one in listed if isinstance(one, str)}
            return Opposite(properties=names, additionalProperties=False)
        found: list[Schema] = [
            Opposite(patternProperties={pattern: True}, additionalProperties=False)
            for pattern in _list_name_patterns(given, at_names)
        ]
        return all_of(found)

    def _rewrite_contains(self, one: Mapping[str, Any], place: str) -> Schema:
        """Arrays of few places: the first item that satisfies the schema is at one of them."""
        given, least, most = one["contains"], one.get("minContains", 1), one.get("maxContains")
        if least == 0 and most is None:
            return True
        if most == 0 and least == 0:
            return Opposite(items=self._negate(given, "contains", place))
        longest = one.get("maxItems")
        bounded = isinstance(longest, int) and longest <= MOST_PLACES
        if least != 1 or most is not None or not bounded:
            what = f"up to {MOST_PLACES} items (maxItems)"
            problem = f"the keyword 'contains' is supported only once, in arrays of {what}"
            raise UnsupportedSchema(place, problem, "contains")
        before = self._negate(given, "contains", place)
        it = self._move(given, f"{place}/contains")
        found: list[Schema] = [{"type": OTHERS}]
        for i in range(int(longest or 0)):
            found.append({"type": "array", "prefixItems": [*[before] * i, it], "minItems": i + 1})
        return any_of(found)

    def _rewrite_distinct(
        self, one: Mapping[str, Any], found: dict[str, Any], place: str
    ) -> Schema:
        """Arrays whose items differ: those of a short `enum` are listed."""
        most, least = one.get("maxItems"), one.get("minItems", 0)
        if isinstance(most, int) and most < 2:
            return True
        items = self._follow(one.get("items"))
        values = _list_values(items) if "prefixItems" not in one else None
        said = one.keys() - ANNOTATIONS - {"type", "items", "uniqueItems", "minItems", "maxItems"}
        if values is None or len(values) > MOST_DISTINCT or said or one.get("type") != "array":
            what = f"arrays of up to one item, or of an enum of up to {MOST_DISTINCT}"
            problem = f"the keyword 'uniqueItems' is not supported except for {what}"
            raise UnsupportedSchema(place, problem, "uniqueItems")
        orders = permutations if len(values) <= MOST_ORDERED else combinations
        longest = min(len(values), most if isinstance(most, int) else len(values))
        counts = range(least if isinstance(least, int) else 0, longest + 1)
        for name in ("items", "minItems", "maxItems"):
            found.pop(name, None)
        return {"enum": [list(some) for count in counts for some in orders(values, count)]}

    def _rewrite_unevaluated(self, one: Mapping[str, Any], place: str) -> Schema:
        rest = self._move(one["unevaluatedProperties"], f"{place}/unevaluatedProperties")
        try:
            cases = self._evaluated.list_cases(one)
        except NotExpressible as error:
            problem = f"the keyword 'unevaluatedProperties' is not supported with {error}"
            raise UnsupportedSchema(place, problem, "unevaluatedProperties") from None
        found: list[Schema] = []
        for case in cases:
            closed: Schema = True
            if not case.everything:
                closed = {
                    "properties": dict.fromkeys(case.names, True),
                    "patternProperties": dict.fromkeys(case.patterns, True),
                    "additionalProperties": rest,
                }
            found.append(all_of([*(self._move(part, place) for part in case.held), closed]))
        return any_of(found)

    def _rewrite_items(self, one: Mapping[str, Any], found: dict[str, Any], place: str) -> None:
        rest = one["unevaluatedItems"]
        if rest in (True, {}) or "items" in one:
            return
        if one.keys() & {"$ref", "allOf", "anyOf", "oneOf", "contains", *CONDITION}:
            what = "a schema that others describe, too"
            problem = f"the keyword 'unevaluatedItems' is not supported in {what}"
            raise UnsupportedSchema(place, problem, "unevaluatedItems")
        found["items"] = self._move(rest, f"{place}/unevaluatedItems")

    def _rewrite_exclusive(
        self, one: Mapping[str, Any], found: dict[str, Any], place: str
    ) -> Schema:
        """The branches of a oneOf, each without what the others hold; where the negations cannot
        be expressed it is left to the grammar engine.
        """
        branches = one["oneOf"]
        known = len(branches) > MOST_EXCLUSIVE or self._closing.is_divided(one)
        if known or _types_differ([self._closing.resolve(branch) for branch in branches]):
            return True
        try:
            others = [self._negation.negate(branch) for branch in branches]
        except NotExpressible:
            return True
        del found["oneOf"]
        alone: list[Schema] = []
        for i, branch in enumerate(branches):
            rest = [
                self._move(other, f"{place}/oneOf/{j}") for j, other in enumerate(others) if j != i
            ]
            alone.append(all_of([self._move(branch, f"{place}/oneOf/{i}"), *rest]))
        return any_of(alone)


def _name_literals(schema: dict[str, Any]) -> None:
    """Puts patterns that match one name among the properties: where that one is required, too, the
    grammar engine would look for others.
    """
    patterns = schema.get("patternProperties")
    if not isinstance(patterns, dict):
        return
    for pattern in [*patterns]:
        literal = LITERAL.fullmatch(pattern)
        if literal and isinstance(schema.get("properties", {}), dict):
            name, one = re.sub(r"\\(.)", r"\1", literal[1]), patterns.pop(pattern)
            known = schema.get("properties", {})
            both = {"allOf": [known[name], one]} if name in known else one
            schema["properties"] = {**known, name: both}


def _stays(pointer: str) -> bool:
    """Whether a place is that of a schema, and none that moves."""
    steps = iter(pointer.split("/")[1:])
    for step in steps:
        single = step in SINGLE
        if step not in MAPS | (LISTS - {"oneOf"}) and not single:
            return False
        if not single and next(steps, None) is None:
            return False
    return True


def _list_name_patterns(given: Mapping[str, Any], place: str) -> Iterator[str]:
    if "pattern" in given:
        if not isinstance(given["pattern"], str):
            refuse(f"{place}/pattern", f"{shown(given['pattern'])} is not text")
        yield given["pattern"]
    name = given.get("format")
    if isinstance(name, str) and name in TIGHT:
        yield f"^(?:{TIGHT[name]})$"
    elif name is not None and not is_ignored_format(name):
        problem = f"format = {shown(name)} is not supported in 'propertyNames'"
        raise UnsupportedSchema(place, problem)
    if given.keys() & {"minLength", "maxLength"}:
        least, most = given.get("minLength", 0), given.get("maxLength", "")
        if not all(isinstance(one, int | str) for one in (least, most)):
            refuse(place, "its lengths are not whole numbers")
        yield rf"^[\s\S]{{{least},{most}}}$"


def _list_values(items: object) -> list[Any] | None:
    """All values that an item may have; None where they are not listed, or equal in JSON."""
    if not isinstance(items, Mapping) or items.keys() - ANNOTATIONS - {"type", "enum"}:
        return None
    listed = items.get("enum")
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        return None
    if "type" in items and "string" not in items["type"]:
        return None
    return list(dict.fromkeys(listed))


def _types_differ(branches: list[object]) -> bool:
    """Whether no value can be of the types of two of the schemas."""
    seen: list[str] = []
    for one in branches:
        kinds = one.get("type") if isinstance(one, Mapping) else None
        if kinds is None or (isinstance(one, Mapping) and one.get("nullable")):
            return False
        listed = kinds if isinstance(kinds, list) else [kinds]
        seen += ["number" if kind == "integer" else str(kind) for kind in listed]
    return len(seen) == len(set(seen))
