"""Schemas under `strictness: "validate"`: no valid text is lost, a schema that is wrong is refused,
and finished texts are checked against the whole schema.
"""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from test_schema_suite import ANNOTATED, cases, opened

from flyweight.errors import RequestError
from flyweight.params.structured import StructuredOutputs
from flyweight.sampling.grammar import Compiler, byte_vocabulary
from flyweight.sampling.schema_validation import make_validator
from flyweight.testing import make_acceptor
from schema_corpus import corpus, listed, verdict

SUITE = "schemas-json-schema-test-suite/draft2020-12"
WRONG = ("nothing is valid", "is outside this schema", "does not name a schema", "did you mean",
         "type = {")  # fmt: skip
NEVER = {"pattern": "(?=a)b"}  # a pattern that no grammar enforces


def loosened(schema: Any) -> Callable[[str], bool]:
    return make_acceptor(StructuredOutputs(json=schema, strictness="validate"))


def is_exact(schema: Any) -> bool:
    try:
        make_acceptor(StructuredOutputs(json=schema))
    except RequestError:
        return False
    return True


def test_no_valid_text_of_the_suite_is_lost(data: Callable[[str], Path]) -> None:
    """Of the schemas that are refused otherwise."""
    lost, count = [], 0
    for name, case in cases(data(SUITE)):
        schema = opened(case["schema"])
        if is_exact(schema):
            continue
        try:
            accepts = loosened(schema)
        except RequestError as error:
            assert any(word in str(error) for word in WRONG), (name, str(error))
            continue
        for one in case["tests"]:
            if one["valid"] and ANNOTATED not in one["description"]:
                count += 1
                if not accepts(json.dumps(one["data"], ensure_ascii=False)):
                    lost.append(f"{name}: {one['description']}")
    assert lost == [] and count > 250


def test_the_validator_agrees_with_the_suite(data: Callable[[str], Path]) -> None:
    wrong, count = [], 0
    for name, case in cases(data(SUITE)):
        try:
            is_valid = make_validator(StructuredOutputs(json=case["schema"], strictness="validate"))
        except RequestError as error:
            assert "is not present in a registry" in str(error)
            continue
        for one in case["tests"]:
            count += 1
            if (
                is_valid(json.dumps(one["data"])) != one["valid"]
                and ANNOTATED not in one["description"]
            ):
                wrong.append(f"{name}: {one['description']}")
    assert count > 2000
    # Without `$schema`, which may name a draft that has no such keywords.
    assert [one for one in wrong if not one.startswith("vocabulary.json")] == []


def test_what_the_corpus_has_is_generated_or_wrong(data: Callable[[str], Path]) -> None:
    """Every refusal that remains says what is wrong with the schema."""
    known, compiler = listed(), Compiler(byte_vocabulary())
    found = corpus(data("prompts-bfcl").parent)
    refused = []
    for name, (_, schema) in found.items():
        if name not in known or not verdict(compiler, schema):
            continue
        try:
            compiler.compile(StructuredOutputs(json=schema, strictness="validate"))
        except RequestError as error:
            if not any(word in str(error) for word in WRONG):
                refused.append(f"{known[name][0]}: {error}")
    assert refused == []


@pytest.mark.parametrize(
    ("schema", "valid"),
    [
        ({"not": NEVER}, ['"a"', "1"]),
        ({"if": NEVER, "then": {"type": "string"}, "else": {"type": "integer"}}, ['"a"', "1"]),
        ({"oneOf": [{"minLength": 2, **NEVER}, {"maxLength": 1}]}, ['"a"', '"aa"', "{}"]),
        # What is looser within a definition must not narrow what negates it.
        ({"$defs": {"x": {"type": "string", **NEVER}}, "not": {"$ref": "#/$defs/x"}}, ['"a"', "1"]),
        ({"$defs": {"x": {"type": "string", **NEVER}}, "properties": {"a": {"$ref": "#/$defs/x"}},
          "if": {"properties": {"a": {"$ref": "#/$defs/x"}}}, "then": {"properties": {"b": {}}}},
         ['{"a": "c", "b": 1}', '{"a": "c"}', '{"b": [1], "c": 2}']),
        ({"contains": NEVER, "maxContains": 1, "items": {"type": "string"}}, ['["a", "b"]', "[]"]),
        ({"patternProperties": {"(?=a)b": {"type": "string"}}, "additionalProperties": False,
          "properties": {"z": {}}}, ['{"z": 1}', '{"ab": "c"}']),
        ({"properties": {"a": {"uniqueItems": True}}, "unevaluatedProperties": {"type": "string"}},
         ['{"a": [1, 2], "b": "c"}']),
        ({"anyOf": [{"properties": {"a": {"multipleOf": 1e-12}}}, {"required": ["b"]}],
          "unevaluatedProperties": False}, ['{"a": 2}', '{"b": 1}']),
        ({"propertyNames": {"format": "idn-email"}, "minProperties": 3},
         ['{"a": 1, "b": 2, "c": 3}']),
        ({"enum": [2**60 + 1, "a"]}, [str(2**60 + 1), '"a"']),
        ({"type": "array", "uniqueItems": True, "items": {"type": "integer"}}, ["[1, 2]"]),
        ({"allOf": [{"oneOf": [{"properties": {"a": NEVER}}, {"required": ["b"]}]}]}, ['{"b": 1}']),
    ],
)  # fmt: skip
def test_what_is_dropped_widens(schema: dict[str, Any], valid: list[str]) -> None:
    assert not is_exact(schema)
    accepts = loosened(schema)
    assert [text for text in valid if not accepts(text)] == []


def test_what_can_be_enforced_is() -> None:
    accepts = loosened(
        {"type": "array", "uniqueItems": True, "items": {"type": "integer", "maximum": 3}}
    )
    assert accepts("[1, 1]") and not accepts("[4]") and not accepts("{}")
    many = {f"p{i}": {"type": "array", "uniqueItems": True} for i in range(100)}
    accepts = loosened({"type": "object", "properties": {**many, "q": {"type": "integer"}}})
    assert accepts('{"p0": [1, 1], "q": 1}') and not accepts('{"q": "a"}')
    assert not accepts('{"p9": 1}')
    both = loosened({"properties": {"a": {"type": "string", "minLength": 2, **NEVER}}})
    assert both('{"a": "xy"}') and not both('{"a": "x"}') and not both('{"c": 1}')


@pytest.mark.parametrize(
    "schema",
    [{"uniqueItem": True, "not": NEVER}, {"type": "strin"}, {"$ref": "#/nowhere", "not": NEVER},
     {"properties": [], "not": NEVER}, False, {"not": {}}],
)  # fmt: skip
def test_what_is_wrong_is_refused(schema: Any) -> None:
    with pytest.raises(RequestError, match=r"structured_outputs\.json"):
        loosened(schema)


def test_the_validator_reads_older_words_as_the_grammar_does() -> None:
    def is_valid(schema: dict[str, Any], text: str) -> bool:
        return make_validator(StructuredOutputs(json=schema, strictness="validate"))(text)

    assert is_valid({"type": "string", "nullable": True}, "null")
    assert not is_valid({"minimum": 3, "exclusiveMinimum": True}, "3")
    assert not is_valid({"items": [{"type": "integer"}], "additionalItems": False}, "[1, 2]")
    assert not is_valid({"dependencies": {"a": ["b"]}}, '{"a": 1}')
    assert not is_valid({}, '{"a": 1') and not is_valid({}, "") and not is_valid({}, "NaN")
    assert is_valid({"$schema": "http://nowhere.example/", "type": "integer"}, "1")


def test_hostile_schemas_take_little_time() -> None:
    began = time.process_time()
    many = {f"p{i}": {"uniqueItems": True, "pattern": "(?=a)b"} for i in range(900)}
    loosened({"properties": many})
    deep: dict[str, Any] = {}
    for _ in range(7):
        deep = {"oneOf": [deep, NEVER], "not": {"uniqueItems": True}, "if": deep}
    loosened(deep)
    is_valid = make_validator(StructuredOutputs(json={"pattern": "^(a+)+$"}, strictness="validate"))
    is_valid(json.dumps("a" * 5000 + "b"))
    assert time.process_time() - began < 5.0


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {"json": {}, "strictness": "loose"},
            "is out of range; allowed: 'exact' or 'validate'",
        ),
        ({"regex": "a", "strictness": "validate"}, "can be used with json, not with regex"),
    ],
)
def test_strictness_is_checked(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(RequestError, match=r"structured_outputs\.strictness") as refusal:
        StructuredOutputs(**given)
    assert problem in str(refusal.value)


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": None, "oneOf": {"x": 1}}, {"properties": 5, "unevaluatedProperties": False},
        {"if": {"required": [{}]}, "else": {"multipleOf": 2}}, {"$defs": 1.5},
        {"propertyNames": {"format": [], "pattern": "a"}}, {"if": {"$ref": "#", "items": True}},
        {"dependencies": {"a": {"$ref": "#", "unevaluatedProperties": -1}}},
    ],
)  # fmt: skip
@pytest.mark.parametrize("strictness", ["exact", "validate"])
def test_odd_schemas_are_refused_or_accepted(schema: Any, strictness: str) -> None:
    """And nothing else is raised."""
    with suppress(RequestError):
        make_acceptor(StructuredOutputs(json=schema, strictness=strictness))
    with suppress(RequestError):
        make_validator(StructuredOutputs(json=schema, strictness="validate"))
