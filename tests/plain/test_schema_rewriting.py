"""Keywords that the grammar engine lacks: what they let through is what `jsonschema` says."""

import json
import random
from contextlib import suppress
from itertools import permutations, product
from typing import Any

import jsonschema
import pytest
from test_schema_walks import judged, validator

from flyweight.errors import RequestError
from flyweight.params.structured import StructuredOutputs
from flyweight.sampling.grammar import Compiler, byte_vocabulary
from flyweight.sampling.schema import prepare_schema
from flyweight.testing import accepts, make_acceptor

A = {"type": "object", "additionalProperties": True, "properties": {"a": {"type": "integer"}}}
NEEDS_A = {"required": ["a"]}
IS_X = {"properties": {"k": {"const": "x"}}, "required": ["k"]}
VALUES: list[Any] = [
    None, True, False, 0, 1, 5, -3, 0.5, "", "x", "y", "xy", "é\n", [], [1], [1, 1], ["x"],
    ["x", "y"], ["y", "x"], ["x", "x"], [1, "x"], {}, {"a": 1}, {"a": "x"}, {"b": 1},
    {"a": 1, "b": 2}, {"k": "x"}, {"k": "y"}, {"k": 1}, {"a": 1, "k": "x"}, {"b": 1, "k": "x"},
    {"b": 1, "k": "y"}, {"a": 1, "b": 2, "k": "x"}, {"ab": 1}, {"abc": 1, "b": 2},
]  # fmt: skip
EXACT: list[dict[str, Any]] = [
    {"not": {"type": "string"}},
    {"not": {"type": ["object", "array", "number"]}},
    {"not": {"const": "x"}},
    {"not": {"enum": ["x", "", "xyz", None]}},
    {"not": {"enum": [True, 1]}},
    {"not": {"minimum": 1}},
    {"not": {"exclusiveMaximum": 1, "type": "number"}},
    {"not": {"minLength": 2}},
    {"not": {"maxItems": 1}},
    {"not": NEEDS_A},
    {"not": IS_X},
    {"not": {"anyOf": [NEEDS_A, {"type": "string"}]}},
    {"not": {"allOf": [NEEDS_A, {"required": ["b"]}]}},
    {"not": {"not": NEEDS_A}},
    {"not": {"$ref": "#/$defs/x"}, "$defs": {"x": IS_X}},
    {"not": {"if": NEEDS_A, "then": {"required": ["b"]}, "else": {"type": "object"}}},
    {"type": "object", "not": {"minProperties": 1}},
    {"if": NEEDS_A, "then": {"required": ["b"]}},
    {"if": IS_X, "then": NEEDS_A, "else": {"type": ["object", "null"], "maxProperties": 1}},
    {"if": IS_X, "else": {"type": "object"}},
    {"then": False, "else": False, "type": "null"},
    {"dependentRequired": {"a": ["b"], "k": []}},
    {"dependentSchemas": {"a": {"required": ["b"]}}},
    {"dependencies": {"a": ["b"], "b": {"not": IS_X}}},
    {"type": "object", "propertyNames": {"pattern": "^a"}},
    {"type": "object", "propertyNames": {"maxLength": 1}, "additionalProperties": {"minimum": 1}},
    {"type": "object", "propertyNames": {"enum": ["a", "k"]}},
    {"propertyNames": False},
    {"type": "array", "items": {"enum": ["x", "y", "z"]}, "uniqueItems": True},
    {"type": "array", "uniqueItems": True, "maxItems": 1},
    {"uniqueItems": False},
    {"type": "array", "contains": {"const": "x"}, "maxItems": 2},
    {"contains": {"type": "string"}, "maxItems": 2},
    {"contains": {"const": 1}, "minContains": 0},
    {"contains": {"type": "string"}, "minContains": 0, "maxContains": 0},
    {"not": {"contains": {"type": "string"}}},
    {"type": "array", "prefixItems": [{"type": "integer"}], "unevaluatedItems": False},
    {"type": "object", "oneOf": [NEEDS_A, {"required": ["b"]}]},
    {"oneOf": [{"type": "object"}, NEEDS_A, {"type": "string"}]},
    {"oneOf": [{"type": "number", "minimum": 0}, {"type": "number", "maximum": 1}]},
    {**A, "additionalProperties": {"type": "integer"}, "oneOf": [IS_X, {"not": IS_X}]},
]  # fmt: skip
CLOSED: list[dict[str, Any]] = [  # objects whose names are all known, evaluated or not
    {"type": "object", "allOf": [{"properties": {"a": {"type": "integer"}}}],
     "properties": {"b": True}, "unevaluatedProperties": False},
    {"type": "object", "$ref": "#/$defs/x", "$defs": {"x": {"patternProperties": {"^a": True}}},
     "unevaluatedProperties": {"type": "integer"}},
    {"type": "object", "properties": {"k": True}, "if": IS_X,
     "then": {"properties": {"a": True}}, "else": {"properties": {"b": True}},
     "unevaluatedProperties": False},
    {"type": "object", "dependentSchemas": {"a": {"properties": {"b": True}}},
     "properties": {"a": True}, "unevaluatedProperties": False},
    {"type": "object", "oneOf": [{"properties": {"a": True}, "required": ["a"]},
                                 {"properties": {"b": True}, "required": ["b"]}],
     "unevaluatedProperties": False},
]  # fmt: skip
PARTS: list[dict[str, Any]] = [
    NEEDS_A, IS_X, A, {"type": "string"}, {"const": "x"}, {"minLength": 2}, {"type": "object"},
    {"properties": {"b": {"type": "string"}}}, {"maxProperties": 1}, {"enum": ["x", 1, None]},
    {"minimum": 1}, {"type": ["array", "null"]}, {"properties": {"a": {"minimum": 2}}},
]  # fmt: skip


@pytest.mark.parametrize("schema", EXACT + CLOSED, ids=json.dumps)
def test_what_is_let_through_is_what_is_valid(schema: dict[str, Any]) -> None:
    judge, known = make_acceptor(StructuredOutputs(json=schema)), validator(schema)

    def passes(value: Any) -> bool:
        orders = permutations(value.items()) if isinstance(value, dict) else ()
        texts = [json.dumps(one, ensure_ascii=False) for one in (value, *map(dict, orders))]
        return any(map(judge, texts))

    wrong = [value for value in VALUES if passes(value) != known.is_valid(value)]
    # Objects that name properties have no others.
    assert [one for one in wrong if not known.is_valid(one)] == []
    assert [one for one in wrong if not isinstance(one, dict)] == []
    assert not wrong or "properties" in json.dumps(schema)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"not": {"pattern": "a"}}, "at '#': the keyword 'not' .* with pattern"),
        ({"not": {"type": "integer"}}, "'not' .* with type integer"),
        ({"items": {"not": {"const": [1]}}}, "at '/items': the keyword 'not' .* with const"),
        ({"if": {"format": "date"}, "then": {}}, "the keyword 'if' .* with format"),
        ({"if": True, "then": {"items": {"patern": 1}}}, "at '/then/items': .*mean 'pattern'"),
        ({"dependentSchemas": {"a": {"format": "iri"}}}, "'/dependentSchemas/a': format"),
        ({"items": {"uniqueItems": True}}, "at '/items': the keyword 'uniqueItems' is not"),
        (
            {"type": "array", "contains": {"const": 1}},
            "the keyword 'contains' is supported only once",
        ),
        (
            {"propertyNames": {"type": "integer"}},
            "the keyword 'propertyNames' is supported only with",
        ),
        ({"unevaluatedItems": False, "allOf": [{}]}, "'unevaluatedItems' is not supported in"),
        ({"not": {}}, "nothing is valid"),
    ],
)
def test_what_cannot_be_expressed_is_refused_by_name(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        accepts(schema, "1")


def test_a_long_enum_of_distinct_items_keeps_its_order() -> None:
    items = {"enum": list("abcdefg")}
    schema = {"type": "array", "items": items, "uniqueItems": True, "minItems": 2}
    assert accepts(schema, '["a", "c", "g"]')
    assert not accepts(schema, '["c", "a"]') and not accepts(schema, '["a"]')


def test_references_follow_schemas_that_move() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/dependentSchemas/a/properties/b"}},
        "dependentSchemas": {"a": {"properties": {"b": {"type": "integer"}}, "required": ["b"]}},
    }
    assert accepts(schema, '{"a": 1, "b": 2}')
    assert not accepts(schema, '{"a": "x", "b": 2}') and not accepts(schema, '{"a": 1}')


@pytest.mark.parametrize("more", [{"minProperties": 1}, {"minProperties": 1, "maxProperties": 1}])
def test_circular_references_take_counts(more: dict[str, int]) -> None:
    """What `a` refers to leads back to it; what it refers to itself has no counts."""
    again = {"$ref": "#/$defs/map", "description": "x", **more}
    schema = {
        "$ref": "#/$defs/map",
        "$defs": {
            "map": {"type": "object", "additionalProperties": {"$ref": "#/$defs/one"}},
            "one": {"type": "object", "properties": {"a": again}, "additionalProperties": False},
        },
    }
    known = jsonschema.Draft202012Validator(schema)
    accepted = make_acceptor(StructuredOutputs(json=schema))
    maps: list[Any] = [{}, 1, {"x": {}}, {"x": {"a": 1}}]
    for _ in range(2):
        maps += [{key: {"a": one} for key in keys} for one in maps for keys in ("x", "xy")]
    assert 5 < sum(map(known.is_valid, maps)) < len(maps)
    for value in maps:
        assert accepted(json.dumps(value)) == known.is_valid(value), value


def test_counted_references_are_followed_for_a_while() -> None:
    """Copies that hold counted references to themselves are not copied again."""
    more: dict[str, Any] = {"$ref": "#/$defs/a", "minProperties": 1}
    schema = {"$defs": {"a": {"type": "object", "additionalProperties": more}}, **more}
    with suppress(RequestError):
        assert not accepts(schema, "{}")
    for target in ("#", "#/$defs", "#/$defs/none", 5, ["#/"], "#/minProperties"):
        with suppress(RequestError):
            prepare_schema({"$ref": target, "minProperties": 1, "$defs": {"a": more}})


def test_alternatives_are_bounded() -> None:
    wide = {"oneOf": [{"required": [f"n{i}"]} for i in range(12)]}
    schema: dict[str, Any] = wide
    for _ in range(5):
        schema = {"allOf": [schema] * 6, "not": schema}
    with pytest.raises(RequestError):
        accepts(schema, "{}")


def test_hostile_references_are_followed_for_a_while() -> None:
    loop: dict[str, Any] = {"$defs": {"a": {"$ref": "#/$defs/a"}}}
    steps = {f"s{i}": {"allOf": [{"$ref": f"#/$defs/s{i + 1}"}] * 2} for i in range(40)}
    wide: dict[str, Any] = {"$defs": {**steps, "s40": {"required": ["a"]}}}
    for top, name in ((loop, "a"), (wide, "s0")):
        one = {"$ref": f"#/$defs/{name}"}
        for more in (
            {"propertyNames": one}, {"not": one}, {"if": one, "then": {}, "else": {}},
            {"type": "array", "items": one, "uniqueItems": True}, {"oneOf": [one, one]},
            {**one, "unevaluatedProperties": False},
        ):  # fmt: skip
            with suppress(RequestError):
                prepare_schema({**top, **more})


def test_random_compositions_are_sound(at_length: bool) -> None:
    draw = random.Random(4)
    schemas = []
    for _ in range(200 * (20 if at_length else 1)):
        one, two, three = (draw.choice(PARTS) for _ in range(3))
        schemas.append(draw.choice([
            {"not": {"anyOf": [one, two]}}, {"if": one, "then": two, "else": three},
            {"oneOf": [one, two, three]}, {"dependentSchemas": {"a": one, "k": two}},
            {**one, "not": two}, {"if": one, "then": {"not": two}, "unevaluatedProperties": False},
            {"anyOf": [one, two], "properties": {"b": True}, "unevaluatedProperties": False},
        ]))  # fmt: skip
    compiler, accepted = Compiler(byte_vocabulary()), 0
    for schema in schemas:
        try:
            beginning = compiler.compile(StructuredOutputs(json=schema))
        except RequestError:
            continue
        accepted += 1
        known = jsonschema.Draft202012Validator(schema)
        for value, space in product(VALUES, (" ", "")):
            text = json.dumps(value, ensure_ascii=False, separators=("," + space, ":" + space))
            matcher, given = beginning.copy(), text.encode()
            passes = matcher.take(list(given)) == len(given) and matcher.complete
            assert known.is_valid(value) or not passes, (schema, value)
    assert accepted > 0.7 * len(schemas)
    assert judged(iter(schemas[:60]), walks=3, seed=5)[0] > 40
