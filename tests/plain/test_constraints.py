"""What a constraint may be, and what its parts mean byte by byte."""

from typing import Any

import pytest

from flyweight.errors import RequestError
from flyweight.params.structured import DEEPEST, LONGEST, StructuredOutputs, check
from flyweight.sampling.grammar import Compiler, TrialCompiler, byte_vocabulary
from flyweight.sampling.patterns import translate_pattern
from flyweight.sampling.sources import embed_schema
from flyweight.testing import make_acceptor
from flyweight.types import SamplingParams


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "no constraint"),
        ({"json_object": False}, "no constraint"),
        ({"json": {}, "regex": "a"}, "json and regex"),
        ({"json": "[1]"}, "an object, true or false"),
        ({"json": "{"}, "not valid JSON"),
        ({"json": '{"const": NaN}'}, "NaN is not JSON"),
        ({"json": {"const": float("inf")}}, "as JSON"),
        ({"json": {"const": {1, 2}}}, "as JSON"),
        ({"json": 7}, "an object, or its text"),
        ({"json": '{"a":' * (DEEPEST + 1) + "1" + "}" * (DEEPEST + 1)}, f"up to {DEEPEST} levels"),
        ({"json": "[" * 10_000}, f"up to {DEEPEST} levels"),
        ({"regex": "a" * (LONGEST + 1)}, f"up to {LONGEST} bytes"),
        ({"regex": 3}, "text"),
        ({"regex": "\ud800"}, "invalid UTF-16 surrogate"),
        ({"choice": []}, "1 to 4096"),
        ({"choice": ["a"] * 4097}, "nearest valid: 4096"),
        ({"choice": ["a", 3]}, "texts"),
        ({"choice": ["a" * 40_000, "b" * 40_000]}, f"up to {LONGEST} bytes"),
        ({"json_object": 1}, "true or false"),
        ({"regex": "a", "whitespace_pattern": " ?"}, "not with regex"),
        ({"json": {}, "whitespace_pattern": " *"}, "bounded length"),
        ({"json": {}, "whitespace_pattern": "x"}, "bounded length"),
        (
            {"json": {}, "whitespace_pattern": " ", "disable_any_whitespace": True},
            "cannot be combined",
        ),
        ({"json": {}, "disable_any_whitespace": "yes"}, "true or false"),
    ],
)
def test_what_is_out_of_range_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match="structured_outputs") as refusal:
        StructuredOutputs(**given)
    assert words in str(refusal.value)
    assert len(str(refusal.value)) < 300


def test_what_is_given_makes_an_equal_one() -> None:
    for given in (
        {"json": {"type": "string"}, "whitespace_pattern": "\\n {0,8}"},
        {"choice": ["a", "b"]},
        {"json_object": True, "disable_any_whitespace": True},
        {"json": True},
    ):
        one = StructuredOutputs(**given)
        assert StructuredOutputs(**one.given) == one and hash(one)
        assert SamplingParams(structured_outputs=one).structured_outputs is one
    with pytest.raises(RequestError, match="structured_outputs"):
        SamplingParams(structured_outputs={"regex": "a"})  # type: ignore[arg-type]


def test_narrower_bounds() -> None:
    nested = StructuredOutputs(json={"items": {"items": {}}})
    check(nested, longest=100, deepest=3)
    with pytest.raises(RequestError, match="up to 2 levels"):
        check(nested, longest=100, deepest=2)
    with pytest.raises(RequestError, match="up to 3 bytes"):
        check(StructuredOutputs(choice=["ab", "cd"]), longest=3, deepest=1)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"choice": []}, "choice has 0 choices; allowed: 1 to 4096; nearest valid: 1"),
        ({"choice": ["a"] * 5000}, "choice has 5000 choices; allowed: 1 to 4096; nearest valid"),
        ({"regex": "a" * 70_000}, "regex has 70000 bytes; allowed: up to 65536 bytes; nearest"),
    ],
)
def test_sizes_are_numbers_with_units(given: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError) as error:
        StructuredOutputs(**given)
    assert str(error.value).startswith(f"structured_outputs.{says}")


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "object"}, ['{"a": 1, "b":[1, 2]}', "{}"], ["{ }", '{"a" : 1}', '{"a":  1}']),
        ({"format": "date"}, ['"2024-02-29"', "7"], ['"2023-02-29"', '"2100-02-29"']),
        ({"format": "time"}, ['"23:59:59.5+01:30"'], ['"23:59:60Z"', '"24:00:00Z"', '"12:00:00"']),
        ({"format": "hostname"}, ['"a-b.c1"', '"a--b"'], ['"xn--a"', '"-a"', f'"{"a" * 64}"']),
        ({"pattern": "^a.b$"}, ['"axb"'], ['"a\\nb"', '"a\\rb"', '"a\u2028b"']),
        ({"pattern": "^\\S$"}, ['"x"', '"\u0085"'], ['"\ufeff"', '" "']),
        ({"pattern": "^[\\s\\d]$"}, ['"\u3000"', '"7"'], ['"\u0663"', '"s"']),
        ({"format": "date", "pattern": "^2"}, ['"2024-01-01"'], ['"1999-01-01"']),
        ({"properties": {"a/b": {"type": "null"}}}, ['{"a/b":null}'], ['{"a\\/b":1}', '{"a/b":1}']),
        ({"minProperties": 1}, ['{"a":1}'], ["{}"]),
        ({"properties": {"a": {}}, "required": ["a"], "maxProperties": 2, "x-note": 1,
          "additionalProperties": True},
         ['{"a":1}', '{"a":1,"b":2}'], ["{}", '{"a":1,"b":2,"c":3}']),
        (True, ["[1,null]"], ["[1,]"]),
    ],
)  # fmt: skip
def test_what_schemas_mean(schema: Any, good: list[str], bad: list[str]) -> None:
    judge = make_acceptor(StructuredOutputs(json=schema))
    assert [text for text in good if not judge(text)] == []
    assert [text for text in bad if judge(text)] == []


@pytest.mark.parametrize(
    "pattern",
    ["(?=a)", "a(?i)b", "(?<!a)b", "\\bword", "\\Aa", "\\z", "\\cJ", "\\0", "\\1", "[a&&b]",
     "[[a]]", "[a--b]", "a{,3}", "[]", "[^]a]"],
)  # fmt: skip
def test_patterns_that_mean_something_else_here_are_refused(pattern: str) -> None:
    with pytest.raises(RequestError, match="not supported"):
        translate_pattern(pattern, "/pattern")


@pytest.mark.parametrize("text", ['"' + '\\"' * 30_000, '"' * 60_000, "[" * 60_000, '{"' * 30_000])
def test_hostile_sources_are_read_once(text: str) -> None:
    """In time that grows with their length: a square of it would take minutes."""
    with pytest.raises(RequestError):
        StructuredOutputs(json=text)
    with pytest.raises(RequestError):
        translate_pattern(text + "(?=", "/pattern")


def test_white_space_is_as_requested() -> None:
    closed = {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}
    tight = make_acceptor(StructuredOutputs(json=closed, disable_any_whitespace=True))
    assert tight('{"a":null}') and not tight('{"a": null}')
    wide = make_acceptor(StructuredOutputs(json=closed, whitespace_pattern="\\n[ ]{0,2}"))
    assert wide('{"a":\n  null}') and not wide('{"a": null}')


def test_free_text_up_to_a_mark() -> None:
    """As docs/structured-output.md has it."""
    args = embed_schema(
        {"type": "object", "properties": {"n": {"format": "date"}}, "required": ["n"]}
    )
    lark = (
        "start: text | before call\ntext: /(?s:.*)/\n"
        'before[suffix="<call>"]: /(?s:.*)/\ncall: args "</call>"\nargs: ' + args
    )
    judge = make_acceptor(StructuredOutputs(grammar=lark))
    assert judge("Nothing < to <cal") and judge('Well, <call>{"n": "2024-01-01"}</call>')
    for text in ("<call>", "<call>x", '<call>{"n": "2024-13-01"}</call>', '<call>{ "n": 1}</call>'):
        assert not judge(text)


def test_special_tokens_are_named_by_their_spelling() -> None:
    compiler = Compiler(byte_vocabulary([b"<tool>"]))
    matcher = compiler.compile(StructuredOutputs(grammar='start: "a" <tool> "b"'))
    assert matcher.fits([*b"a<tool>b"]) == 1
    assert matcher.take([ord("a"), 257, ord("b")]) == 3 and matcher.over


def test_a_matcher_goes_back_and_a_copy_goes_its_own_way() -> None:
    matcher = Compiler(byte_vocabulary()).compile(StructuredOutputs(choice=["abc", "abd"]))
    other = matcher.copy()
    assert matcher.take(list(b"ab")) == 2 and matcher.fits(list(b"cx")) == 1
    before = matcher.mask().tolist()
    assert matcher.take(list(b"c")) == 1 and matcher.over and matcher.complete
    matcher.back(1)
    assert matcher.mask().tolist() == before and not matcher.complete
    assert other.take(list(b"abd")) == 3
    assert matcher.take(list(b"x")) == 0


def test_an_end_may_follow_what_is_complete_and_only_that() -> None:
    matcher = Compiler(byte_vocabulary()).compile(StructuredOutputs(regex="ab*"))
    end = 256

    def may_end(*, endless: bool = False) -> bool:
        return bool(matcher.mask(endless=endless)[end // 32] >> (end % 32) & 1)

    assert not may_end()
    matcher.take(b"a")
    assert may_end() and not may_end(endless=True)


def test_a_judge_remembers() -> None:
    requested: list[int] = []

    def special() -> list[bytes]:
        requested.append(1)
        return [b"<x>"]

    judge = TrialCompiler(special)
    judge(StructuredOutputs(grammar="start: <x>"))
    for _ in range(2):
        with pytest.raises(RequestError, match="nowhere"):
            judge(StructuredOutputs(grammar="start: nowhere"))
    assert requested == [1]
