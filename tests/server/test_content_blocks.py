"""Answers as blocks, for the dialects that have them: one open at a time, each ended, calls
reported as they come.
"""

import json

import pytest

from flyweight.requests.collector import TextPiece
from flyweight.server.apis.anthropic.messages_stream import make_blocks
from flyweight.server.apis.ollama.handlers import make_message
from flyweight.server.apis.openai.content_blocks import BlockEvent, ContentBlocks, parse_arguments
from flyweight.server.transport.replies import encode
from flyweight.text.tools.deltas import DeltaKind, ParsedAnswer, ParsedCall
from flyweight.text.tools.formats import HERMES, THINK
from flyweight.text.tools.parser import AnswerFormat

READING = AnswerFormat(HERMES, frozenset({"look"}), reasoning=THINK)
CALL = '<tool_call>{"name": "look", "arguments": {"at": "cat"}}</tool_call>'


def piece(text: str, finish: str | None = None, reason: int | str | None = None) -> TextPiece:
    return TextPiece(0, text, [], None, finish, reason)


def steps(
    text: str, size: int, finish: str = "stop", reason: int | str | None = None
) -> tuple[list[BlockEvent], int]:
    telling = ContentBlocks(READING)
    pieces = [piece(text[i : i + size]) for i in range(0, len(text), size)]
    found = [
        step for one in [*pieces, piece("", finish, reason)] for step in telling.read_piece(one)
    ]
    return found, telling.calls


def blocks(found: list[BlockEvent]) -> list[tuple[DeltaKind, str, bool]]:
    """What was reported, each block checked: opened once, and its deltas are what it ends with."""
    made: list[tuple[DeltaKind, str, bool]] = []
    open_kind, said = None, ""
    for step in found:
        if step.what == "open":
            assert open_kind is None
            open_kind, said = step.kind, ""
        elif step.what == "delta":
            assert step.kind is open_kind and step.text
            said += step.text
        else:
            assert step.kind is open_kind and step.text == said
            made.append((step.kind, said, step.complete))
            open_kind = None
    assert open_kind is None
    return made


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_blocks_of_every_kind(size: int) -> None:
    found, calls = steps(f"<think>hm</think>I look.{CALL}{CALL} Done", size)
    arguments = '{"at": "cat"}'
    assert blocks(found) == [
        (DeltaKind.REASONING, "hm", True), (DeltaKind.CONTENT, "I look.", True),
        (DeltaKind.NAME, arguments, True), (DeltaKind.NAME, arguments, True),
        (DeltaKind.CONTENT, " Done", True),
    ]  # fmt: skip
    names = [step.text for step in found if step.what == "open" and step.kind is DeltaKind.NAME]
    assert names == ["look", "look"] and calls == 2


@pytest.mark.parametrize("size", [1, 3])
def test_a_call_that_goes_wrong_is_not_whole_and_its_text_follows(size: int) -> None:
    text = CALL.replace('"cat"', '"cat"]')
    found, calls = steps(text, size)
    (first, arguments, whole), (second, content, _) = blocks(found)
    assert (first, whole, second, content) == (DeltaKind.NAME, False, DeltaKind.CONTENT, text)
    assert arguments == '{"at": "cat"' and calls == 0


@pytest.mark.parametrize(("finish", "reason"), [("length", None), ("stop", "at"), ("stop", 7)])
def test_a_call_that_is_cut_off_is_not_whole(finish: str, reason: int | str | None) -> None:
    """At a limit, a stop string or a stop token of the caller's."""
    found, calls = steps(CALL + CALL[:-16], 4, finish, reason)
    first, (kind, arguments, whole) = blocks(found)
    assert first == (DeltaKind.NAME, '{"at": "cat"}', True)
    assert (kind, whole) == (DeltaKind.NAME, False) and arguments.startswith('{"at": "c')
    assert calls == 0


def test_a_stop_behind_a_call_leaves_it_whole() -> None:
    found, calls = steps(CALL + " So", 3, "stop", "we")
    assert [kind for kind, _, _ in blocks(found)] == [
        DeltaKind.NAME,
        DeltaKind.CONTENT,
    ] and calls == 1
    found, calls = steps(CALL.removesuffix("</tool_call>"), 3, "stop", "</tool_call>")
    assert blocks(found) == [(DeltaKind.NAME, '{"at": "cat"}', True)] and calls == 1


@pytest.mark.parametrize(
    "words",
    [
        r'{"at": "\ud800"}', r'{"at": "\udc00\ud800 x"}', '{"at": 1e999, "to": -1e999}',
        '{"at": 12345678901234567890.5}', '{"at": %s}' % ("9" * 5000), '{\n  "at": "cat"\r\n}',
        '{"at": "\ud800"}', "{}",
    ],
    ids=["half", "halves", "huge", "long", "longer", "lines", "raw half", "none"],
)  # fmt: skip
def test_arguments_keep_the_models_text(words: str) -> None:
    """Whatever stands in them, a reply with them can be written and is one line of JSON."""
    said = ParsedAnswer(calls=[ParsedCall("look", words)])
    for given in (encode(make_blocks(said)), encode(make_message(said))):
        assert b"\n" not in given and b"null" not in given
    (block,) = json.loads(encode(make_blocks(said)), parse_int=str, parse_float=str)
    assert block["input"] == json.loads(words, parse_int=str, parse_float=str)
    reported = json.loads(encode(make_message(said)), parse_int=str, parse_float=str)["message"]
    assert reported["tool_calls"][0]["function"]["arguments"] == block["input"]


@pytest.mark.parametrize("words", ['{"at": "c', "[1]", '{"at": NaN}', "[" * 100_000, ""])
def test_what_is_no_object_is_no_arguments(words: str) -> None:
    assert parse_arguments(ParsedCall("look", words)) is None
