"""Keywords that no draft of JSON Schema knows, and those of older drafts and of OpenAPI."""

from typing import Any

import pytest

from flyweight.errors import RequestError
from flyweight.sampling.schema_keywords import ignored_keywords
from flyweight.testing import accepts

IGNORED = ("id", "example", "readonly", "_format", "strict", "optional", "enumNames", "note", "")


@pytest.mark.parametrize("name", IGNORED)
def test_names_that_no_draft_knows_are_ignored(name: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer", name: "x"}}, name: {}}
    assert accepts(schema, '{"a": 1}') and not accepts(schema, '{"a": "x"}')
    assert ignored_keywords(schema) == [name]


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
    assert ignored_keywords(schema) == ["hint", "nullable"]
    assert ignored_keywords(True) == ignored_keywords({"nullable": True, "type": "null"}) == []


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
