"""What can be switched off for comparison: the same greedy tokens, and more work."""

import pytest

from flyweight import LLM, SamplingParams
from flyweight.errors import ConfigError

PROMPTS = ["Once upon a time", "The dog", "A little girl named Lily", "In the forest"]
ANSWERS = [3, 12, 5, 12]
PARAMS = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in ANSWERS]
SMALL = {"max_model_len": 64, "max_num_seqs": 2, "enable_prefix_caching": False}


@pytest.fixture(scope="module")
def usual() -> tuple[list[list[int]], dict[str, int]]:
    return generate()


def generate(**settings: object) -> tuple[list[list[int]], dict[str, int]]:
    """The answers, and what the engine counted."""
    with LLM(**SMALL, **settings) as llm:
        outs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        return [list(out.outputs[0].token_ids) for out in outs], llm.stats()


def test_static_batches_give_the_same_tokens_in_more_steps(usual) -> None:
    tokens, stats = generate(scheduler="static")
    assert tokens == usual[0] and [len(answer) for answer in tokens] == ANSWERS
    assert stats["steps"] == 12 + 12  # the longest of 3, 12 and of 5, 12
    assert usual[1]["steps"] == 20  # seats end at 3, 8, 20 and at 12: 5 follows 3, the last 12 it
    assert stats["computed"] == usual[1]["computed"]


@pytest.mark.parametrize("scheduler", ["continuous", "static"])
def test_without_a_kv_cache_every_step_computes_whole_sequences(usual, scheduler: str) -> None:
    tokens, stats = generate(kv_cache=False, scheduler=scheduler)
    assert tokens == usual[0]
    prompts = usual[1]["computed"] - sum(n - 1 for n in ANSWERS)
    assert stats["computed"] > 4 * prompts
    assert stats["preempted"] == 0


def test_tokens_computed_grow_with_the_square_of_the_length() -> None:
    prompt, counts = list(range(5, 15)), {}
    for answer in (8, 16, 32):
        for cached in (True, False):
            with LLM(**SMALL, kv_cache=cached) as llm:
                params = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True)
                llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)
                counts[answer, cached] = llm.stats()["computed"]
        # the last token is drawn and never computed
        assert counts[answer, True] == 10 + answer - 1
        assert counts[answer, False] == sum(range(10, 10 + answer))


def test_sequences_longer_than_a_step_are_computed_in_several() -> None:
    """A step that ends one token before the sequence does is no reason to start over."""
    settings = {**SMALL, "max_num_seqs": 1, "max_num_batched_tokens": 6}
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    answers = []
    for cached in (True, False):
        with LLM(**settings, kv_cache=cached) as llm:
            (out,) = llm.generate({"prompt_token_ids": [5, 6, 7, 8]}, params, use_tqdm=False)
            answers.append(list(out.outputs[0].token_ids))
            stats = llm.stats()
    assert answers[0] == answers[1]
    assert stats["computed"] == sum(range(4, 12))
    assert stats["steps"] == 3 * 1 + 5 * 2  # 4, 5, 6 tokens in one step, 7 to 11 in two


def test_drafts_need_the_kv_cache() -> None:
    with pytest.raises(ConfigError, match=r"speculative_config = .* with kv_cache = False"):
        LLM(kv_cache=False, draft_tokens=2)


def test_nothing_is_found_in_a_prefix_cache_without_a_kv_cache() -> None:
    with LLM(max_model_len=128, kv_cache=False) as llm:
        params = SamplingParams(temperature=0, max_tokens=2)
        text = "One day, " * 30
        for _ in range(2):
            assert llm.generate(text, params, use_tqdm=False)[0].num_cached_tokens == 0
        rows = {row["feature"]: row["effective"] for row in llm.effective}
        assert rows["kv_cache"] == "off" and rows["enable_prefix_caching"] == "off"
