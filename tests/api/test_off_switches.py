"""What can be switched off for comparison: the same greedy tokens, and more work."""

import pytest

from flyweight import LLM, SamplingParams

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
