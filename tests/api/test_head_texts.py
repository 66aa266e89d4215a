"""The heads inside: the texts of many prompts, greedy and sampled, are those without drafts."""

from typing import Any

import pytest

from flyweight import LLM, SamplingParams

STORY = "Once upon a time there was a little dog who wanted to find the big red ball"
PROMPTS, AT_LENGTH = 48, 240
SAMPLED: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 40, "presence_penalty": 0.5},
    {"temperature": 0, "repetition_penalty": 1.2, "logprobs": 2},
]
HEADS: dict[str, dict[str, Any]] = {
    "medusa": {"method": "medusa", "num_speculative_tokens": 4},
    "medusa tree": {
        "method": "medusa",
        "num_speculative_tokens": 5,
        "speculative_token_tree": "[(0,), (1,), (0, 0), (0, 1), (0, 0, 0)]",
    },
    "eagle": {"method": "eagle", "num_speculative_tokens": 5},
    "eagle tree": {"method": "eagle", "num_speculative_tokens": 8, "tree_width": 3},
    "eagle3": {"method": "eagle3", "num_speculative_tokens": 5},
}
MIXES: list[dict[str, Any]] = [
    {"max_num_seqs": 6},
    {"max_num_seqs": 1},
    {"max_num_seqs": 16, "max_num_batched_tokens": 40, "blocks": 7, "block_size": 16},
]


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    prompts, params = make_requests(AT_LENGTH)
    return LLM(threads=1, max_model_len=96).generate(prompts, params, use_tqdm=False)


def make_requests(count: int) -> tuple[list[str], list[SamplingParams]]:
    """Prompts of 3 to 14 words, some of which begin alike."""
    words = STORY.split()
    prompts = [
        " ".join(words[(j * (1 + i % 5)) % len(words)] for j in range(3 + i % 12)) + f" {i}"
        for i in range(count)
    ]
    params = [
        SamplingParams(max_tokens=24, seed=i, **SAMPLED[i % len(SAMPLED)]) for i in range(count)
    ]
    return prompts, params


@pytest.mark.parametrize("mix", MIXES, ids=["six", "one", "tight"])
@pytest.mark.parametrize("name", HEADS)
def test_many_texts_are_those_without_drafts(
    name: str, mix: dict[str, Any], expected: list[Any], at_length: bool
) -> None:
    count = AT_LENGTH if at_length else PROMPTS
    prompts, params = make_requests(count)
    own = HEADS[name]
    config = {"model": f"stories-{own['method']}", "adaptive": False, **own}
    llm = LLM(threads=1, max_model_len=96, speculative_config=config, **mix)
    found = llm.generate(prompts, params, use_tqdm=False)
    for one, other in zip(expected, found, strict=False):
        assert one.outputs == other.outputs, one.prompt
    metrics = llm.loaded.engine.metrics
    assert metrics.accepted > 2 * count and metrics.proposed > metrics.accepted
    assert bool(metrics.preempted) == ("blocks" in mix)
