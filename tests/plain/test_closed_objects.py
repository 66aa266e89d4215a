"""Objects are closed in generation unless they say otherwise, and what is generated is valid."""

import json
import random
from itertools import combinations
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from flyweight.errors import RequestError
from flyweight.params.structured import StructuredOutputs
from flyweight.sampling.schema import prepare_schema
from flyweight.sampling.sources import embed_schema
from flyweight.testing import make_acceptor

NUMBER = {"type": "integer"}


def named(*names: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": dict.fromkeys(names, NUMBER), **more}


def kind(value: str, *names: str) -> dict[str, Any]:
    found = named(*names, required=["k"])
    found["properties"] = {"k": {"const": value}, **found["properties"]}
    return found


DEFS = {"$defs": {"A": named("a"), "B": {"allOf": [{"$ref": "#/$defs/A"}, named("b")]}}}
CASES: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "plain": (named("a"), [{}, {"a": 1}], [{"b": 1}, {"a": 1, "b": 1}]),
    "true opens": (named("a", additionalProperties=True), [{"a": 1, "b": "x"}], [{"a": "x"}]),
    "a schema opens": (named("a", additionalProperties=NUMBER), [{"b": 1}], [{"b": "x"}]),
    "no names": ({"type": "object"}, [{"x": 1}], []),
    "no names but an empty list": ({"type": "object", "properties": {}}, [{}], [{"x": 1}]),
    "patterns": ({"type": "object", "patternProperties": {"^x": NUMBER}}, [{"x1": 1}], [{"y": 1}]),
    "within": ({"type": "array", "items": named("a")}, [[{"a": 1}]], [[{"b": 1}]]),
    "required and not named": (named("a", required=["b"]), [{"b": "x"}], [{"b": 1, "c": 1}]),
    "allOf": ({"allOf": [named("a"), named("b")]}, [{"a": 1, "b": 2}], [{"c": 1}, {"a": "x"}]),
    "allOf that says": (
        {"allOf": [named("a"), named("b", additionalProperties=True)]}, [{"c": 1}], [{"a": "x"}],
    ),
    "$ref": ({"$ref": "#/$defs/A", **DEFS}, [{"a": 1}], [{"b": 1}]),
    "$ref both ways": (
        {"type": "object", **DEFS,
         "properties": {"x": {"$ref": "#/$defs/A"}, "y": {"$ref": "#/$defs/B"}}},
        [{"x": {"a": 1}, "y": {"a": 1, "b": 2}}], [{"x": {"b": 1}}, {"y": {"c": 1}}, {"z": 1}],
    ),
    "itself": (
        {"type": "object", "properties": {"c": {"type": "array", "items": {"$ref": "#"}}}},
        [{"c": [{"c": []}]}], [{"c": [{"d": 1}]}],
    ),
    "anyOf": ({"anyOf": [named("a"), named("b")]}, [{"a": 1}, {"b": 1}], [{"a": 1, "b": 1}]),
    "anyOf of required": (
        {**named("a", "b"), "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1}, {"a": 1, "b": 1}], [{}, {"a": 1, "c": 1}],
    ),
    "anyOf in addition": (
        {**named("a"), "anyOf": [named("b", required=["b"]), named("c", required=["c"])]},
        [{"a": 1, "b": 1}, {"c": 1}], [{"a": 1}, {"b": 1, "z": 1}],
    ),
    "oneOf with a discriminator": (
        {"oneOf": [kind("x", "a"), kind("y", "b")]},
        [{"k": "x", "a": 1}, {"k": "y", "b": 1}], [{"k": "x", "b": 1}, {"k": "y", "z": 1}],
    ),
    "oneOf of $refs with a discriminator": (
        {"$defs": {"X": kind("x", "a"), "Y": kind("y", "b")},
         "oneOf": [{"$ref": "#/$defs/X"}, {"$ref": "#/$defs/Y"}, {"type": "null"}],
         "discriminator": {"propertyName": "k"}},
        [{"k": "x", "a": 1}, {"k": "y"}, None], [{"k": "x", "b": 1}, {"k": "z"}, {"a": 1}],
    ),
    "oneOf in addition to anyOf": (
        {"$defs": {"X": kind("x", "a"), "Y": kind("y", "a")},
         "oneOf": [{"$ref": "#/$defs/X"}, {"$ref": "#/$defs/Y"}],
         "anyOf": [named("a", required=["a"]), named("b", required=["b"])]},
        [{"a": 1, "k": "x"}, {"a": 1, "k": "y"}], [{"k": "x"}, {"a": 1, "k": "z"}],
    ),
    "too few names": (named("a", minProperties=1), [{"a": 1}], [{}, {"b": 1}]),
    "a value": ({**named("a"), "enum": [{"a": 1, "b": 2}]}, [{"a": 1, "b": 2}], [{"a": 1}]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_closed(case: str) -> None:
    schema, good, bad = CASES[case]
    judge = make_acceptor(StructuredOutputs(json=schema))
    assert [one for one in good if not judge(json.dumps(one))] == []
    assert [one for one in bad if judge(json.dumps(one))] == []
    rules = make_acceptor(
        StructuredOutputs(grammar=f"start: {embed_schema(schema)}")
    )  # as in calls
    assert [one for one in good if not rules(json.dumps(one))] == []
    assert [one for one in bad if rules(json.dumps(one))] == []


def test_a_one_of_is_not_proven_by_what_was_closed() -> None:
    """Closed, the second has no `a`; as it was given it may, so {"a": 1} satisfies both."""
    for schema in (
        {"oneOf": [named("a", required=["a"]), named("b")]},
        {"oneOf": [{**named(), "properties": {"p": named("x", required=["x"])}, "required": ["p"]},
                   {**named(), "properties": {"p": named("y")}, "required": ["p"]}]},
        {"$defs": {"X": kind("x")}, "oneOf": [{"$ref": "#/$defs/X"}, kind("x", "a")]},
    ):  # fmt: skip
        with pytest.raises(RequestError, match="oneOf"):
            make_acceptor(StructuredOutputs(json=schema))
    mixed = {"$defs": {"X": {**kind("x"), "type": ["object", "string"]}},
             "oneOf": [{"$ref": "#/$defs/X"}, {"type": "string"}]}  # fmt: skip
    judge = make_acceptor(StructuredOutputs(json=mixed))
    assert judge('{"k": "x"}') and not judge('"a"')


def test_names_are_not_repeated_without_end() -> None:
    """64 KiB of a schema would become megabytes."""
    wide = named(*(f"n{i}" for i in range(1000)))
    both = {"allOf": [{"$ref": "#/$defs/A"}, named("z")]}
    schema = {"$defs": {"A": wide}, "properties": {f"p{i}": both for i in range(20)}}
    with pytest.raises(RequestError, match="16384 names in all; say additionalProperties"):
        prepare_schema(schema)
    schema["$defs"]["A"]["additionalProperties"] = False
    assert len(json.dumps(prepare_schema(schema))) < 2 * len(json.dumps(schema))


def drawn(rng: random.Random, deep: int = 2) -> dict[str, Any]:
    """A schema of an object, or of one that several describe."""
    found: dict[str, Any] = {}
    if rng.random() < 0.7:
        names = rng.sample("abc", rng.randint(0, 2))
        found["properties"] = {
            name: drawn(rng, 0) if deep and rng.random() < 0.2 else NUMBER for name in names
        }
    if rng.random() < 0.3:
        found["required"] = rng.sample("abc", 1)
    if rng.random() < 0.15:
        found["patternProperties"] = {"^[ab]$": NUMBER}
    if rng.random() < 0.15:
        found["additionalProperties"] = rng.choice([True, False, NUMBER])
    if rng.random() < 0.1:
        found["minProperties"] = 1
    for name in ("allOf", "anyOf", "oneOf"):
        if deep and rng.random() < 0.3:
            found[name] = [drawn(rng, deep - 1) for _ in range(rng.randint(1, 2))]
    if deep and rng.random() < 0.3:
        found["$ref"] = rng.choice(["#/$defs/A", "#/$defs/B"])
    return found


def test_whatever_is_taken_is_valid() -> None:
    """Random compositions; every object of up to three of four keys, and of those in them."""
    rng, taken, compiled = random.Random(16), 0, 0
    flat = [
        dict(zip(keys, [1] * n, strict=True)) for n in range(4) for keys in combinations("abcd", n)
    ]
    values = [*flat, {"a": {"b": 1}}, {"a": {"d": 1}, "b": 1}, {"c": {}, "a": "x"}, {"b": "x"}]
    for _ in range(150):
        defs = {"A": drawn(rng, 0), "B": drawn(rng, 1)}
        defs["B"].pop("$ref", None)
        schema = {"type": "object", **drawn(rng), "$defs": defs}
        try:
            judge = make_acceptor(StructuredOutputs(json=schema))
        except RequestError:
            continue
        compiled += 1
        valid = Draft202012Validator(schema)
        passed = [one for one in values if judge(json.dumps(one))]
        taken += len(passed)
        assert [one for one in passed if not valid.is_valid(one)] == [], schema
    assert compiled > 60 and taken > 200, (compiled, taken)
