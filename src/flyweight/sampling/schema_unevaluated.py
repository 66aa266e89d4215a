"""Which properties the schemas that describe an object evaluate, case by case.

Invariant: what a case names is evaluated by schemas that the case holds to; the cases cover all
values of the schema but those in which two branches evaluate properties of their own.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from flyweight.sampling.schema_keywords import Schema
from flyweight.sampling.schema_negation import Negation, NotExpressible

MOST_CASES = 64


@dataclass(frozen=True, slots=True)
class Case:
    """Names and patterns that are evaluated where all schemas in `held` are satisfied."""

    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    everything: bool = False
    held: tuple[Schema, ...] = ()

    @property
    def bare(self) -> bool:
        return not (self.names or self.patterns or self.everything)

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

    def cases(self, schema: Mapping[str, Any]) -> list[Case]:
        """Of a schema without its own `unevaluatedProperties`.  Raises `NotExpressible`."""
        given = {name: one for name, one in schema.items() if name != "unevaluatedProperties"}
        return self._of(given, ())

    def _of(self, schema: object, passed: tuple[str, ...]) -> list[Case]:
        if not isinstance(schema, Mapping):
            return [Case()]
        rest = schema.keys() & {"additionalProperties", "unevaluatedProperties"}
        names, patterns = schema.get("properties", ()), schema.get("patternProperties", ())
        factors = [[Case(frozenset(names), frozenset(patterns), bool(rest))]]
        if rest:
            return factors[0]
        target = schema.get("$ref")
        if isinstance(target, str):
            if target in passed:
                raise NotExpressible("a $ref that leads back to itself")
            factors.append(self._of(self._resolve(target), (*passed, target)))
        factors += [self._of(one, passed) for one in _listed(schema, "allOf")]
        for name in ("anyOf", "oneOf"):
            branches = _listed(schema, name)
            factors.append(_together([self._held(one, passed) for one in branches]))
        factors += self._conditions(schema, passed)
        return _product(factors)

    def _held(self, schema: Any, passed: tuple[str, ...], *more: Schema) -> list[Case]:
        """The cases of a schema that a value satisfies where the case is its own."""
        found = self._of(schema, passed)
        return [replace(one, held=(*more, schema, *one.held)) for one in found]

    def _conditions(self, schema: Mapping[str, Any], passed: tuple[str, ...]) -> list[list[Case]]:
        factors: list[list[Case]] = []
        for kind in ("dependentSchemas", "dependencies"):
            given = schema.get(kind, {})
            for name, one in given.items() if isinstance(given, Mapping) else ():
                if isinstance(one, Mapping):
                    away = Case(held=({"properties": {name: False}},))
                    there = self._held(one, passed, {"required": [name]})
                    factors.append(_together([[away], there]))
        if "if" in schema:
            yes = _product(
                [self._held(schema["if"], passed), self._held(schema.get("then", True), passed)]
            )
            no = self._held(schema.get("else", True), passed)
            if not all(one.bare for one in (*yes, *no)):
                other = self._negation.of(schema["if"])
                no = [replace(one, held=(other, *one.held)) for one in no]
                factors.append([*yes, *no])
        return factors


def _listed(schema: Mapping[str, Any], name: str) -> list[Any]:
    given = schema.get(name)
    return given if isinstance(given, list) else []


def _together(branches: Iterable[list[Case]]) -> list[Case]:
    """The cases of all branches; one where no branch evaluates anything."""
    found = [case for cases in branches for case in cases]
    return found if any(not case.bare for case in found) else [Case()]


def _product(factors: list[list[Case]]) -> list[Case]:
    """Raises `NotExpressible` where there are too many."""
    found = [Case()]
    for cases in factors:
        if len(found) * len(cases) > MOST_CASES:
            raise NotExpressible("so many alternatives")
        found = [one + other for one, other in product(found, cases)]
    return found
