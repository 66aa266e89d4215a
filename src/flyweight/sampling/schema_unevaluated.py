"""Which properties the schemas that describe an object evaluate, case by case.

Invariant: what a case names is evaluated by schemas that the case holds to; the cases cover all
values of the schema but those in which two branches evaluate properties of their own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from flyweight.sampling.schema_keywords import Schema
from flyweight.sampling.schema_negation import DEEPEST, MOST_PARTS, Negation, NotExpressible

MOST_CASES = 64


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
