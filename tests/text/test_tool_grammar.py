"""Grammars of calls: what they take the parser reads as calls that keep to their schemas, and what
calls nothing else is refused.
"""

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from flyweight.sampling.sources import embed_schema
from flyweight.text.tools.deltas import ParsedAnswer, ParsedCall
from flyweight.text.tools.formats import (
    HERMES,
    JSON,
    LLAMA,
    MISTRAL,
    MISTRAL_HEADED,
    THINK,
    CallFormat,
)
from flyweight.text.tools.grammar import MOST_CALLS, PIECE, CallGrammar, OfferedTools
from flyweight.text.tools.parser import AnswerFormat, AnswerParser

llguidance = pytest.importorskip("llguidance")

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
NONE = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS = {"get": CITY, "get_all": NONE, "a.b:c/d-e": NONE}
OFFERS = [OfferedTools(name, embed_schema(schema)) for name, schema in SCHEMAS.items()]
NAMES = frozenset(offer.name for offer in OFFERS)
FORMS = {
    "hermes": HERMES,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "headed": MISTRAL_HEADED,
    "json": JSON,
}
GET = ParsedCall("get", '{"city": "Rome", "days": 3}')
ALL = ParsedCall("get_all", "{}")


def written(form: CallFormat, calls: list[ParsedCall]) -> str:
    """As the grammar has it."""
    if form.heads:
        return "".join(f"[TOOL_CALLS]{c.name}[ARGS]{c.arguments}" for c in calls)
    made = [f'{{"name": "{c.name}", "{form.arguments}": {c.arguments}}}' for c in calls]
    if form.closer:
        return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in made)
    if form.listed:
        return f"{form.trigger}[{', '.join(made)}]"
    return "; ".join(made)


def taken(grammar: str, text: str) -> tuple[int, bool]:
    """How many bytes of a text are taken, and whether it may end there."""
    lark = llguidance.LLMatcher.grammar_from_lark(grammar)
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), lark, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    found = matcher.try_consume_tokens(list(text.encode()))
    return found, matcher.is_accepting()


def accepts(grammar: str, text: str) -> bool:
    return taken(grammar, text) == (len(text.encode()), True)


def read(form: CallFormat, text: str, **more: Any) -> ParsedAnswer:
    parser = AnswerParser(AnswerFormat(form, NAMES, **more))
    return ParsedAnswer.of(parser.push(text) + parser.finish())


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_demanded_calls_are_read_as_calls(form: CallFormat) -> None:
    grammar = CallGrammar(form, {}).require_calls(OFFERS)
    for calls in ([GET], [ALL, GET], [GET, ParsedCall("a.b:c/d-e", "{}"), GET]):
        text = written(form, calls)
        assert accepts(grammar, text) and read(form, text) == ParsedAnswer("", "", calls), text
    for bad in (
        "",
        "Hello",
        written(form, [ParsedCall("got", "{}")]),
        written(form, [GET]) + " Done.",
    ):
        assert not accepts(grammar, bad), bad
    for bad in (
        '{"city": "Lima"}',
        '{"days": 3}',
        '{"city": "Rome", "x": 1}',
        '{"city": "Rome",  ',
    ):
        assert not accepts(grammar, written(form, [ParsedCall("get", bad)])), bad


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_calls_are_counted(form: CallFormat) -> None:
    one = replace(CallGrammar(form, {}), most=1)
    single = (
        written(form, [GET])
        if form is not JSON
        else written(LLAMA, [GET]).replace("parameters", "arguments")
    )
    assert accepts(one.require_calls(OFFERS), single) and read(form, single).calls == [GET]
    assert not accepts(one.require_calls(OFFERS), written(form, [GET, GET]))
    many = CallGrammar(form, {}).require_calls(OFFERS)
    assert accepts(many, written(form, [GET] * MOST_CALLS))
    assert not accepts(many, written(form, [GET] * (MOST_CALLS + 1)))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("marks", [None, THINK])
def test_allowed_calls_keep_to_their_schemas(form: CallFormat, marks: Any) -> None:
    grammar = CallGrammar(form, {}, marks).allow_calls(OFFERS)
    calls = written(form, [GET, ALL])
    for text in ("", "Hello <there> {}", calls, "x <tool_cal [TOOL_CAL"):
        assert accepts(grammar, text), text
        assert read(form, text).content == ("" if text == calls else text)
    assert not accepts(grammar, written(form, [ParsedCall("get", '{"city": "Lima"}')]))
    if form.trigger and not form.bare:
        text = f"I look.\n{calls}"
        assert accepts(grammar, text) and read(form, text) == ParsedAnswer(
            "I look.", "", [GET, ALL]
        )
        assert not accepts(grammar, f"I look.\n{form.trigger} at it")


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_reasoning_comes_first(form: CallFormat) -> None:
    calls = written(form, [GET])
    grammar = CallGrammar(form, {}, THINK)
    opened = replace(grammar, opened=True)
    thought = f"\nhm {form.trigger} <think </thin {{\n</think>\n\n"
    for made in (grammar.require_calls(OFFERS), grammar.allow_calls(OFFERS)):
        assert accepts(made, calls)
        assert accepts(made, f"<think>{thought}{calls}")
        assert not accepts(made, f"<think>{thought}{calls.replace('Rome', 'Lima')}")
    for made in (opened.require_calls(OFFERS), opened.allow_calls(OFFERS)):
        assert accepts(made, f"{thought}{calls}")
        found = read(form, f"{thought}{calls}", reasoning=THINK, opened=True)
        assert found.calls == [GET] and found.reasoning.startswith("hm")


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_calls_or_another_form(form: CallFormat) -> None:
    """Each to the letter, and no text behind or before either; the form may have marks in it."""
    keys = {"kind": {"type": "string"}, "name": {"type": "string"}}
    schema = {"type": "object", "properties": keys, "required": ["kind"]}
    schema["additionalProperties"] = True
    grammar = CallGrammar(form, {}).allow_either(OFFERS, embed_schema(schema))
    for calls in ([GET], [ALL, GET]):
        text = written(form, calls)
        assert accepts(grammar, text) and read(form, text, either=True) == ParsedAnswer(
            "", "", calls
        )
        assert not accepts(grammar, text + " Done.") and not accepts(grammar, f"So: {text}")
    inside = written(form, [ALL]).replace('"', "'").replace("\n", " ")
    for text in (
        '{"kind": "cat"}',
        f'{{"kind": "{inside}", "name": "get"}}',
        f'{{"kind": "{form.trigger}", "name": "got", "more": [{{}}]}}',
    ):
        assert accepts(grammar, text), text
        assert read(form, text, either=True) == ParsedAnswer(text), text
    for text in (
        "",
        "Hello",
        '{"name": "get"}',
        written(form, [ParsedCall("get", '{"city": "x"}')]),
    ):
        assert not accepts(grammar, text), text
    once = replace(CallGrammar(form, {}), most=1).allow_either(OFFERS, embed_schema(schema))
    assert not accepts(once, written(form, [GET, GET]))


@pytest.mark.parametrize("special", [{}, {"</think>": 257}])
def test_reasoning_before_a_demanded_call_has_an_end(special: dict[str, int]) -> None:
    grammar = CallGrammar(HERMES, special, THINK, opened=True, thought=4 * PIECE)
    made, calls = grammar.require_calls(OFFERS), written(HERMES, [GET])
    if special:
        assert f"piece{{0,4}} {THINK.closing}" in made
        return
    most = "x" * PIECE * 4
    for thought in ("", "hm", most, "a < b </thi", "</think/>", "\n" * PIECE * 4):
        text = f"{thought}</think>\n{calls}"
        assert accepts(made, text), thought
        assert read(HERMES, text, reasoning=THINK, opened=True).calls == [GET]
    for thought in (most + "x", most + "<", "y" * PIECE * 5):
        assert taken(made, f"{thought}</think>\n{calls}")[0] <= len(most) + 1, thought
        assert not accepts(made, f"{thought}</think>\n{calls}"), thought
    without = replace(grammar, thought=None).require_calls(OFFERS)
    assert accepts(without, f"{most * 9}</think>\n{calls}")


def test_mistral_may_put_a_space_before_its_list() -> None:
    text = written(MISTRAL, [GET, ALL]).replace("][", "] [")
    assert text.startswith("[TOOL_CALLS] [") and read(MISTRAL, text).calls == [GET, ALL]
    made = CallGrammar(MISTRAL, {})
    for grammar in (made.require_calls(OFFERS), made.allow_calls(OFFERS)):
        assert accepts(grammar, text)


def test_special_tokens_are_named() -> None:
    grammar = CallGrammar(MISTRAL_HEADED, {"[TOOL_CALLS]": 9, "[ARGS]": 32}).allow_calls(OFFERS)
    assert "trigger: <[9]>" in grammar and "lead: TEXT <[9]>" in grammar
    assert 'one_0: "get" <[32]> arguments_0' in grammar
    assert "trigger: <tool_call>" in CallGrammar(HERMES, {"<tool_call>": 7}).require_calls(OFFERS)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_drawn_is_a_call(form: CallFormat, seed: int) -> None:
    """Bytes by chance within the grammar: the parser reads calls, the schemas hold, and it ends."""
    grammar = CallGrammar(form, {}).require_calls(OFFERS)
    lark = llguidance.LLMatcher.grammar_from_lark(grammar)
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), lark, log_level=0)
    rng, made = Random(seed), bytearray()
    while not matcher.is_stopped() and len(made) < 20_000:
        bits = matcher.compute_bitmask()
        allowed = [i for i in range(256) if bits[i // 8] >> (i % 8) & 1]
        if not allowed or (matcher.is_accepting() and rng.random() < 0.5):
            break
        made.append(rng.choice(allowed))
        assert matcher.consume_token(made[-1])
    assert matcher.is_accepting(), made[-200:]
    found = read(form, made.decode())
    assert found.calls and not found.content
    for call in found.calls:
        arguments = json.loads(call.arguments)
        assert set(arguments) <= ({"city", "days"} if call.name == "get" else set())
        assert call.name != "get" or arguments["city"] in ("Paris", "Rome")
