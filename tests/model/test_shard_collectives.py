"""Collectives of a step under tensor parallelism: how many, and that a sum keeps its order."""

from dataclasses import dataclass

import numpy as np
import pytest
from harness import MODELS, logits
from rank_models import load_part

from flyweight.wire import F32
from thread_ranks import ThreadRank, run_ranks

# A plain MLP, experts, and experts with a shared one, with and without a gate of its own.
FAMILIES = ("llama3", "mixtral", "gpt-oss", "qwen2-moe", "deepseek-v3", "llama4")
WITH_SHARED = ("qwen2-moe", "deepseek-v3", "llama4")


@dataclass
class CountingRank(ThreadRank):
    """A rank that counts what it takes part in."""

    reduces: int = 0
    gathers: int = 0

    def all_reduce(self, x: F32) -> F32:
        self.reduces += 1
        return super().all_reduce(x)

    def all_gather(self, x: F32, width: int) -> F32:
        self.gathers += 1
        return super().all_gather(x, width)


@pytest.mark.parametrize("by_expert", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_layer_has_two_all_reduces(name: str, by_expert: bool) -> None:
    """And the step one of the embedding, and one all-gather of its logits."""

    def compute(rank: ThreadRank) -> tuple[int, int, int]:
        comm = CountingRank(rank.group, rank.rank)
        model = load_part(MODELS / name, comm, by_expert)
        logits(model, np.arange(3, 9), np.array([5]))
        return comm.reduces, comm.gathers, len(model.spec.layers)

    for reduces, gathers, layers in run_ranks(2, compute):
        assert (reduces, gathers) == (2 * layers + 1, 1)


@pytest.mark.parametrize("name", WITH_SHARED)
def test_a_shared_expert_does_not_change_bits_with_the_batch(name: str) -> None:
    """Its part is added to the routed experts' before the sum over ranks, for each row alone."""
    tokens = np.arange(3, 20)

    def compute(rank: ThreadRank) -> tuple[F32, F32]:
        model = load_part(MODELS / name, rank)
        assert any(layer.moe and layer.moe.shared for layer in model.spec.layers)
        rows = np.arange(len(tokens))
        return logits(model, tokens, rows), logits(model, tokens, rows, chunk=5)

    for together, apart in run_ranks(2, compute):
        assert np.array_equal(together, apart)
