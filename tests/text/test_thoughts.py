"""Thoughts with a budget: closed where the reader of answers finds one open, at its last token."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flyweight.describe import describe
from flyweight.errors import RequestError
from flyweight.requests.preparing import RequestChecks, RequestPreparer
from flyweight.requests.prompts import RequestContext
from flyweight.sampling.history import force_closing
from flyweight.text.codec import SpecialIds as TokenMarks
from flyweight.text.tokenizer import Tokenizer
from flyweight.text.tools.deltas import DeltaKind
from flyweight.text.tools.formats import THINK, ReasoningMarks
from flyweight.text.tools.parser import ReasoningSplitter
from flyweight.text.words import ThoughtSpelling
from flyweight.types import SamplingParams, ThinkingBudget

PIECES = ["<", "think", "<think>", "</", ">", "</think>", "k>\n", ">ok", "th", "in", "a", " ", "\n",
          " <", "<<", "</th", "></"]  # fmt: skip
BEGINNINGS = [[], ["<think>"], ["\n", "<think>"], [" <", "think", ">"], ["<", "think", ">ok"],
              ["a", "<think>"], ["<", "<think>"], ["<", "think", "></", "think", ">"]]  # fmt: skip
PHRASES = [["a"], ["a"], [" "], ["</think>"], ["</", "think", ">"], ["</", "th", "in", "k>\n"],
           ["</th", "in", "k>\n"], ["</", "think", ">ok"], ["</"], ["<"], ["<think>"]]  # fmt: skip


class Pieces:
    """A vocabulary of a few pieces."""

    vocab_size = len(PIECES)

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        at, found = 0, []
        while at < len(text):
            fits = [p for p in PIECES if text.startswith(p, at)]
            if not fits:
                return [0]
            found.append(PIECES.index(max(fits, key=len)))
            at += len(max(fits, key=len))
        return found

    def token_bytes(self, token: int, special: bool = False) -> bytes:
        return PIECES[token].encode()


SMALL = Tokenizer(Pieces(), TokenMarks())  # type: ignore[arg-type]


def is_open(text: str, opened: bool) -> bool:
    """Whether an answer is within its thought, as its reader has it."""
    reader = ReasoningSplitter(THINK, opened)
    kinds = [delta.kind for delta in reader.push(text + "x")]
    return opened * (not kinds) or (bool(kinds) and kinds[-1] is DeltaKind.REASONING)


def expected(
    thought: ThinkingBudget, prompt: int, tokens: list[int], ids: tuple[int, ...]
) -> int | None:
    """Token by token: what is due after these."""
    used, place = thought.spent, 0
    for i in range(len(tokens) + 1):
        text = "".join(PIECES[t] for t in tokens[:i])
        if place == len(ids) or (not place and not is_open(text, thought.opened)):
            due = None
        elif place or used >= thought.budget:
            due = ids[place]
            place += 1
        else:
            due = None
            used += 1
        if i < len(tokens) and due is not None and tokens[i] != due:
            return None  # a guess that will not stand: what comes after it is of no interest
    return due


@example(0, None, (["\n", "<think>"], []), 1, False)
@example(1, None, (["<", "think", ">ok"], []), 1, True)
@example(2, 3, ([], []), 2, True)
@given(
    st.integers(0, 5),
    st.sampled_from([None, 0, 3]),
    st.tuples(st.sampled_from(BEGINNINGS), st.lists(st.sampled_from(PHRASES), max_size=6)),
    st.integers(0, 3),
    st.booleans(),
)
def test_it_is_closed_where_the_reader_finds_it_open(
    budget: int,
    inside: int | None,
    said: tuple[list[str], list[list[str]]],
    prompt: int,
    plain: bool,
) -> None:
    spelled = ThoughtSpelling.of(THINK, SMALL, len(PIECES))
    ids = (3, 1, 4) if plain else spelled.ids  # "</", "think", ">" or the one token
    thought = ThoughtSpelling(spelled.opening, spelled.closing, ids, spelled.parts).make_budget(
        budget, inside
    )
    before, answer = [10] * prompt, []
    wish = [PIECES.index(piece) for piece in sum(said[1], said[0])]
    for token in [*wish, 10, 10, 10]:  # what the model would draw, as far as it may
        due = force_closing(thought, before + answer, prompt)
        assert due == expected(thought, prompt, answer, ids), answer
        answer.append(token if due is None else due)


def test_only_tokens_that_hold_some_of_a_mark_are_kept() -> None:
    spelled = ThoughtSpelling.of(THINK, SMALL, len(PIECES))
    assert spelled.ids == (PIECES.index("</think>"),)
    assert {PIECES[i] for i in spelled.parts} == set(PIECES) - {"a"}
    with pytest.raises(RequestError, match=r"'\[/THINK\]'.*cannot be encoded"):
        ThoughtSpelling.of(ReasoningMarks("[THINK]", "[/THINK]"), SMALL, len(PIECES))
    with pytest.raises(RequestError, match="cannot be encoded"):
        ThoughtSpelling.of(THINK, SMALL, PIECES.index("</think>"))  # a piece without logits


def test_marks_are_spelled_by_the_model_inside() -> None:
    found = describe(Path(__file__).parents[2] / "src/flyweight/assets/stories.gguf")
    spelled = ThoughtSpelling.of(THINK, found.tokenizer, found.spec.vocab)
    written = b"".join(spelled.parts[i] for i in spelled.ids)
    assert written.strip() == b"</think>" and len(spelled.parts) < found.spec.vocab // 2


def asking(reasoning: str = "auto") -> RequestPreparer:
    found = describe(Path(__file__).parents[2] / "src/flyweight/assets/stories.gguf")
    return RequestPreparer(found.tokenizer, RequestChecks(found.spec.vocab, 128, 256,
    found.stop_ids), reasoning=reasoning)  # fmt: skip


@pytest.mark.parametrize(
    ("prompt", "opened", "spent"),
    [
        ({"prompt": "Say <think>\n"}, True, 0),
        ({"prompt": "Say <think> hm"}, False, 0),
        ({"prompt": "Say <think> hm", "continued": "<think> hm"}, True, 1),
        ({"prompt": "x <think>a</think> b", "continued": "<think>a</think> b"}, False, 0),
        ({"prompt": "x", "continued": None}, False, 0),
    ],
)
def test_a_prompt_may_end_within_a_thought(
    prompt: dict[str, str], opened: bool, spent: int
) -> None:
    params = SamplingParams(thinking_token_budget=5)
    thought = asking("think").prepare(prompt, params, RequestContext()).words.thought
    assert thought is not None and thought.budget == 5
    assert (thought.opened, bool(thought.spent)) == (opened, bool(spent))
    ids = asking("think").tokenizer.encode(prompt["prompt"])
    same = asking("think").prepare(ids, params, RequestContext()).words.thought
    assert same is not None and same.opened == prompt["prompt"].endswith("<think>\n")


def test_what_cannot_be_kept_is_refused_and_nothing_is_done_unasked() -> None:
    none = SamplingParams(thinking_token_budget=-1)
    assert none.thinking_token_budget is None
    assert asking().prepare("x", none, RequestContext()).words.thought is None
    with pytest.raises(RequestError, match="thinking_token_budget = 5 is not supported"):
        asking().prepare("x", SamplingParams(thinking_token_budget=5), RequestContext())
    with pytest.raises(RequestError, match="thinking_token_budget = -2 is out of range"):
        SamplingParams(thinking_token_budget=-2)
