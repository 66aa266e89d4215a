"""Grammars of calls that are not JSON: what they take is read as calls that keep to schemas."""

import json
from random import Random
from typing import Any

import jsonschema
import pytest

from flyweight.errors import RequestError
from flyweight.sampling.fields import fields
from flyweight.text.tools.deltas import ParsedAnswer
from flyweight.text.tools.formats import PYTHONIC, TAGGED, THINK, CallFormat
from flyweight.text.tools.grammar import CallGrammar, OfferedTools
from flyweight.text.tools.parser import AnswerFormat, AnswerParser
from flyweight.text.tools.xmlcall import read_types

llguidance = pytest.importorskip("llguidance")

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "São Paulo/1"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 99},
        "sure": {"type": "boolean"},
        "note": {"type": "string", "maxLength": 12},
        "code": {"type": "string", "pattern": "^[A-Z]{2}/[0-9]$"},
        "when": {"type": "string", "format": "date"},
        "place": {"$ref": "#/$defs/place"},
        "maybe": {"type": ["string", "null"], "maxLength": 3},
        "either": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
    },
    "required": ["days", "code"],
    "additionalProperties": False,
    "$defs": {"place": {"type": "object", "properties": {"x": {"type": "number", "maximum": 9}},
                        "required": ["x"], "additionalProperties": False}},
}  # fmt: skip
OPTIONAL = {**SCHEMA, "required": []}
NONE = {"type": "object", "properties": {}}
SCHEMAS = {"look": SCHEMA, "any": OPTIONAL, "now": NONE}
FORMS = {"tagged": TAGGED, "pythonic": PYTHONIC}


def grammar(form: CallFormat, **more: Any) -> CallGrammar:
    return CallGrammar(form, {}, **more)


def offers(form: CallFormat, keeps: bool = True) -> list[OfferedTools]:
    plain = form.tagged
    return [OfferedTools(n, fields=fields(s, plain=plain, keeps=keeps)) for n, s in SCHEMAS.items()]


def begun(made: str) -> Any:
    lark = llguidance.LLMatcher.grammar_from_lark(made)
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), lark, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def accepts(made: str, text: str) -> bool:
    matcher, raw = begun(made), list(text.encode())
    return matcher.try_consume_tokens(raw) == len(raw) and matcher.is_accepting()


def read(form: CallFormat, text: str, **more: Any) -> ParsedAnswer:
    typed = {name: read_types(schema) for name, schema in SCHEMAS.items()}
    parser = AnswerParser(AnswerFormat(form, frozenset(SCHEMAS), typed=typed, **more))
    return ParsedAnswer.of(parser.push(text) + parser.finish())


def tags(name: str, **given: str) -> str:
    parts = [f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in given.items()]
    return f"<tool_call>\n<function={name}>\n{''.join(parts)}</function>\n</tool_call>"


GOOD = {
    "tagged": [
        tags("look", days="3", code="AB/1"),
        tags("look", city="São Paulo/1", days="3", sure="true", note="a\n\nb </p", code="AB/1",
             when="2024-02-29", place='{"x": 1.5}'),
        tags("any"), tags("any", note=""), tags("now") + "\n" + tags("now"),
    ],
    "pythonic": [
        '[look(days=3, code="AB/1")]', '[look(days=3, code="AB/1", sure=True, place={"x": 1})]',
        '[any(), any(city="Paris"), any(sure=False, maybe=null), now()]',
    ],
}  # fmt: skip
BAD = {
    "tagged": [
        tags("look", days="3"), tags("look", days="100", code="AB/1"), tags("nothing"),
        tags("look", days="3", code="ab/1"), tags("any", when="2023-02-29"),
        tags("any", city="Rome"), tags("any", note="x" * 13), tags("any", sure="True"),
        tags("any", x="1"), tags("any", note="a</parameter>b"), tags("now") + "x", "Hello", "",
    ],
    "pythonic": [
        "[]", "[look(days=3)]", '[look(days=100, code="AB/1")]', "[any(sure=true)]", "now()",
        '[any(city="Rome")]', "[any(x=1)]", "[any(, sure=True)]", "[now()] x", "Hello", "",
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_demanded_calls_keep_to_their_schemas(name: str) -> None:
    form = FORMS[name]
    made = grammar(form).require_calls(offers(form))
    for text in GOOD[name]:
        assert accepts(made, text), text
        found = read(form, text)
        assert found.calls and not found.content
        for call in found.calls:
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
    for text in BAD[name]:
        assert not accepts(made, text), text


@pytest.mark.parametrize("name", FORMS)
def test_a_call_that_is_begun_keeps_to_its_schema(name: str) -> None:
    form = FORMS[name]
    for marks in (None, THINK):
        made = grammar(form, marks=marks).allow_calls(offers(form))
        for text in [*GOOD[name], "Hello <there>", ""]:
            assert accepts(made, text), text
        for text in BAD[name]:
            if text.startswith(("<tool", "[")) and not text.endswith("x"):
                assert not accepts(made, text), text


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_drawn_is_a_call(name: str, seed: int) -> None:
    """Letters at random, among those that may come, until the grammar is done."""
    form, random = FORMS[name], Random(seed)
    matcher = begun(grammar(form, most=2).require_calls(offers(form)))
    text = bytearray()
    while not matcher.is_stopped() and len(text) < 3000:
        mask = matcher.compute_bitmask()
        may = [i for i in range(256) if mask[i // 8] >> i % 8 & 1]
        liked = [i for i in may if chr(i) in '<>/"\n,)]}']
        if matcher.is_accepting() and not may:
            break
        assert may, bytes(text)
        drawn = random.choice(liked if liked and random.random() < 0.5 else may)
        text.append(drawn)
        matcher.consume_token(drawn)
    if not matcher.is_accepting():
        return  # a text without end
    found = read(form, text.decode("utf-8", "replace"))
    assert found.calls and not found.content, bytes(text)
    for call in found.calls:
        if "\ufffd" not in call.arguments:
            arguments = json.loads(call.arguments)
            jsonschema.validate(arguments, SCHEMAS[call.name])


@pytest.mark.parametrize(
    ("schema", "plain", "words"),
    [
        ({"properties": {}, "minProperties": 1}, True, "'minProperties'"),
        ({"properties": {"s": {"type": "string", "format": "email"}}}, True, "'format'"),
        ({"properties": {"s": {"type": "string", "pattern": "^a|b$"}}}, True, "anchored"),
        ({"properties": {"a<b": {"type": "string"}}}, True, "'a<b'"),
        ({"properties": {"a-b": {"type": "string"}}}, False, "'a-b'"),
        ({"properties": {"s": {"not": {"pattern": "a"}}}}, False, "'not'"),
        ({"required": [1]}, True, "'/required'"),
        ({"required": "ab"}, False, "'/required'"),
        ({"required": 5}, False, "'/required'"),
        ({"properties": {"s": {"type": "string", "enum": 5}}}, True, "'/properties/s/enum'"),
        ({"properties": {"s": {"type": "string", "enum": []}}}, True, "no value is left"),
        ({"properties": {"s": {"const": "a", "enum": ["b"]}}}, True, "no value is left"),
    ],
)
def test_what_cannot_be_kept_to_is_refused(schema: Any, plain: bool, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        fields(schema, plain=plain, keeps=True)


@pytest.mark.parametrize("name", FORMS)
def test_tools_that_are_not_strict_take_any_values(name: str) -> None:
    form = FORMS[name]
    made = grammar(form).allow_calls(offers(form, keeps=False))
    free = {
        "tagged": tags("look", note="x" * 99),
        "pythonic": "[look(days=100, sure=[1], note=None)]",
    }[name]
    assert accepts(made, free) and read(form, free).calls


def test_values_keep_to_enum_and_const_alike() -> None:
    both = {"properties": {"s": {"enum": ["a", "b"], "const": "b"}}, "required": ["s"]}
    made = grammar(TAGGED).require_calls(
        [OfferedTools("f", fields=fields(both, plain=True, keeps=True))]
    )
    assert accepts(made, tags("f", s="b")) and not accepts(made, tags("f", s="a"))


@pytest.mark.parametrize("given", [5, [1], None, "ab"])
def test_parameters_of_tools_that_are_not_strict_may_be_anything(given: Any) -> None:
    for plain in (True, False):
        assert fields({"properties": given, "required": given}, plain=plain, keeps=False) == ()
