"""Calls that are not JSON: Qwen3-Coder's tags and Python's spelling, next to references that are
not ours (vLLM's examples, Python's own `repr` and `ast`), cut anywhere.
"""

import ast
import json
import time
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyweight.text.tools.deltas import Delta, DeltaKind, ParsedAnswer, ParsedCall
from flyweight.text.tools.formats import PYTHONIC, TAGGED, find_format
from flyweight.text.tools.parser import AnswerFormat, AnswerParser
from flyweight.text.tools.xmlcall import read_types

SCHEMAS: dict[str, dict[str, Any]] = {
    "get_current_weather": {"properties": {
        "city": {"type": "string"}, "state": {"type": "string"},
        "unit": {"enum": ["fahrenheit", "celsius"]}}},
    "calculate_area": {"properties": {
        "shape": {"type": "string"}, "dimensions": {"type": "object"},
        "precision": {"type": "integer"}}},
    "types": {"properties": {
        "i": {"type": "integer"}, "f": {"type": "number"}, "b": {"type": "boolean"},
        "s": {"type": "string"}, "o": {"type": "object"}, "a": {"type": "array"},
        "n": {"type": ["string", "null"]}, "u": {}, "e": {"type": ["string", "integer"]}}},
}  # fmt: skip
NAMES = frozenset({*SCHEMAS, "get_weather", "register_user", "do_something_cool", "now"})
TAGS = AnswerFormat(TAGGED, NAMES, typed={name: read_types(one) for name, one in SCHEMAS.items()})
PYTHON = AnswerFormat(PYTHONIC, NAMES)


def deltas(how: AnswerFormat, text: str, size: int) -> list[Delta]:
    parser = AnswerParser(how)
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    return [delta for piece in pieces for delta in parser.push(piece)] + parser.finish()


def read(how: AnswerFormat, text: str) -> ParsedAnswer:
    """Read at once, and cut in every small size."""
    found = ParsedAnswer.of(deltas(how, text, len(text) or 1))
    for size in (1, 2, 3, 7):
        assert ParsedAnswer.of(deltas(how, text, size)) == found
    return found


def calls(found: ParsedAnswer) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in found.calls]


def tagged(name: str, arguments: Mapping[str, str]) -> str:
    """As Qwen3-Coder's template writes a call."""
    parts = [f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items()]
    return f"<tool_call>\n<function={name}>\n{''.join(parts)}</function>\n</tool_call>"


DALLAS = {"city": "Dallas", "state": "TX", "unit": "fahrenheit"}
ORLANDO = {"city": "Orlando", "state": "FL", "unit": "fahrenheit"}


def test_tags_of_vllms_examples() -> None:
    weather = tagged("get_current_weather", DALLAS)
    assert read(TAGS, weather) == ParsedAnswer(
        "", "", [ParsedCall("get_current_weather", json.dumps(DALLAS))]
    )
    said = "Sure! Let me check the weather for you."
    assert read(TAGS, said + weather).content == said
    both = read(TAGS, f"{weather}\n{tagged('get_current_weather', ORLANDO)}")
    assert calls(both) == [("get_current_weather", DALLAS), ("get_current_weather", ORLANDO)]
    size = '{"width": 10, \n "height": 20}'
    area = {"shape": "rectangle", "dimensions": size, "precision": "2"}
    expected = {"shape": "rectangle", "dimensions": {"width": 10, "height": 20}, "precision": 2}
    assert calls(read(TAGS, tagged("calculate_area", area))) == [("calculate_area", expected)]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("i", "42", 42), ("f", "3.14", 3.14), ("f", "1e3", 1000.0), ("b", "true", True),
        ("b", "False", False), ("b", "maybe", "maybe"), ("o", '{"key": "value"}', {"key": "value"}),
        ("o", "{not json", "{not json"), ("a", "[1, [2]]", [1, [2]]), ("n", "None", None),
        ("n", "12", "12"), ("e", "12", 12), ("e", "x", "x"), ("u", "12", 12), ("u", "a b", "a b"),
        ("s", "12", "12"), ("s", "", ""), ("s", "a\n\nb\n", "a\n\nb\n"), ("s", "\n", "\n"),
        ("s", 'é"\\\t<b></param', 'é"\\\t<b></param'), ("s", "<parameter=i>", "<parameter=i>"),
        ("unknown", "1", "1"), ("f", "NaN", "NaN"), ("i", "[" * 9999, "[" * 9999),
        ("o", "null", None),
    ],
)  # fmt: skip
def test_values_are_of_their_types(name: str, text: str, value: Any) -> None:
    assert calls(read(TAGS, tagged("types", {name: text}))) == [("types", {name: value})]


def test_values_need_no_line_breaks() -> None:
    text = "<tool_call><function=types><parameter=s>a b</parameter><parameter=i>3</parameter>"
    assert calls(read(TAGS, f"{text}</function></tool_call>")) == [("types", {"s": "a b", "i": 3})]
    assert calls(read(TAGS, tagged("now", {}))) == [("now", {})]


@pytest.mark.parametrize(
    "text",
    [
        tagged("nothing", {}), "<tool_call>\n<function=now", "<tool_call><parameter=x>",
        "<tool_call>\n<function=now>\n<tool_call>", "<tool_call><function=now\n>",
        "<tool_call><function=now></parameter>", "<function=now></function>",
        "<tool_call><functions=now></functions></tool_call>",
        f"<tool_call><function={'x' * 300}></function>",
    ],
)  # fmt: skip
def test_what_is_no_tagged_call_is_content(text: str) -> None:
    assert read(TAGS, text) == ParsedAnswer(text.rstrip())


def test_tags_and_json_may_stand_in_one_answer() -> None:
    text = f'<tool_call>{{"name": "now", "arguments": {{}}}}</tool_call>{tagged("now", {})}'
    assert calls(read(TAGS, text)) == [("now", {}), ("now", {})]


def test_strings_stream_and_joined_they_are_one() -> None:
    found = deltas(TAGS, tagged("types", {"s": "word " * 50}), 5)
    pieces = [delta for delta in found if delta.kind is DeltaKind.ARGUMENTS]
    assert len(pieces) > 40 and found[-1].kind is DeltaKind.WHOLE
    assert found[0] == Delta(DeltaKind.NAME, "types", 0)


# --- Python's spelling ---

SIMPLE = "get_weather(city='San Francisco', metric='celsius')"
MORE = (
    "register_user(name='John Doe', age=37, address={'city': 'San Francisco', 'state': 'CA'}, "
    "role=None, passed_test=True, aliases=['John', 'Johnny'])"
)
ESCAPED = r"get_weather(city='Martha\'s Vineyard', metric='\"cool units\"')"


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (SIMPLE, '{"city": "San Francisco", "metric": "celsius"}'),
        (MORE, '{"name": "John Doe", "age": 37, "address": {"city": "San Francisco", "state": '
               '"CA"}, "role": null, "passed_test": true, "aliases": ["John", "Johnny"]}'),
        ("get_weather()", "{}"),
        ("do_something_cool(additional_data={})", '{"additional_data": {}}'),
        ("do_something_cool(steps=[])", '{"steps": []}'),
        (ESCAPED, '{"city": "Martha\'s Vineyard", "metric": "\\"cool units\\""}'),
    ],
)  # fmt: skip
def test_python_of_vllms_examples(text: str, arguments: str) -> None:
    """To the letter, as its tests have them."""
    name = text.split("(")[0]
    assert read(PYTHON, f"[{text}]") == ParsedAnswer("", "", [ParsedCall(name, arguments)])


def test_calls_in_pythons_list() -> None:
    found = read(PYTHON, f"\n[{SIMPLE}, {MORE},\n now( )]\n")
    assert [call.name for call in found.calls] == ["get_weather", "register_user", "now"]
    assert not found.content


LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
KEYWORDS = st.from_regex("[a-z_][a-z0-9_]{0,8}", fullmatch=True)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(KEYWORDS, LITERALS, max_size=3))
def test_whatever_python_writes_is_read(arguments: dict[str, Any]) -> None:
    written = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    assert calls(read(PYTHON, f"[now({written})]")) == [("now", arguments)]


@settings(max_examples=150, deadline=None)
@given(st.text("'\"\\xu08aU ab{}[],:TrueNon1.-e", max_size=24))
def test_python_agrees_with_what_is_taken(value: str) -> None:
    """What both read as a call is the same one."""
    found = read(PYTHON, f"[now(a={value})]")
    try:
        call = ast.parse(f"now(a={value})", mode="eval").body
        assert isinstance(call, ast.Call)
        reported = {
            one.arg: json.loads(json.dumps(ast.literal_eval(one.value))) for one in call.keywords
        }
    except (ValueError, SyntaxError, MemoryError, TypeError):
        return
    assert not found.calls or calls(found) == [("now", reported)]


@pytest.mark.parametrize(
    "text",
    [
        "[]", "[1, 2]", "[nothing()]", "[now]", "[now(1)]", "[now(a=b)]", "[now(a=1, a=2)]",
        "[now(a={1: 2})]", "[now(a=1 2)]", "[now(a='x)]", "now()", "[now(a=01)]", "[now(a='\\xg')]",
        "[now(" + "a" * 200 + "=1)]", "[now(a=" + "[" * 200 + "]" * 200 + ")]", "[now(a=nul)]",
    ],
)  # fmt: skip
def test_what_is_no_call_of_pythons_is_content(text: str) -> None:
    assert read(PYTHON, text) == ParsedAnswer(text)


@pytest.mark.parametrize(
    ("how", "head", "unit"),
    [
        (TAGS, "<tool_call><function=types><parameter=s>", "\n</paramete"),
        (TAGS, "<tool_call><function=types><parameter=o>", '{"a": '),
        (TAGS, "", "<tool_call><function=now"),
        (TAGS, "<tool_call><function=types>", " \n"),
        (PYTHON, "[now(a='", "\\'\\x41"),
        (PYTHON, "[now(a=[", "'',"),
        (PYTHON, "[", " \n"),
        (PYTHON, "[now(a=", "1"),
    ],
)
def test_time_is_linear(how: AnswerFormat, head: str, unit: str) -> None:
    def spent(count: int) -> float:
        began = time.process_time()
        deltas(how, head + unit * count, 3)
        return time.process_time() - began

    few, many = (min(spent(n) for _ in range(3)) for n in (1500, 12000))
    assert many < 24 * few, "eight times the text takes about eight times as long"


def test_templates_show_which_it_is() -> None:
    assert find_format("auto", "<tool_call>\\n<function=example>") is TAGGED
    assert find_format("auto", "[func_name1(params_name1=value)]") is PYTHONIC
    assert find_format("qwen3_coder", "") is TAGGED and find_format("pythonic", "") is PYTHONIC


def test_half_a_character_in_a_value_stays_an_escape() -> None:
    """Text holds none, so what was made of one could not be sent."""
    (call,) = read(TAGS, tagged("types", {"a": '["\\ud83d", "\\ud83d\\ude00"]'})).calls
    assert call.arguments == '{"a": ["\\ud83d", "😀"]}'


@pytest.mark.parametrize("name", ["2nd.step", "/path", "-x", ":x", ".x", "now"])
def test_any_name_a_tool_may_have_begins_a_call(name: str) -> None:
    how = AnswerFormat(PYTHONIC, frozenset({name}))
    assert calls(read(how, f"[{name}(a=1), {name}()]")) == [(name, {"a": 1}), (name, {})]
