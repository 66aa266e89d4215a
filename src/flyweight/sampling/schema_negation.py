"""What a JSON schema does not hold, and which properties it evaluates, as schemas of keywords that
are enforced.

Invariant: a value satisfies the negation exactly where it does not satisfy the schema; negation is
pushed down to the keywords, so nothing in the result is negative.  What a case of `Unevaluated`
names is evaluated by schemas that the case holds to; the cases cover all values but those in which
two branches evaluate properties of their own.  Knows no grammar engine.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from flyweight.sampling.schema_keywords import (
    ANNOTATIONS,
    DEFINITIONS,
    Opposite,
    Schema,
    all_of,
    any_of,
    is_ignored,
    modernise,
)
from flyweight.sampling.schema_values import MOST, TYPES

DEEPEST = 32  # references and negations within each other
MOST_PARTS = 20_000  # that are negated, of one schema
MOST_CASES = 64  # of one schema, in which it evaluates different properties
MOST_WORDS = 64  # of a text that may not be one of them
ANY = r"\p{Any}"
OPPOSITE = {  # of numbers: what is not above or below an end
    "minimum": "exclusiveMaximum", "maximum": "exclusiveMinimum",
    "exclusiveMinimum": "maximum", "exclusiveMaximum": "minimum",
}  # fmt: skip
SIZES = {
    "Length": "string",
    "Items": "array",
    "Properties": "object",
}


class NotExpressible(Exception):
    """A schema whose negation has no keywords that are enforced; says which keyword it is."""


class Negation:
    """Negates schemas whose references `resolve` finds."""

    def __init__(self, resolve: Callable[[str], object]) -> None:
        self._resolve = resolve
        self._left = MOST_PARTS

    def negate(self, schema: object, depth: int = 0) -> Schema:
        """Raises `NotExpressible`."""
        if isinstance(schema, bool):
            return not schema
        self._left -= 1
        if not isinstance(schema, Mapping) or depth > DEEPEST or self._left < 0:
            raise NotExpressible("this")
        return any_of(self._negate_each(modernise(schema), depth + 1))

    def _negate_each(self, schema: Mapping[str, Any], depth: int) -> Iterator[Schema]:
        """What each keyword does not hold."""
        if "$id" in schema:
            raise NotExpressible("$id")
        if "if" in schema:
            yield from self._negate_condition(schema, depth)
        for name, value in schema.items():
            own = name in ANNOTATIONS | DEFINITIONS or name.startswith("x-") or is_ignored(name)
            if own or name in ("if", "then", "else", "nullable", "$anchor"):
                continue
            yield from self._negate_keyword(name, value, schema, depth)

    def _negate_keyword(
        self, name: str, value: Any, schema: Mapping[str, Any], depth: int
    ) -> Iterator[Schema]:
        part = name[3:]
        if name == "type":
            yield _negate_types(value)
        elif name in ("const", "enum"):
            yield from _negate_values([value] if name == "const" else value)
        elif name in OPPOSITE and isinstance(value, int | float) and abs(value) <= MOST:
            yield Opposite({"type": "number", OPPOSITE[name]: value})
        elif part in SIZES and isinstance(value, int):
            yield from _negate_size(name[:3], part, value)
        elif name == "required" and isinstance(value, list):
            yield from (forbid_property(one) for one in value)
        elif name == "properties" and isinstance(value, Mapping):
            for key, one in value.items():
                other = self.negate(one, depth)
                if other is not False:
                    yield Opposite(type="object", required=[key], properties={key: other})
        elif name == "contains" and not schema.keys() & {"minContains", "maxContains"}:
            yield Opposite(type="array", items=self.negate(value, depth))
        elif name == "$ref" and isinstance(value, str):
            yield self.negate(self._resolve(value), depth)
        elif name == "not":
            yield value
        elif name == "allOf" and isinstance(value, list):
            yield from (self.negate(one, depth) for one in value)
        elif name == "anyOf" and isinstance(value, list):
            yield all_of(self.negate(one, depth) for one in value)
        elif not _holds_all(name, value):
            raise NotExpressible(name)

    def _negate_condition(self, schema: Mapping[str, Any], depth: int) -> Iterator[Schema]:
        for name, given in (("then", schema["if"]), ("else", {"not": schema["if"]})):
            if name in schema:
                yield all_of([given, self.negate(schema[name], depth)])


def forbid_property(name: str) -> Opposite:
    """Objects without a property."""
    return Opposite(type="object", properties={name: False})


def _holds_all(name: str, value: Any) -> bool:
    """Whether a keyword constrains nothing as it is given."""
    if name in ("items", "additionalProperties", "additionalItems", "propertyNames"):
        return value in (True, {})
    if name.startswith("unevaluated"):
        return value in (True, {})
    if name == "patternProperties" and isinstance(value, Mapping):
        return all(one in (True, {}) for one in value.values())
    return name == "uniqueItems" and value is False


def _negate_types(given: Any) -> Schema:
    kinds = given if isinstance(given, list) else [given]
    if "integer" in kinds and "number" not in kinds:
        raise NotExpressible("type integer")
    left = [one for one in TYPES if one not in kinds and one != "integer"]
    return Opposite(type=left) if left else False


def _negate_values(given: Any) -> Iterator[Schema]:
    """All values but these; of numbers one at most can be left out."""
    values = given if isinstance(given, list) else [given]
    texts = [one for one in values if isinstance(one, str)]
    truths = {one for one in values if isinstance(one, bool)}
    numbers = [one for one in values if isinstance(one, int | float) and not isinstance(one, bool)]
    rest = len(values) - len(texts) - values.count(None)
    rest -= len(numbers) + sum(isinstance(one, bool) for one in values)
    if rest or len(numbers) > 1 or len(texts) > MOST_WORDS:
        raise NotExpressible("enum" if len(values) > 1 else "const")
    kinds = ["array", "object"]
    for kind, known in (("string", texts), ("boolean", truths), ("number", numbers)):
        kinds += [] if known else [kind]
    yield Opposite(type=kinds + ([] if None in values else ["null"]))
    if texts:
        yield Opposite(type="string", pattern=f"^(?:{_negate_texts(sorted(set(texts)))})$")
    if len(truths) == 1:
        yield Opposite(const=True not in truths)
    for number in numbers:
        yield Opposite(type="number", exclusiveMaximum=number)
        yield Opposite(type="number", exclusiveMinimum=number)


def _negate_texts(words: list[str]) -> str:
    """A regex of all texts but these, which are sorted."""
    heads = sorted({word[0] for word in words if word})
    found = [] if "" in words else [""]
    found.append((f"[^{''.join(map(_escape, heads))}]" if heads else ANY) + f"{ANY}*")
    for head in heads:
        tails = [word[1:] for word in words if word[:1] == head]
        found.append(f"{_escape(head)}(?:{_negate_texts(tails)})")
    return "|".join(found)


def _escape(char: str) -> str:
    return char if char.isalnum() and char.isascii() else rf"\u{{{ord(char):X}}}"


def _negate_size(end: str, part: str, value: int) -> Iterator[Schema]:
    if end == "max":
        yield Opposite({"type": SIZES[part], f"min{part}": value + 1})
    elif value > 0:
        yield Opposite({"type": SIZES[part], f"max{part}": value - 1})


@dataclass(frozen=True, slots=True)
class Case:
    """Names and patterns that are evaluated where all schemas in `held` are satisfied."""

    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    everything: bool = False
    held: tuple[Schema, ...] = ()

    def covers(self, cases: list["Case"]) -> bool:
        """Whether none of the cases evaluates anything more."""
        return self.everything or not any(
            one.everything or one.names - self.names or one.patterns - self.patterns
            for one in cases
        )

    def __add__(self, other: "Case") -> "Case":
        return Case(
            self.names | other.names,
            self.patterns | other.patterns,
            self.everything or other.everything,
            self.held + other.held,
        )


class Unevaluated:
    """Finds the cases of a schema whose references `resolve` finds."""

    def __init__(self, resolve: Callable[[str], object], negation: Negation) -> None:
        self._resolve, self._negation = resolve, negation
        self._left = MOST_PARTS

    def list_cases(self, schema: Mapping[str, Any]) -> list[Case]:
        """Of a schema without its own `unevaluatedProperties`.  Raises `NotExpressible`."""
        given = {name: one for name, one in schema.items() if name != "unevaluatedProperties"}
        always, choices = self._read(given, ())
        return _combine([[always], *(cases for cases in choices if not always.covers(cases))])

    def _read(self, schema: object, passed: tuple[str, ...]) -> tuple[Case, list[list[Case]]]:
        """What a schema always evaluates, and choices: of each, one case holds."""
        self._left -= 1
        if self._left < 0 or len(passed) > DEEPEST:
            raise NotExpressible("so many parts")
        if not isinstance(schema, Mapping):
            return Case(), []
        if schema.keys() & {"additionalProperties", "unevaluatedProperties"}:
            return Case(everything=True), []
        names, patterns = (schema.get(name) for name in ("properties", "patternProperties"))
        if not all(isinstance(one, Mapping | None) for one in (names, patterns)):
            raise NotExpressible("properties that are not an object")
        always, choices = Case(frozenset(names or ()), frozenset(patterns or ())), []
        parts = [self._read(one, passed) for one in _list(schema, "allOf")]
        target = schema.get("$ref")
        if isinstance(target, str):
            if target in passed:
                raise NotExpressible("a $ref that leads back to itself")
            parts.append(self._read(self._resolve(target), (*passed, target)))
        for own, more in parts:
            always += own
            choices += more
        for name in ("anyOf", "oneOf"):
            branches = _list(schema, name)
            if branches:
                choices.append([case for one in branches for case in self._list_held(one, passed)])
        return always, [*choices, *self._list_conditions(schema, passed)]

    def _list_held(self, schema: Any, passed: tuple[str, ...], *more: Schema) -> list[Case]:
        """The cases of a schema that a value satisfies where the case is its own."""
        always, choices = self._read(schema, passed)
        found = _combine([[always], *(cases for cases in choices if not always.covers(cases))])
        return [replace(one, held=(*more, schema, *one.held)) for one in found]

    def _list_conditions(
        self, schema: Mapping[str, Any], passed: tuple[str, ...]
    ) -> list[list[Case]]:
        found: list[list[Case]] = []
        for kind in ("dependentSchemas", "dependencies"):
            given = schema.get(kind, {})
            for name, one in given.items() if isinstance(given, Mapping) else ():
                if isinstance(one, Mapping):
                    away = Case(held=({"properties": {name: False}},))
                    found.append([away, *self._list_held(one, passed, {"required": [name]})])
        if "if" in schema:
            then = self._list_held(schema.get("then", True), passed)
            yes = _combine([self._list_held(schema["if"], passed), then])
            no = self._list_held(schema.get("else", True), passed)
            if not Case().covers([*yes, *no]):
                other = self._negation.negate(schema["if"])
                no = [replace(one, held=(other, *one.held)) for one in no]
                found.append([*yes, *no])
        return found


def _list(schema: Mapping[str, Any], name: str) -> list[Any]:
    given = schema.get(name)
    return given if isinstance(given, list) else []


def _combine(factors: list[list[Case]]) -> list[Case]:
    """Raises `NotExpressible` where there are too many."""
    found = [Case()]
    for cases in factors:
        if len(found) * len(cases) > MOST_CASES:
            raise NotExpressible("so many alternatives")
        found = [one + other for one, other in product(found, cases)]
    return found
