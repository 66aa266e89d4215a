"""Which tokens' log-probabilities belong to the content of an answer: no server, no engine."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyweight import LLM
from flyweight.requests.collector import Collector
from flyweight.server.apis.logprobs import TokenSpelling
from flyweight.server.apis.openai.content_blocks import ContentBlocks
from flyweight.server.apis.openai.responses_stream import PartScores
from flyweight.text.tools.deltas import DeltaKind
from flyweight.text.tools.formats import HERMES, THINK
from flyweight.text.tools.parser import AnswerFormat
from flyweight.types import Event, Finish, Request, SamplingParams, TokenLogprobs

READING = AnswerFormat(HERMES, frozenset({"look"}), reasoning=THINK)
CALL = '<tool_call>{"name": "look", "arguments": {"at": "I look"}}</tool_call>'
PARTS = (  # and whether each is content
    ("<think>hm <I look. </think>\n\n", False), ("I look. 😀 <tool it", True), (CALL, False),
    (" Done: é<<tool", True),
)  # fmt: skip
EMPTY = (("<think></think>", False), PARTS[1])  # nothing was thought
TOKENIZER = LLM().tokenizer


class Stream:
    """What a stream reports of the content."""

    def __init__(self, collector: Collector) -> None:
        self.blocks = ContentBlocks(READING)
        self.scores = PartScores(collector, 0, TokenSpelling(TOKENIZER))
        self.deltas: list[tuple[str, list[int]]] = []
        self.parts: list[tuple[str, list[int]]] = []

    def take(self, collector: Collector) -> None:
        for piece in collector.take_pieces():
            for one in self.scores.split_tokens(piece):
                for step in self.blocks.read_piece(one):
                    found = places(self.scores.step(step))
                    if step.kind is DeltaKind.CONTENT and step.what == "delta":
                        self.deltas.append((step.text, found))
                    elif step.kind is DeltaKind.CONTENT and step.what == "close":
                        self.parts.append((step.text, found))


def places(reported: msgspec.Raw) -> list[int]:
    return [round(-one["logprob"]) for one in msgspec.json.decode(reported)]


def events(ids: list[int], sizes: list[int]) -> list[Event]:
    """An answer's tokens, so many an event; the place of each is its score."""
    scores = [TokenLogprobs(-float(i), 1, (), ()) for i in range(len(ids))]
    found, at = [], 0
    while at < len(ids):
        end = min(at + sizes[len(found) % len(sizes)], len(ids))
        finish = Finish.STOP if end == len(ids) else None
        found.append(Event("r", 0, tuple(ids[at:end]), tuple(scores[at:end]), finish=finish))
        at = end
    return found


def collector(ids: list[int]) -> Collector:
    params = SamplingParams(logprobs=0, skip_special_tokens=False)
    return Collector(Request("r", (1,), params, max_tokens=len(ids)), TOKENIZER, "x")


def expected(ids: list[int], parts: tuple[tuple[str, bool], ...]) -> list[list[int]]:
    """Places of the tokens each content has characters of, from the lengths of their texts."""
    texts = collector(ids).make_detokenizer()
    ends = [len(texts.push([token])) for token in ids]
    found, at = [], 0
    for text, content in parts:
        begin, at = at, at + len(text)
        if content:
            found.append((begin, at))
    spans, end = [], 0
    for size in ends:
        spans.append((end, end + size))
        end += size
    taken: set[int] = set()
    reported = []
    for begin, stop in found:
        own = [
            i for i, (first, last) in enumerate(spans)
            if i not in taken and first < stop and (last > begin or (first == last == begin))
        ]  # fmt: skip
        taken.update(own)
        reported.append(own)
    return reported


@given(st.lists(st.integers(1, 6), min_size=1, max_size=8))
@pytest.mark.parametrize("parts", [PARTS, PARTS[1:], PARTS[:2], PARTS[1:2], PARTS[2:], EMPTY])
def test_each_content_has_its_tokens(parts: tuple[tuple[str, bool], ...], sizes: list[int]) -> None:
    answer = "".join(text for text, _ in parts)
    ids = TOKENIZER.encode(answer, add_special=False)
    came = collector(ids)
    stream = Stream(came)
    for event in events(ids, sizes):
        came.feed(event)
        stream.take(came)
    texts = [text for text, content in parts if content]
    assert [text for text, _ in stream.parts] == texts
    assert [own for _, own in stream.parts] == expected(ids, parts)
    assert [i for _, own in stream.deltas for i in own] == [i for _, o in stream.parts for i in o]
    (choice,) = came.output().outputs
    whole = PartScores(came, 0, TokenSpelling(TOKENIZER)).score_answer(
        choice, ContentBlocks(READING)
    )
    assert places(whole) == [i for own in expected(ids, parts) for i in own]


def test_what_a_call_was_made_of_has_its_tokens_where_it_was_none() -> None:
    ids = TOKENIZER.encode(
        '<tool_call>{"name": "look", "arguments": {"at": 1} x', add_special=False
    )
    came = collector(ids)
    stream = Stream(came)
    for event in events(ids, [1]):
        came.feed(event)
        stream.take(came)
    assert "".join(text for text, _ in stream.parts) == came.output().outputs[0].text
    assert [i for _, own in stream.parts for i in own] == list(range(len(ids)))
