"""What an engine does besides greedy decoding, over several processes: the results of one process,
while memory for K/V is scarce.

Activations and K/V are float32, so that ranks differ from one process by the order of sums alone.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra [distributed] is not installed")

from flyweight import LLM, BeamSearchParams, PoolingParams, SamplingParams, StructuredOutputs
from flyweight.outputs import RequestOutput

SIZES: dict[str, Any] = {
    "memory_limit": "4GiB", "max_model_len": 256, "activations": "f32",
    "kv_cache_dtype": "f32", "block_size": 16,
    "blocks": 16,
}  # fmt: skip
PROMPTS = ["Once upon a time", "One day, Tom and Sue went to the park because"]
LONG = "The little dog and the big cat went to the park. They saw a red ball and a blue ball. "
CLOSE = 1e-4


@pytest.fixture(scope="module")
def alone() -> Iterator[LLM]:
    with LLM("stories", threads=1, **SIZES) as llm:
        yield llm


@pytest.fixture(scope="module", params=[(2, 1), pytest.param((2, 2), marks=pytest.mark.long)])
def ranks(request: pytest.FixtureRequest) -> Iterator[LLM]:
    tensor, pipeline = request.param
    with LLM(
        "stories",
        threads=tensor * pipeline,
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        **SIZES,
    ) as llm:
        yield llm


def generate(llm: LLM, prompts: list[str], **params: Any) -> list[RequestOutput]:
    options = SamplingParams(**({"temperature": 0, "max_tokens": 12} | params))
    return llm.generate(prompts, options, use_tqdm=False)


def list_tokens(found: list[RequestOutput]) -> list[list[list[int]]]:
    return [[[*choice.token_ids] for choice in out.outputs] for out in found]


def test_beam_search(alone: LLM, ranks: LLM) -> None:
    """Beams share blocks and copy those that they write to, on every rank."""
    params = BeamSearchParams(beam_width=3, max_tokens=10)
    expected, found = (llm.beam_search(PROMPTS, params) for llm in (alone, ranks))
    assert list_tokens(found) == list_tokens(expected)
    for mine, other in zip(found, expected, strict=True):
        scores = [choice.score for choice in mine.outputs]
        assert scores == pytest.approx([choice.score for choice in other.outputs], abs=CLOSE)
    assert ranks.stats()["copied"] > 0


@pytest.mark.parametrize("kind", ["mean", "last"])
def test_embeddings(alone: LLM, ranks: LLM, kind: Any) -> None:
    expected, found = (
        np.array([out.outputs.embedding for out in llm.embed(PROMPTS, PoolingParams(kind))])
        for llm in (alone, ranks)
    )
    assert np.abs(found - expected).max() < CLOSE
    assert np.abs(expected).max() > 100 * CLOSE


def test_log_probabilities_of_prompts(alone: LLM, ranks: LLM) -> None:
    expected, found = (generate(llm, PROMPTS, prompt_logprobs=2) for llm in (alone, ranks))
    for mine, other in zip(found, expected, strict=True):
        assert mine.prompt_logprobs is not None and other.prompt_logprobs is not None
        pairs = zip(mine.prompt_logprobs, other.prompt_logprobs, strict=True)
        for here, there in pairs:
            if here is None or there is None:
                assert here is there
                continue
            assert here.keys() == there.keys()
            for token, score in here.items():
                assert score.logprob == pytest.approx(there[token].logprob, abs=CLOSE)
                assert score.rank == there[token].rank


@pytest.mark.parametrize(
    "outputs",
    [
        StructuredOutputs(regex=r" [A-Z][a-z]{2,6} is (happy|sad)\."),
        StructuredOutputs(
            json={
                "type": "object",
                "properties": {"name": {"enum": ["Tom", "Sue"]}, "happy": {"type": "boolean"}},
                "required": ["name", "happy"],
                "additionalProperties": False,
            }
        ),
    ],
    ids=["regex", "schema"],
)
def test_structured_outputs(alone: LLM, ranks: LLM, outputs: StructuredOutputs) -> None:
    expected, found = (
        generate(llm, PROMPTS, structured_outputs=outputs, max_tokens=40) for llm in (alone, ranks)
    )
    assert list_tokens(found) == list_tokens(expected)
    assert all(out.outputs[0].finish_reason == "stop" for out in found)


def test_several_choices(alone: LLM, ranks: LLM) -> None:
    """Drawn at random, from one prompt whose blocks they share."""
    expected, found = (
        generate(llm, PROMPTS, n=3, temperature=2.0, seed=5) for llm in (alone, ranks)
    )
    assert list_tokens(found) == list_tokens(expected)
    assert len({tuple(tokens) for tokens in list_tokens(found)[0]}) > 1


def test_preempted_sequences_are_computed_again(alone: LLM, ranks: LLM) -> None:
    """Six sequences of about 70 tokens, in memory for 256."""
    prompts = [f"{name} said: {LONG}" for name in ("Tom", "Sue", "Ben", "Mia", "Lily", "Max")]
    before = ranks.stats()["preempted"]
    expected, found = (
        generate(llm, prompts, max_tokens=40, ignore_eos=True) for llm in (alone, ranks)
    )
    assert list_tokens(found) == list_tokens(expected)
    assert ranks.stats()["preempted"] > before


def test_the_prefix_cache(alone: LLM, ranks: LLM) -> None:
    """Blocks found again hold what each rank computed for its own heads and layers."""
    for llm in (alone, ranks):
        llm.reset_prefix_cache()
    for ends in ("", "Then", "Then they"):
        expected, found = (generate(llm, [LONG * 2 + ends])[0] for llm in (alone, ranks))
        assert found.outputs[0].token_ids == expected.outputs[0].token_ids
        assert found.num_cached_tokens == expected.num_cached_tokens
    assert found.num_cached_tokens > 0
