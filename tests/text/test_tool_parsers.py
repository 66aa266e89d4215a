"""Calls, content and reasoning distinguished: every format, cut anywhere, near-misses."""

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyweight.errors import ConfigError
from flyweight.text.tools.deltas import Delta, DeltaKind, ParsedAnswer, ParsedCall
from flyweight.text.tools.formats import (
    FORMATS,
    HERMES,
    JSON,
    LLAMA,
    MISTRAL,
    REASONING,
    THINK,
    find_format,
    find_marks,
)
from flyweight.text.tools.parser import AnswerFormat, AnswerParser

NAMES = frozenset({"get_weather", "math.add", "now"})
WEATHER = '{"name": "get_weather", "arguments": {"city": "Zürich", "days": [1, 2.5e3]}}'
ARGUMENTS = '{"city": "Zürich", "days": [1, 2.5e3]}'
ADD = '{"arguments": {"a": -1, "b": "}]\\"<"}, "name": "math.add"}'
ADDED = '{"a": -1, "b": "}]\\"<"}'
CALLS = [ParsedCall("get_weather", ARGUMENTS), ParsedCall("math.add", ADDED)]


def reading(form: str, **more: Any) -> AnswerFormat:
    return AnswerFormat(FORMATS[form], NAMES, **more)


def deltas(how: AnswerFormat, pieces: Iterable[str], cut: bool = False) -> list[Delta]:
    parser = AnswerParser(how)
    found = [delta for piece in pieces for delta in parser.push(piece)]
    return found + parser.finish(cut)


def read(how: AnswerFormat, text: str, cut: bool = False) -> ParsedAnswer:
    """Read at once, and letter by letter."""
    found = ParsedAnswer.of(deltas(how, [text], cut))
    assert ParsedAnswer.of(deltas(how, text, cut)) == found
    return found


BOTH = {
    "hermes": [
        f"<tool_call>\n{WEATHER}\n</tool_call>\n<tool_call>\n{ADD}\n</tool_call>",
        f"<tool_call>{WEATHER}</tool_call><tool_call>{ADD}</tool_call>\n\n",
        f"<tool_call>\n{WEATHER}\n{ADD}\n</tool_call>",
        f"\n<tool_call>{WEATHER}\n<tool_call>{ADD}",
    ],
    "llama3_json": [
        f"{WEATHER}; {ADD}",
        f"<|python_tag|>{WEATHER};{ADD}",
        f"<|python_tag|>{WEATHER}<|python_tag|>{ADD}".replace("arguments", "parameters"),
    ],
    "mistral": [
        f"[TOOL_CALLS][{WEATHER}, {ADD}]",
        f"[TOOL_CALLS] [ {WEATHER} ,\n{ADD} ]\n",
        f"[TOOL_CALLS]get_weather[ARGS]{ARGUMENTS}[TOOL_CALLS]math.add[ARGS]{ADDED}",
        f"[TOOL_CALLS]get_weather{ARGUMENTS}[TOOL_CALLS]math.add[CALL_ID]aB3[ARGS]{ADDED}",
    ],
    "json": [f"[{WEATHER}, {ADD}]", f"\n[\n{WEATHER},{ADD}\n]\n"],
}


@pytest.mark.parametrize(("form", "text"), [(f, t) for f, all in BOTH.items() for t in all])
def test_two_calls_of_each_format(form: str, text: str) -> None:
    assert read(reading(form), text) == ParsedAnswer("", "", CALLS)


def test_text_around_calls_is_content() -> None:
    text = f"I will look.\n\n<tool_call>{WEATHER}</tool_call> And then?\n"
    found = read(reading("hermes"), text)
    assert found.content == "I will look. And then?" and found.calls == CALLS[:1]


def test_a_call_without_arguments() -> None:
    for more in ("", ', "arguments": null', ', "parameters": {}', ', "arguments": "{}"'):
        text = f'{{"name": "now"{more}}}'
        assert read(reading("json"), text).calls == [ParsedCall("now", "{}")]


def test_arguments_written_as_text_are_read() -> None:
    text = json.dumps({"name": "now", "arguments": json.dumps({"zone": 'a"b'})})
    assert read(reading("json"), text).calls == [ParsedCall("now", '{"zone": "a\\"b"}')]


def test_half_a_character_stays_an_escape() -> None:
    """Text holds none, so what was made of one could not be sent."""
    text = '{"name": "now", "arguments": "{\\"zone\\": \\"\\ud83d\\"}"}'
    (call,) = read(reading("json"), text).calls
    assert call.arguments == '{"zone": "\\ud83d"}'


NEAR = [
    ("hermes", "<tool_call>"),
    ("hermes", "<tool_call"),
    ("hermes", "<tool_call>\n</tool_call>"),
    ("hermes", '<tool_call>{"name": "other", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": {oops}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": {"a": 1,}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": {"a": 01}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": {"a": "\n"}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": "[1]"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "name": "now"}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {"a": 1}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": {"a": {"b": [1, 2'),
    ("hermes", "a < b and <tool> <tool_cal <<tool_cull>"),
    ("hermes", WEATHER),
    ("llama3_json", '{"name": "Bob", "parameters": {}}'),
    ("llama3_json", '{"answer": {"name": "now"}}'),
    ("llama3_json", f"Say {WEATHER}"),
    ("llama3_json", '<|python_tag|>brave_search.call(query="x")'),
    ("mistral", "[TOOL_CALLS][]"),
    ("mistral", "[TOOL_CALLS]now"),
    ("mistral", "[TOOL_CALLS]now[ARGS]"),
    ("mistral", "[TOOL_CALLS]other[ARGS]{}"),
    ("mistral", "[TOOL_CALLS] I am [TOOL_"),
    ("mistral", WEATHER),
    ("json", "[1, 2]"),
    ("json", "[]  "),
    ("json", '"now"'),
    ("json", " \n "),
]  # fmt: skip


@pytest.mark.parametrize(("form", "text"), NEAR)
def test_what_is_no_call_is_content_to_the_letter(form: str, text: str) -> None:
    assert read(reading(form), text) == ParsedAnswer(text)


def test_a_call_that_goes_wrong_costs_no_other() -> None:
    bad = '<tool_call>{"name": "now", "arguments": {"a": tru}}</tool_call>'
    found = read(reading("hermes"), f"<tool_call>{WEATHER}</tool_call>{bad}<tool_call>{ADD}")
    assert found.calls == CALLS and found.content == bad


def test_what_is_cut_off_after_calls_is_no_content() -> None:
    one = '{"name": "now", "arguments": {}}'
    for text in (f"[{one}", f"[{one},", f"[{one}, {{", f'[{one}, {{"name": "no', f"[{one}]"):
        assert read(reading("json"), text, cut=True) == ParsedAnswer(
            "", "", [ParsedCall("now", "{}")]
        )
    assert read(reading("json"), f"[{one}, {{").content == ", {", "the model ended it there"
    assert read(reading("json"), '[{"na', cut=True) == ParsedAnswer('[{"na')


@pytest.mark.parametrize("form", ["json", "hermes", "llama3_json", "mistral"])
def test_a_required_call_that_is_cut_off_is_no_content(form: str) -> None:
    text = f"{FORMATS[form].trigger}{WEATHER}"
    named = text.index(': {"city"')  # before the first character of the arguments
    for length in range(named):
        assert read(reading(form, required=True), text[:length], cut=True) == ParsedAnswer()
    assert read(reading(form, required=True), text[: named + 7], cut=True).calls == [
        ParsedCall("get_weather", '{"cit')
    ]


def test_a_call_that_is_cut_off_stays_one() -> None:
    text = '<tool_call>{"name": "now", "arguments": {"zone": "Eu'
    assert read(reading("hermes"), text, cut=True).calls == [ParsedCall("now", '{"zone": "Eu')]
    for length in range(2, 21):  # before its name there is no call, and no markup either
        assert read(reading("hermes"), "So " + text[:length], cut=True) == ParsedAnswer("So ")
    text = f"<tool_call>{WEATHER}\n</tool_c"
    assert read(reading("hermes"), text, cut=True) == ParsedAnswer("", "", CALLS[:1])
    assert read(reading("hermes"), text).content == "\n</tool_c"


def test_calls_beyond_the_most_are_left_out() -> None:
    text = f"<tool_call>{WEATHER}</tool_call>\n<tool_call>{ADD}</tool_call>"
    assert read(reading("hermes", most=1), text) == ParsedAnswer("", "", CALLS[:1])


def test_names_come_first_and_arguments_in_pieces() -> None:
    text = f"<tool_call>{WEATHER}</tool_call><tool_call>{ADD}</tool_call>"
    found = deltas(reading("hermes"), text)
    assert [d.text for d in found if d.kind is DeltaKind.NAME] == ["get_weather", "math.add"]
    kinds = [(d.kind, d.call) for d in found]
    assert kinds[0] == (DeltaKind.NAME, 0) and kinds.count((DeltaKind.ARGUMENTS, 0)) == len(
        ARGUMENTS
    )
    assert kinds.index((DeltaKind.NAME, 1)) > max(i for i, k in enumerate(kinds) if k[1] == 0)


# --- reasoning ---


@pytest.mark.parametrize(
    ("text", "opened", "expected"),
    [
        ("<think>\nhm\n</think>\n\nFour", False, ParsedAnswer("Four", "hm")),
        ("\n <think>a < b\n\n</thin </think>x ", False, ParsedAnswer("x ", "a < b\n\n</thin")),
        ("hm\n</think>Four", True, ParsedAnswer("Four", "hm")),
        ("\n\nhm </thi", True, ParsedAnswer("", "hm </thi")),
        ("<think></think>Four", False, ParsedAnswer("Four")),
        (" Four <think>hm</think>", False, ParsedAnswer(" Four <think>hm</think>")),
        (" <thi", False, ParsedAnswer(" <thi")),
        (" <this>", False, ParsedAnswer(" <this>")),
        ("  ", False, ParsedAnswer("  ")),
    ],
)
def test_reasoning_is_split_off(text: str, opened: bool, expected: ParsedAnswer) -> None:
    assert read(AnswerFormat(reasoning=THINK, opened=opened), text) == expected


def test_reasoning_then_calls() -> None:
    text = f"<think>\nwith <tool_call>\n</think>\n\n<tool_call>\n{WEATHER}\n</tool_call>"
    found = read(reading("hermes", reasoning=THINK), text)
    assert found == ParsedAnswer("", "with <tool_call>", CALLS[:1])


# --- cut anywhere ---

BITS = [
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<think>",
    "</think>", "\n", " ", "{", "}", "[", "]", ",", ";", '"', ":", "\\", "now", "é", "7", "-0.5e1",
    "tru", "null", '{"name": "now"', '"name": "now"', '"arguments": {', '"parameters": {"a": [1, ',
    '"id": 7', "<", "<tool_", WEATHER, ADD, '{"name": "now"}', f"<tool_call>{WEATHER}</tool_call>",
    f"now[ARGS]{ADDED}",
]  # fmt: skip
HOWS = [
    AnswerFormat(form, NAMES, reasoning=marks, opened=opened)
    for form in (HERMES, LLAMA, MISTRAL, JSON)
    for marks, opened in ((None, False), (THINK, False), (THINK, True))
]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(HOWS), st.lists(st.sampled_from(BITS), max_size=24), st.data())
def test_how_the_text_is_cut_does_not_matter(how: AnswerFormat, bits: list[str], data: Any) -> None:
    text = "".join(bits)
    cut = data.draw(st.booleans())
    at = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    pieces = [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)]
    found = read(how, text, cut)
    assert ParsedAnswer.of(deltas(how, pieces, cut)) == found
    if how.reasoning is None and not found.calls:
        assert how.calls is not None and text.startswith(found.content)
        left, trigger = text[len(found.content) :].lstrip(), how.calls.trigger
        assert not left or (cut and (left.startswith(trigger) or trigger.startswith(left)))
    for call in found.calls[: None if not cut else -1]:
        assert call.name in NAMES and isinstance(json.loads(call.arguments), dict)


FINITE = st.floats(allow_nan=False, allow_infinity=False)
VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | FINITE | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(FORMATS)), VALUES)
def test_any_arguments_come_through(form: str, value: Any) -> None:
    arguments = json.dumps({"value": value}, ensure_ascii=False)
    made = f'{{"name": "now", "arguments": {arguments}}}'
    found = read(reading(form), f"{FORMATS[form].trigger}{made}")
    assert found == ParsedAnswer("", "", [ParsedCall("now", arguments)])


NEVER_ENDING = [
    "<tool_call>", "<", '<tool_call>{"name": "now", "arguments": {', "[TOOL_CALLS][", "\\", ";{",
    "[TOOL_CALLS]now[ARGS]{", "[" * 50, "{" * 50, " ", '<tool_call>{"name": "', "<think>", "1",
    '{"name": "now", "arguments": {"a": "', "</think", "<tool_call>\n", '{"name": "now"}',
    '<tool_call>{"name": "now", "arguments": {"a": -',
]  # fmt: skip


@pytest.mark.parametrize("bit", NEVER_ENDING)
@pytest.mark.parametrize("form", sorted(set(FORMATS) - {"qwen", "llama4_json"}))
def test_long_near_misses_take_linear_time(form: str, bit: str, at_length: bool) -> None:
    """Sixteen times the text takes about so much longer, whole and letter by letter."""
    how, short = reading(form, reasoning=THINK), 800 if at_length else 400

    def spent(size: int, whole: bool) -> float:
        text = (bit * size)[:size]
        start = time.process_time()
        ParsedAnswer.of(deltas(how, [text] if whole else text))
        return time.process_time() - start

    for whole in (True, False):
        small = min(spent(short, whole) for _ in range(3))
        most = 48 * small + 0.008
        # Once is enough where it was quick; what was slow once may have been interrupted.
        large = next((took for _ in range(3) if (took := spent(16 * short, whole)) < most), None)
        assert large is not None, (small, most)


# --- by name, and from templates ---


def test_parsers_by_name() -> None:
    assert find_format("hermes", "") is HERMES is find_format("qwen", "")
    assert find_format("none", "<tool_call>") is None
    assert find_marks("qwen3", "") is THINK and find_marks("none", "</think>") is None
    with pytest.raises(ConfigError, match="did you mean 'hermes'"):
        find_format("hermez", "")
    with pytest.raises(ConfigError, match="reasoning_parser = 'x'"):
        find_marks("x", "")


def test_parsers_from_templates() -> None:
    qwen = (Path(__file__).parents[1] / "data/text/chat/qwen3.jinja").read_text(encoding="utf-8")
    assert find_format("auto", qwen) is HERMES and find_marks("auto", qwen) is THINK
    assert find_format("auto", "{{ '[TOOL_CALLS]' }}") is MISTRAL
    assert find_format("auto", "{{ '<|python_tag|>' }}") is LLAMA
    assert find_format("auto", "") is JSON and find_marks("auto", "") is None
    assert find_marks("auto", "[THINK] [/THINK]") is REASONING["mistral"]


# --- real tools and calls ---


PARTS = ["simple_python", "live_simple", "multiple", "parallel", "parallel_multiple"]


def bfcl(part: str) -> list[tuple[frozenset[str], list[ParsedCall]]]:
    """Tools and expected calls of one part of the leaderboard."""
    folder = os.environ.get("FLYWEIGHT_DATA")
    if not folder:
        pytest.skip("needs FLYWEIGHT_DATA")
    room = Path(folder) / "prompts-bfcl"
    answers = {}
    for line in (room / "possible_answer" / f"BFCL_v4_{part}.json").read_text().splitlines():
        one = json.loads(line)
        answers[one["id"]] = [
            ParsedCall(
                name, json.dumps({key: values[0] for key, values in given.items() if values})
            )
            for call in one["ground_truth"]
            for name, given in call.items()
        ]
    found = []
    for line in (room / f"BFCL_v4_{part}.json").read_text().splitlines():
        one = json.loads(line)
        found.append((frozenset(tool["name"] for tool in one["function"]), answers[one["id"]]))
    return found


def written(form: str, calls: list[ParsedCall]) -> str:
    """The calls as a model of that format writes them."""
    key = FORMATS[form].arguments
    made = [f'{{"name": {json.dumps(c.name)}, "{key}": {c.arguments}}}' for c in calls]
    if form == "hermes":
        return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in made)
    if form == "llama3_json":
        return "; ".join(made)
    return f"{'[TOOL_CALLS]' if form == 'mistral' else ''}[{', '.join(made)}]"


@pytest.mark.parametrize("form", ["hermes", "llama3_json", "mistral", "json"])
@pytest.mark.parametrize("part", PARTS)
def test_the_calls_of_bfcl_come_through(part: str, form: str) -> None:
    for names, calls in bfcl(part):
        text = written(form, calls)
        pieces = [text[i : i + 5] for i in range(0, len(text), 5)]
        found = ParsedAnswer.of(deltas(AnswerFormat(FORMATS[form], names), pieces))
        assert found == ParsedAnswer("", "", calls)
