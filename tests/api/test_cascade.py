"""`cascade`: a small model hands over where it is no longer sure; the text is the large model's."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_draft_model import DRAFT, MIXES, PROMPTS, answer, load, refuse

from flyweight import LLM, SamplingParams
from flyweight import build as building
from flyweight.draft.drafter import Draft, DraftRequest
from flyweight.draft.handover import HandOver
from flyweight.draft.model import ModelDrafter
from flyweight.draft.textmodel import TextDrafter
from flyweight.plan import machine

CASCADE = {
    "method": "cascade", "model": "stories-draft", "num_speculative_tokens": 12,
    "adaptive": False,
}  # fmt: skip
GREEDY = SamplingParams(temperature=0, max_tokens=40)


@pytest.fixture(scope="module")
def wanted() -> list[list[tuple[Any, ...]]]:
    return answer(LLM("stories", threads=2))


@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_answers_are_those_of_the_large_model(wanted: Any, mix: dict[str, Any]) -> None:
    llm = load("stories", CASCADE, **mix)
    assert answer(llm) == wanted
    stats = llm.stats()
    assert 100 < stats["accepted"] < stats["proposed"]
    if "blocks" in mix:
        assert stats["preempted"] > 0


def test_answers_are_the_same_through_text(wanted: Any, data: Callable[[str], Path]) -> None:
    llm = load("stories", {**CASCADE, "model": str(data("stories260k/stories260K-f32.gguf"))})
    assert answer(llm) == wanted
    stats = llm.stats()
    assert 100 < stats["accepted"] < stats["proposed"]


def count_drafts(config: dict[str, Any]) -> tuple[float, float]:
    """Draft tokens of a draft, and the share of them that is accepted."""
    llm = load("stories", config)
    llm.generate(PROMPTS, [GREEDY] * len(PROMPTS), use_tqdm=False)
    stats = llm.stats()
    return stats["proposed"] / stats["drafts"], stats["accepted"] / stats["proposed"]


def test_a_higher_threshold_hands_over_earlier_and_is_right_more_often() -> None:
    found = [
        count_drafts({**CASCADE, "cascade_min_token_prob": least}) for least in (0.0, 0.1, 0.5)
    ]
    plain = count_drafts({**DRAFT, "num_speculative_tokens": 12})
    assert found[0] == plain  # with no threshold, it is a draft model
    assert found[0][0] > found[1][0] > found[2][0]
    assert found[0][1] < found[1][1] < found[2][1]


def test_drafts_end_where_the_small_model_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with its own distribution: the probability of the tokens before the end is above
    the threshold, that of those with the one at the end is not.
    """
    ended: list[tuple[bool, float]] = []
    known: dict[int, float] = {}
    end = HandOver.end_drafts

    def watch(self: HandOver, rows: Any, drawn: Any, tokens: Any) -> Any:
        out = end(self, rows, drawn, tokens)
        for row, over, logprob in zip(rows, (out < 0).tolist(), drawn.logprobs, strict=True):
            before = known[id(row)] if row.drawn else 1.0
            known[id(row)] = before * float(np.exp(logprob))
            ended.append((over, known[id(row)]))
        return out

    monkeypatch.setattr(HandOver, "end_drafts", watch)
    llm = load("stories", {**CASCADE, "cascade_min_token_prob": 0.3})
    llm.generate(PROMPTS[:4], [GREEDY] * 4, use_tqdm=False)  # greedy: the best token is drawn
    assert len(ended) > 50 and all(over == (likely < 0.3) for over, likely in ended)
    assert any(over for over, _ in ended)


@pytest.mark.parametrize("drafter", [ModelDrafter, TextDrafter])
def test_a_draft_that_ends_at_once_is_empty(
    monkeypatch: pytest.MonkeyPatch, drafter: type, data: Callable[[str], Path]
) -> None:
    lengths: list[int] = []
    propose = drafter.propose

    def count(self: Any, requests: list[DraftRequest]) -> list[Draft]:
        drafts: list[Draft] = propose(self, requests)
        lengths.extend(len(draft.tokens) for draft in drafts)
        return drafts

    monkeypatch.setattr(drafter, "propose", count)
    monkeypatch.setattr(HandOver, "end_drafts", lambda self, rows, drawn, tokens: tokens * 0 - 1)
    other = str(data("stories260k/stories260K-f32.gguf"))
    model = "stories-draft" if drafter is ModelDrafter else other
    llm = load("stories", {**CASCADE, "model": model})
    llm.generate(PROMPTS[:3], [GREEDY] * 3, use_tqdm=False)
    assert lengths and not any(lengths)


def test_both_models_must_fit_before_either_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One memory limit for the two, with what would fit."""
    monkeypatch.setattr(machine, "measure_resident", lambda: 90 << 20)
    monkeypatch.setattr(building, "load_weights", None)  # calling it would raise
    asked: dict[str, Any] = {"max_model_len": 512, "max_num_seqs": 1, "block_size": 512}
    found = re.search(r"this model needs ([\d.]+) MiB", refuse(memory_limit="50MiB", **asked))
    assert found is not None
    said = refuse(
        speculative_config={**CASCADE, "model": "stories"},
        memory_limit=f"{float(found[1]) + 5:.0f}MiB",
        **asked,
    )
    assert "too small for the draft model: it needs" in said and "or no speculative_config" in said
