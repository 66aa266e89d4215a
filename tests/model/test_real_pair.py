"""A real pair: stories3M with stories260K as its draft model.  Their vocabularies differ (4,096 and
512 pieces), so drafts go through text.  Needs FLYWEIGHT_DATA.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from test_real_weights import IDS_3M

from convert import to_folder
from flyweight import LLM, SamplingParams

Data = Callable[[str], Path]
TOKENS, STORIES, WORDS = 40, 8, 12
LIMITS: dict[str, Any] = {"threads": 2, "max_model_len": 128, "activations": "f32"}
SAMPLED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.7, "top_p": 0.9},
    "penalties": {"temperature": 0.7, "repetition_penalty": 1.2, "presence_penalty": 0.3},
}
METHODS: dict[str, dict[str, Any]] = {
    "draft_model": {"num_speculative_tokens": 4},
    "cascade": {"num_speculative_tokens": 8},
}
Answers = list[list[Sequence[int]]]


@pytest.fixture(scope="module")
def target(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("3m") / "folder"
    return to_folder(data("stories3m/stories3M-q80.bin"), data("stories3m/tok4096.bin"), out)


@pytest.fixture(scope="module")
def openings(data: Data) -> list[str]:
    text = data("text-tinystories/tinystories-excerpt.txt").read_text("utf-8")
    stories = text.split("<|endoftext|>\n")[:STORIES]
    return [" ".join(story.split()[:WORDS]) for story in stories]


def draft(data: Data, method: str) -> dict[str, Any]:
    model = str(data("stories260k/stories260K-f32.gguf"))
    return {"method": method, "model": model, "adaptive": False, **METHODS[method]}


def answer(llm: LLM, openings: list[str], options: dict[str, Any]) -> Answers:
    params = [SamplingParams(max_tokens=TOKENS, seed=i, **options) for i in range(len(openings))]
    found = llm.generate(openings, params, use_tqdm=False)
    return [[one.token_ids for one in each.outputs] for each in found]


@pytest.fixture(scope="module")
def wanted(target: Path, openings: list[str]) -> dict[str, Answers]:
    llm = LLM(str(target), **LIMITS)
    return {kind: answer(llm, openings, options) for kind, options in SAMPLED.items()}


@pytest.mark.parametrize("method", METHODS)
def test_answers_are_those_without_drafts(
    target: Path, data: Data, openings: list[str], wanted: dict[str, Answers], method: str
) -> None:
    llm = LLM(str(target), speculative_config=draft(data, method), **LIMITS)
    for kind, options in SAMPLED.items():
        before = llm.stats()
        assert answer(llm, openings, options) == wanted[kind], kind
        proposed, accepted = (llm.stats()[key] - before[key] for key in ("proposed", "accepted"))
        assert STORIES < accepted < proposed, kind
    assert not llm.loaded.engine.drafts.calls.ended


@pytest.mark.parametrize("method", METHODS)
def test_the_public_text_is_written_with_drafts(target: Path, data: Data, method: str) -> None:
    llm = LLM(str(target), speculative_config=draft(data, method), **LIMITS)
    params = SamplingParams(temperature=0, max_tokens=len(IDS_3M), ignore_eos=True)
    (found,) = llm.generate("Once upon a time", params, use_tqdm=False)
    assert list(found.outputs[0].token_ids) == IDS_3M
    assert llm.stats()["accepted"] > 10
