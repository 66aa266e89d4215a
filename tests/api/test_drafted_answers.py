"""Every drafter that the model inside has, on more than 200 prompts with every kind of options: no
token changes.  `eagle3` and `mtp` have no heads inside: tests/draft has them on a tiny model, with
fewer kinds of options.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from test_draft_model import MIXES, OPTIONS, PROMPTS, load

from flyweight import LLM, SamplingParams

WORDS = ("and", "then the", "but", "because it", "so she", "while", "with")
CROWD = [f"{prompt} {word}" for prompt in PROMPTS for word in WORDS]  # 224
TREE = "[(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]"
Answers = Sequence[Sequence[Sequence[int]]]


def heads(method: str, tokens: int, **options: Any) -> dict[str, Any]:
    return {
        "method": method, "model": f"stories-{method}", "num_speculative_tokens": tokens,
        **options,
    }  # fmt: skip


DRAFTERS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1},
    "suffix": {"method": "suffix"},
    "draft_model": {"model": "stories-draft", "num_speculative_tokens": 4},
    "cascade": {"method": "cascade", "model": "stories-draft", "num_speculative_tokens": 8},
    "medusa": heads("medusa", 4),
    "medusa tree": heads("medusa", 7, speculative_token_tree=TREE),
    "eagle": heads("eagle", 5),
    "eagle tree": heads("eagle", 7, speculative_token_tree=TREE),
    "eagle own tree": heads("eagle", 8, tree_width=4),
}


def answer(llm: LLM) -> Answers:
    params = [
        SamplingParams(max_tokens=32, seed=i, **OPTIONS[i % len(OPTIONS)])
        for i in range(len(CROWD))
    ]
    outputs = llm.generate(CROWD, params, use_tqdm=False)
    return [[o.token_ids for o in one.outputs] for one in outputs]


@pytest.fixture(scope="module")
def wanted() -> Answers:
    return answer(LLM("stories", threads=2))


@pytest.mark.long
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_many_answers_are_those_without_drafts(
    wanted: Answers, mix: dict[str, Any], name: str
) -> None:
    """In one batch of changing members."""
    llm = load("stories", {**DRAFTERS[name], "adaptive": False}, **mix)
    assert answer(llm) == wanted
    stats = llm.stats()
    assert 300 < stats["accepted"] < stats["proposed"]
    assert not llm.loaded.engine.drafts.calls.ended
