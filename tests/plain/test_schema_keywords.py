"""Keywords that no draft of JSON Schema knows, and those of older drafts and of OpenAPI."""

from typing import Any

import pytest

from flyweight.errors import RequestError
from flyweight.sampling.schema_keywords import list_ignored_keywords
from flyweight.testing import accepts

IGNORED = ("id", "example", "readonly", "_format", "strict", "optional", "enumNames", "note", "")


@pytest.mark.parametrize("name", IGNORED)
def test_names_that_no_draft_knows_are_ignored(name: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer", name: "x"}}, name: {}}
    assert accepts(schema, '{"a": 1}') and not accepts(schema, '{"a": "x"}')
    assert list_ignored_keywords(schema) == [name]


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("requird", "required"), ("typ", "type"), ("tpye", "type"), ("types", "type"),
        ("minlength", "minLength"), ("max_items", "maxItems"), ("onOf", "oneOf"),
        ("additonalProperties", "additionalProperties"), ("ref", "$ref"), ("formats", "format"),
    ],
)  # fmt: skip
def test_misspelt_keywords_are_refused(name: str, known: str) -> None:
    with pytest.raises(
        RequestError, match=f"'{name}' is not supported .did you mean '.?{known[1:]}"
    ):
        accepts({"items": {name: {}}}, "[]")


def test_ignored_names_are_found_in_schemas_only() -> None:
    schema = {
        "x-own": 1,
        "properties": {"unknown": {"enum": [{"hint": 1}], "default": {"hint": 2}}},
        "allOf": [{"hint": 3}, {"$defs": {"a": {"hint": 4, "nullable": True}}}],
    }
    assert list_ignored_keywords(schema) == ["hint", "nullable"]
    assert (
        list_ignored_keywords(True)
        == list_ignored_keywords({"nullable": True, "type": "null"})
        == []
    )


def test_nullable_adds_null_to_a_type() -> None:
    cases: list[tuple[dict[str, Any], str, bool]] = [
        ({"type": "string", "nullable": True}, "null", True),
        ({"type": ["string", "integer"], "nullable": True}, "null", True),
        ({"type": "string", "nullable": False}, "null", False),
        ({"type": "string", "enum": ["a"], "nullable": True}, "null", False),
        ({"type": "string", "enum": ["a", None], "nullable": True}, "null", True),
    ]
    for schema, text, passes in cases:
        assert accepts(schema, text) is passes, schema
    with pytest.raises(RequestError, match="at '/nullable': 'yes'; allowed: true or false"):
        accepts({"type": "string", "nullable": "yes"}, "null")
    both = [{"type": "object", "nullable": True, "required": ["a"],
             "properties": {"a": {"const": name}}} for name in "xy"]  # fmt: skip
    assert accepts({"oneOf": both}, '{"a": "x"}') and not accepts({"oneOf": both}, "null")


def test_draft_4_opens_ends_with_true() -> None:
    schema = {"type": "integer", "minimum": 1, "exclusiveMinimum": True, "maximum": 3}
    assert [accepts(schema, text) for text in "1234"] == [False, True, True, False]
    schema |= {"exclusiveMaximum": True, "exclusiveMinimum": False}
    assert [accepts(schema, text) for text in "1234"] == [True, True, False, False]
    assert accepts({"type": "integer", "exclusiveMinimum": True}, "-5")


def test_formats_that_no_draft_defines_are_ignored() -> None:
    schema = {"type": "string", "format": "media-range", "maxLength": 2}
    assert accepts(schema, '"ab"') and not accepts(schema, '"abc"')
    both = {"items": schema, "not": {"properties": {"a": {"format": "int32"}}}}
    assert list_ignored_keywords({"anyOf": [both, schema]}) == ["format=media-range"]
    for name, known in (("datetime", "date-time"), ("uuid4", "uuid"), ("URI", "uri")):
        with pytest.raises(RequestError, match=f"format = '{name}' is not .*mean '{known}'"):
            accepts({"format": name}, '""')
    with pytest.raises(RequestError, match="format = 'iri' is not supported"):
        accepts({"format": "iri"}, '""')


def test_patterns_of_either_case() -> None:
    schema = {"type": "string", "pattern": r"(?i)^(?:Get|[a-c-]\.x)$"}
    for text in ("get", "GET", "gEt", "A.x", "b.X", "-.x"):
        assert accepts(schema, f'"{text}"'), text
    for text in ("gett", "d.x", "Axx", "ge"):
        assert not accepts(schema, f'"{text}"'), text
    for pattern in ("(?i)[^a]", r"(?i)\x41", "(?i)é", "(?i)[A-z]"):
        with pytest.raises(RequestError, match="not supported"):
            accepts({"pattern": pattern}, '""')


def test_dynamic_references_lead_to_the_only_anchor() -> None:
    schema = {
        "type": "array", "items": {"$dynamicRef": "#node"},
        "$defs": {"a": {"$dynamicAnchor": "node", "type": "integer"}},
    }  # fmt: skip
    assert accepts(schema, "[1]") and not accepts(schema, '["x"]')
    schema["$defs"] = {"a": {"$dynamicAnchor": "node"}, "b": {"$dynamicAnchor": "node"}}
    with pytest.raises(RequestError, match="dynamicRef' is not supported"):
        accepts(schema, "[1]")


def test_a_pattern_of_one_name_is_that_property() -> None:
    name = {
        "type": "object",
        "required": ["$ref"],
        "patternProperties": {r"^\$ref$": {"maxLength": 1}},
    }
    assert accepts(name, '{"$ref": "a"}') and not accepts(name, '{"$ref": "ab"}')
    assert not accepts(name, '{"$ref": "a", "b": 1}')
