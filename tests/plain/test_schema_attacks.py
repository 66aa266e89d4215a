"""Texts made to slip past a schema: keys and strings spelled with escapes, keys written twice,
numbers in odd spellings, patterns whose dialects differ, references of inner documents.
"""

import json
from typing import Any

import pytest

from flyweight.errors import RequestError
from flyweight.params.structured import StructuredOutputs
from flyweight.testing import make_acceptor

ELSE: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "string"}}
NAMED = {**ELSE, "properties": {"a": {"type": "integer"}, 'q"': {"type": "integer"},
                                "t\t": {"type": "integer"}, "é/": {"type": "integer"}}}  # fmt: skip
OPEN: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}},
                        "additionalProperties": True}  # fmt: skip
PATTERN = {**ELSE, "patternProperties": {"^a": {"type": "integer"}}}
BOTH = {"type": "object", "properties": {"ab": {"type": "integer"}},
        "patternProperties": {"^a": {"minimum": 5}}}  # fmt: skip
INNER = {
    "$id": "http://a/", "$ref": "#/$defs/inner",
    "$defs": {"x": {"type": "string"},
              "inner": {"$id": "http://b/", "$defs": {"x": {"type": "integer"}},
                        "type": "object", "properties": {"v": {"$ref": "#/$defs/x"}}}},
}  # fmt: skip


def pattern(source: str) -> dict[str, Any]:
    return {"type": "string", "pattern": source}


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        (NAMED, ['{"a":1}', '{"b":"x"}', '{"é/":1}', '{"t\\t":1}', '{"q\\"":1}', '{"\\n":"x"}'],
         ['{"a":"x"}', '{"\\u0061":"x"}', '{"a":1,"\\u0061":"x"}', '{"a":1,"a":"x"}',
          '{"q\\u0022":"x"}', '{"q\\"":"x"}', '{"t\\u0009":"x"}', '{"t\\t":"x"}',
          '{"\\u00e9/":"x"}', '{"\\u00E9/":"x"}', '{"é\\/":"x"}']),
        (OPEN, ['{"a":1}', '{"b":null}'], ['{"\\u0061":"x"}', '{"b":1,"\\u0061":"x"}',
                                           '{"b":1,"a":"x"}', '{"a":1,"a":"x"}']),
        (PATTERN, ['{"ab":1}', '{"b":"x"}'], ['{"\\u0061b":"x"}', '{"ab":"x"}']),
        (BOTH, ['{"ab":5}', '{"ac":9}'], ['{"ab":3}', '{"ac":3}', '{"\\u0061c":3}']),
        ({"type": "string", "minLength": 2}, ['"ab"', '"\\n\\t"', '"😀😀"'],
         ['"\\ud83d\\ude00"', '"😀"', '"\\n"', '"\\u0041"']),
        ({"type": "string", "maxLength": 1}, ['"😀"', '"\\n"', '"a"'], ['"ab"', '"\\n\\n"']),
        (pattern("^[^a]$"), ['"b"', '"\\n"'], ['"\\u0061"', '"a"']),
        (pattern("^\\d$"), ['"3"'], ['"٣"', '"3\\n"', '"x"']),
        (pattern("^\\w$"), ['"a"'], ['"é"', '"ſ"']),
        (pattern("^a|b$"), ['"ax"', '"xb"'], ['"xax"']),
        (pattern("^.$"), ['"😀"', '"a"'], ['"\\n"', '"\\u2028"', '"\u2028"']),
        ({"type": "integer", "maximum": 5}, ["5", "-10"], ["6", "1e1", "50", "5.5"]),
        ({"type": "number", "exclusiveMaximum": 5}, ["4.9"], ["5", "5.0", "5.000", "0.5e1"]),
        ({"type": "number", "minimum": -0.5, "maximum": 0.5}, ["-0.5", "0.5"],
         ["-0.51", "0.500001", "0.5e1", "1"]),
        ({"type": "integer", "multipleOf": 7, "maximum": 20}, ["14"], ["21", "13", "28"]),
        ({"const": {"a": 1}}, ['{"a":1}'], ['{"a":1,"a":2}', '{"a":2}', '{"\\u0061":1,"a":2}']),
        ({"$ref": "#/$defs/a", "maximum": 3, "$defs": {"a": {"type": "integer"}}}, ["3"], ["4"]),
        (INNER, ['{"v":1}'], ['{"v":"s"}']),
        ({"allOf": [{"type": "object", "properties": {"a": {}}, "additionalProperties": False},
                    {"properties": {"b": {}}}]}, ['{"a":1}'], ['{"b":1}']),
        ({"type": "object", "properties": {"a": False}, "additionalProperties": True},
         ["{}", '{"b":1}'],
         ['{"a":1}', '{"\\u0061":1}']),
    ],
)  # fmt: skip
def test_no_spelling_slips_through(schema: Any, valid: list[str], invalid: list[str]) -> None:
    judge = make_acceptor(StructuredOutputs(json=schema))
    assert [text for text in invalid if judge(text)] == []
    assert [text for text in valid if not judge(text)] == []


@pytest.mark.parametrize(
    "schema", [{}, {"type": "array"}, {"type": "object"}, {"items": {"type": "integer"}}]
)
def test_white_space_has_an_end(schema: Any) -> None:
    judge = make_acceptor(StructuredOutputs(json=schema))
    text = json.dumps([1, 2]) if schema.get("type") != "object" else '{"a": 1, "b": 2}'
    assert judge(text)
    for place in range(len(text) + 1):
        for blank in ("  ", "\n", "\t", " \n"):
            inside = text[:place].count('"') % 2  # of a key, which may be any
            assert inside or not judge(text[:place] + blank + text[place:])


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"const": "a\x01b"}, ['"a\\u0001b"'], ['"ab"']),
        ({"enum": ["a\x7fb", "x"]}, ['"x"', '"a\\u007fb"'], ['"ab"']),
        (pattern("^a\\u0001b$"), ['"a\\u0001b"'], ['"ab"', '"a\\u0002b"']),
        (pattern("^a\\vb$"), ['"a\\u000bb"'], ['"ab"']),
        (pattern("^a\\x01b$"), ['"a\\u0001b"'], ['"ab"']),
    ],
)
def test_characters_that_only_an_escape_can_write(
    schema: Any, valid: list[str], invalid: list[str]
) -> None:
    judge = make_acceptor(StructuredOutputs(json=schema))
    assert [text for text in invalid if judge(text)] == []
    assert [text for text in valid if not judge(text)] == []
    with pytest.raises(RequestError, match="control characters"):
        make_acceptor(StructuredOutputs(json={"properties": {"x": schema}}))
