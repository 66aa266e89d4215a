"""A model over several processes: the tokens of one, the same bits in any batch, and every process
gone at the end.
"""

import os
import signal
import time
from collections.abc import Iterator, Sequence

import pytest

pytest.importorskip("torch", reason="the extra [distributed] is not installed")

from flyweight import LLM, SamplingParams
from flyweight.errors import ConfigError, RankLost
from flyweight.parallel.processes import LeadingRunner

# Int8 inputs turn the last digits of sums over ranks into other tokens where two are close.
MEMORY = {"memory_limit": "4GiB", "max_model_len": 512, "activations": "f32"}
PROMPTS = ["Once upon a time", "The little dog", "One day, Tom and Sue went to the park because"]
GREEDY = SamplingParams(temperature=0, max_tokens=32)


def generate(llm: LLM, prompts: Sequence[str], params: SamplingParams = GREEDY) -> list[list[int]]:
    return [[*found.outputs[0].token_ids] for found in llm.generate([*prompts], params)]


def list_ranks(llm: LLM) -> list[int]:
    """Process ids of the other ranks."""
    close = llm.loaded.engine.on_close
    assert close is not None
    ranks = close.func.__self__  # type: ignore[attr-defined]
    return [child.pid for child in ranks.children]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def alone() -> Iterator[LLM]:
    with LLM("stories", threads=1, **MEMORY) as llm:
        yield llm


@pytest.fixture(scope="module")
def pair() -> Iterator[LLM]:
    with LLM("stories", threads=2, tensor_parallel_size=2, **MEMORY) as llm:
        yield llm


def test_greedy_tokens_are_those_of_one_process(alone: LLM, pair: LLM) -> None:
    runner = pair.loaded.engine.runner
    assert isinstance(runner, LeadingRunner)
    assert generate(pair, PROMPTS) == generate(alone, PROMPTS)
    assert runner.group.waited is not None, "ranks of one host share memory"


def test_a_request_has_the_same_tokens_and_log_probabilities_in_any_batch(pair: LLM) -> None:
    params = SamplingParams(temperature=1.0, seed=7, max_tokens=24, logprobs=3)
    (one,) = pair.generate([PROMPTS[2]], params)
    *_, same = pair.generate(["A", *PROMPTS[:2], PROMPTS[2]], params)
    assert one.outputs[0].token_ids == same.outputs[0].token_ids
    assert one.outputs[0].logprobs == same.outputs[0].logprobs


def test_prompt_lookup_drafts_for_several_ranks(alone: LLM) -> None:
    drafts = {"method": "ngram", "num_speculative_tokens": 4}
    text = "the cat sat on the mat. " * 6
    with LLM(
        "stories", threads=2, tensor_parallel_size=2, speculative_config=drafts, **MEMORY
    ) as llm:
        assert generate(llm, [text]) == generate(alone, [text])


@pytest.mark.parametrize(("tensor", "pipeline"), [(1, 2), (2, 2)])
def test_stages_give_the_tokens_of_one_process(alone: LLM, tensor: int, pipeline: int) -> None:
    """A long prompt, so that its step is cut into micro-batches."""
    prompts = [*PROMPTS, "They went to the park and " * 50]
    with LLM(
        "stories", threads=2, tensor_parallel_size=tensor, pipeline_parallel_size=pipeline, **MEMORY
    ) as llm:
        assert len(list_ranks(llm)) == tensor * pipeline - 1
        assert generate(llm, prompts) == generate(alone, prompts)


def test_no_rank_outlives_the_model() -> None:
    with LLM("stories", threads=2, tensor_parallel_size=2, **MEMORY) as llm:
        pids = list_ranks(llm)
        assert len(pids) == 1 and all(map(is_running, pids))
    assert not any(map(is_running, pids))


def test_a_rank_that_is_killed_is_reported() -> None:
    with LLM("stories", threads=2, tensor_parallel_size=2, **MEMORY) as llm:
        generate(llm, PROMPTS[:1])
        (pid,) = list_ranks(llm)
        os.kill(pid, signal.SIGKILL)
        while is_running(pid) and not is_zombie(pid):
            time.sleep(0.01)
        with pytest.raises(RankLost, match="has ended"):
            generate(llm, PROMPTS[:1])


def is_zombie(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"


def test_sizes_that_do_not_divide_heads_are_refused_before_loading() -> None:
    with pytest.raises(ConfigError, match="query heads of a layer do not divide by it; allowed"):
        LLM("stories", tensor_parallel_size=7, **MEMORY)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"swap_space": 1.0}, "swap_space = 1.0 is not supported with tensor_parallel_size = 2"),
        ({"backend": "reference"}, "backend = 'reference' is not supported with"),
        (
            {"speculative_config": {"method": "draft_model", "model": "stories-draft",
                                    "num_speculative_tokens": 3}},
            "speculative_config.method = 'draft_model' is not supported with",
        ),
    ],
)  # fmt: skip
def test_what_ranks_cannot_do_is_refused(given: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        LLM("stories", tensor_parallel_size=2, **given)  # type: ignore[arg-type]
    assert problem in str(refused.value)
