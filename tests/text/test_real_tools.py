"""Tools as people write them: BFCL's functions and calls, and every schema of the test suite.  What
is demanded over the grammar takes the calls that are right, and the parser reads them back.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flyweight.errors import RequestError
from flyweight.params.structured import StructuredOutputs
from flyweight.sampling.grammar import Compiler, GrammarVocabulary
from flyweight.sampling.sources import embed_schema
from flyweight.server.apis.tools import Tool, Tools
from flyweight.server.chat_format import ChatFormat
from flyweight.server.settings import ServerSettings
from flyweight.text.tokenizer import load_tokenizer
from flyweight.text.tools.deltas import ParsedAnswer, ParsedCall
from flyweight.text.tools.formats import HERMES, LLAMA, MISTRAL_HEADED, CallFormat
from flyweight.text.tools.grammar import OfferedTools
from flyweight.text.tools.parser import AnswerParser

llguidance = pytest.importorskip("llguidance")

PARTS = ["simple_python", "live_simple", "multiple", "parallel", "parallel_multiple"]
KEYWORDS = (
    "properties", "type", "required", "enum", "allOf", "$ref", "additionalProperties", "pattern",
    "minProperties",
)  # fmt: skip
TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}


def data(name: str) -> Path:
    folder = os.environ.get("FLYWEIGHT_DATA")
    if not folder:
        pytest.skip("needs FLYWEIGHT_DATA")
    return Path(folder) / name


def as_json_schema(given: Any) -> Any:
    """BFCL's types are Python's; `optional` is its own word."""
    if isinstance(given, list):
        return [as_json_schema(one) for one in given]
    if not isinstance(given, dict):
        return given
    found = {name: as_json_schema(one) for name, one in given.items() if name != "optional"}
    if isinstance(found.get("type"), str):
        found["type"] = TYPES.get(found["type"], found["type"])
        if found["type"] is None:
            del found["type"]
    return found


def cases(part: str) -> Iterator[tuple[list[Tool], list[ParsedCall]]]:
    """Tools and the calls that are right."""
    room = data("prompts-bfcl")
    answers = {}
    for line in (room / "possible_answer" / f"BFCL_v4_{part}.json").read_text().splitlines():
        one = json.loads(line)
        answers[one["id"]] = one["ground_truth"]
    for line in (room / f"BFCL_v4_{part}.json").read_text().splitlines():
        one = json.loads(line)
        functions = {}
        for function in one["function"]:
            shown = {"name": function["name"], "parameters": as_json_schema(function["parameters"])}
            functions[function["name"]] = shown
        tools = [
            Tool.model_validate({"type": "function", "function": f}) for f in functions.values()
        ]
        calls = [
            ParsedCall(name, dumped(ordered(given, functions[name]["parameters"])))
            for call in answers[one["id"]]
            for name, given in call.items()
        ]
        yield tools, calls


def ordered(given: dict[str, list[Any]], schema: dict[str, Any]) -> dict[str, Any]:
    """The first accepted value of each argument, in the schema's order."""
    return {name: given[name][0] for name in schema["properties"] if given.get(name)}


def dumped(value: Any) -> str:
    """As the grammar writes JSON: no escapes where none are needed."""
    return json.dumps(value, ensure_ascii=False)


def constraint(tools: list[Tool], form: CallFormat) -> str:
    """The grammar of an answer that has to call."""
    settings = ServerSettings()
    requested = Tools(tools, "required", None, settings)
    speech = ChatFormat(form, None, {})
    made = requested.make_constraint(
        speech, speech.make_answer_format(None, None, requested.all, requested.most)
    )
    assert made is not None and made.grammar is not None
    return made.grammar


def accepts(grammar: str, text: str) -> bool:
    lark = llguidance.LLMatcher.grammar_from_lark(grammar)
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), lark, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    raw = text.encode()
    return matcher.try_consume_tokens(list(raw)) == len(raw) and matcher.is_accepting()


def written(form: CallFormat, calls: list[ParsedCall]) -> str:
    if form.heads:
        return "".join(f"[TOOL_CALLS]{c.name}[ARGS]{c.arguments}" for c in calls)
    made = [f'{{"name": "{c.name}", "{form.arguments}": {c.arguments}}}' for c in calls]
    if form.closer:
        return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in made)
    return "; ".join(made)


def valid(call: ParsedCall, tools: list[Tool]) -> bool:
    """Whether a call that counts as right keeps to the schema, which BFCL's own do not always."""
    import jsonschema_rs

    schema = next(t.function.parameters for t in tools if t.function.name == call.name)
    return bool(jsonschema_rs.is_valid(schema, json.loads(call.arguments)))


@pytest.mark.parametrize(("form", "every"), [(HERMES, 6), (LLAMA, 40), (MISTRAL_HEADED, 40)])
@pytest.mark.parametrize("part", PARTS)
def test_right_calls_of_bfcl_are_taken(part: str, form: CallFormat, every: int) -> None:
    """No real schema is refused; what is passed over are answers that break their own schema."""
    taken = wrong = 0
    for tools, calls in list(cases(part))[::every]:
        grammar = constraint(tools, form)
        if not all(valid(call, tools) for call in calls):
            wrong += 1
            continue
        text = written(form, calls)
        assert accepts(grammar, text), text
        names = frozenset(tool.function.name for tool in tools)
        parser = AnswerParser(
            ChatFormat(form, None, {}).make_answer_format(None, None, names, None)
        )
        assert ParsedAnswer.of(parser.push(text) + parser.finish()).calls == calls
        taken += 1
    assert taken > wrong / 2


def test_any_schema_is_kept_or_refused_by_name() -> None:
    """The test suite's schemas as a tool's parameters, and what is none at all."""
    room = data("schemas-json-schema-test-suite") / "draft2020-12"
    given = [c["schema"] for p in sorted(room.glob("*.json")) for c in json.loads(p.read_text())]
    schemas = [one for one in given if isinstance(one, dict)]
    schemas += [{"properties": {"x": one}} for one in given[::4]]
    schemas += [{name: value} for name in KEYWORDS for value in (5, None, [5], "x", {})]
    kept = 0
    for schema in schemas:
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        try:
            kept += bool(constraint([Tool.model_validate(tool)], HERMES))
        except RequestError as error:
            assert error.path.startswith("tools.0.function.parameters"), error
    assert 0 < kept < len(schemas)


def test_a_mark_that_is_a_special_token_is_drawn_and_shown_as_one() -> None:
    """Mistral's own vocabulary: its ids of a call pass the grammar, and their text is read."""
    tokenizer = load_tokenizer(
        data("tokenizers-mistral") / "mistral_instruct_tokenizer_240323.model.v3"
    )
    speech = ChatFormat.of(ServerSettings(tool_call_parser="mistral"), tokenizer)
    reading = speech.make_answer_format(None, None, ["get"], None)
    assert speech.special == {"[TOOL_CALLS]": 5} and speech.needs_special_tokens(reading)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    grammar = speech.make_grammar(
        reading, [OfferedTools("get", embed_schema(schema))], demanded=True
    )
    size = tokenizer.vocab_size
    spelled = [tokenizer.token_bytes(i, special=True) for i in range(size)]
    ends = frozenset(tokenizer.eos_ids)
    matcher = Compiler(GrammarVocabulary(spelled, tokenizer.special_ids, ends, size)).compile(
        StructuredOutputs(grammar=grammar)
    )
    text = '[TOOL_CALLS][{"name": "get", "arguments": {"a": 5}}]'
    ids = tokenizer.encode(text, add_special=False)
    assert ids[0] == 5 and matcher.take(ids) == len(ids) and matcher.complete
    parser = AnswerParser(reading)
    shown = tokenizer.decode(ids, skip_special=False)
    assert ParsedAnswer.of(parser.push(shown) + parser.finish()).calls == [
        ParsedCall("get", '{"a": 5}')
    ]
