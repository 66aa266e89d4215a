"""Every drafter of the model inside, and a draft model of another vocabulary, on more than 200
prompts with every option that decides on a token: none changes.  `mtp` has no layer inside:
tests/draft/test_many_answers.py has it on a tiny model.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from test_draft_model import MIXES, OPTIONS, PROMPTS, load

from flyweight import LLM, SamplingParams
from flyweight.types import OPTIONS as DECLARED

WORDS = ("and", "then the", "but", "because it", "so she", "while", "with")
CROWD = [f"{prompt} {word}" for prompt in PROMPTS for word in WORDS]  # 224
TREE = "[(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]"
RARE: tuple[dict[str, Any], ...] = (  # drafters know nothing of most of these
    {"temperature": 0, "frequency_penalty": 0.4, "repeat_last_n": 8},
    {"temperature": 0.9, "typical_p": 0.8},
    {"temperature": 1.0, "top_n_sigma": 1.5},
    {"temperature": 0.8, "xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"temperature": 0.8, "dry_multiplier": 0.8, "dry_allowed_length": 1, "dry_base": 1.5},
    {"temperature": 0, "logit_bias": {300: 2.0, 301: -4.0}},
    {"temperature": 0.9, "allowed_token_ids": list(range(260, 2048))},
    {"temperature": 0.7, "bad_words": ["was", "the"], "stop": [" and"]},
    {"temperature": 0.8, "mirostat": 2, "mirostat_tau": 4.0, "mirostat_eta": 0.2},
    {"temperature": 0.7, "logits_processors": [lambda tokens, row: row * 0.9]},
)
ALL = OPTIONS + RARE
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
    "eagle3": heads("eagle3", 5),
    "eagle3 own tree": heads("eagle3", 8, tree_width=4),
}


def answer(llm: LLM) -> Answers:
    params = [SamplingParams(max_tokens=32, seed=i, **ALL[i % len(ALL)]) for i in range(len(CROWD))]
    outputs = llm.generate(CROWD, params, use_tqdm=False)
    return [[o.token_ids for o in one.outputs] for one in outputs]


@pytest.fixture(scope="module")
def wanted() -> Answers:
    return answer(LLM("stories", threads=2))


def check(wanted: Answers, config: dict[str, Any], mix: dict[str, Any]) -> None:
    """In one batch of changing members."""
    llm = load("stories", {**config, "adaptive": False}, **mix)
    assert answer(llm) == wanted
    stats = llm.stats()
    assert 300 < stats["accepted"] < stats["proposed"]
    if "blocks" in mix:
        assert stats["preempted"] > 0
    assert not llm.loaded.engine.drafts.calls.ended


def test_every_option_that_decides_on_a_token_is_given() -> None:
    given = {name for options in ALL for name in options}
    assert {name for name, option in DECLARED.items() if option.column} <= given


@pytest.mark.long
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_many_answers_are_those_without_drafts(
    wanted: Answers, mix: dict[str, Any], name: str
) -> None:
    check(wanted, DRAFTERS[name], mix)


@pytest.mark.long
@pytest.mark.parametrize("name", ["draft_model", "cascade"])
@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_many_answers_are_those_without_drafts_through_text(
    wanted: Answers, mix: dict[str, Any], name: str, data: Callable[[str], Path]
) -> None:
    other = str(data("stories260k/stories260K-f32.gguf"))
    check(wanted, {**DRAFTERS[name], "model": other}, mix)
