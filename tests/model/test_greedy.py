"""64 greedy tokens equal transformers', with chunked prefill, batching, prefix hits and tight
memory switched on.
"""

import numpy as np
import pytest
from harness import MODELS, decoder
from random_models import answers, engine, request

from flyweight.ops.base import Ops
from flyweight.types import Request

NAMES = sorted(p.name for p in MODELS.iterdir())
GREEDY = 64


def beginnings(prompt: list[int], greedy: list[int]) -> list[Request]:
    """The prompt with more and more of its answer already there: each must go on alike, and they
    share a prefix.
    """
    return [
        request(f"after {k}", prompt + greedy[:k], GREEDY - k, temperature=0)
        for k in (0, 1, 15, 16, 17, 40, 63)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens(name: str, native: Ops) -> None:
    expected = np.load(MODELS / name / "expected.npz")
    prompt, greedy = expected["prompt"].tolist(), expected["greedy"].tolist()
    model = decoder(MODELS / name, native)
    run = engine(model, "f32", max_num_batched_tokens=37, block_size=16, blocks=24)
    for _ in range(2):
        for r, answer in answers(run, beginnings(prompt, greedy)).items():
            assert list(answer.tokens) == greedy[-len(answer.tokens) :], (name, r)
    assert run.metrics.cached > 0 and run.metrics.preempted > 0


@pytest.mark.parametrize("name", ["llama3", "qwen3"])
def test_greedy_tokens_of_the_reference(name: str) -> None:
    from flyweight.ops.reference import ReferenceOps

    expected = np.load(MODELS / name / "expected.npz")
    run = engine(decoder(MODELS / name, ReferenceOps("f32")), "f32", max_num_batched_tokens=64)
    got = answers(run, [request("a", expected["prompt"].tolist(), GREEDY, temperature=0)])
    assert list(got["a", 0].tokens) == expected["greedy"].tolist()
