"""Models cut for ranks: their logits are those of the whole, in every family and quantised format,
and what cannot be cut is refused.

Ranks are threads here; as processes they are in tests/parallel.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from harness import MODELS, decoder, logits
from hypothesis import given
from hypothesis import strategies as st
from rank_models import cut, load_part

from flyweight.errors import ConfigError
from flyweight.models.registry import find_family
from flyweight.models.shards import Shard, check_size, cut_model, split_evenly
from flyweight.ops.cpu import CpuOps
from flyweight.spec import Files, SlotPlan
from flyweight.wire import F32
from thread_ranks import ThreadRank, run_ranks

QUANTISED = MODELS.parent / "models-quantized"
FAMILIES = sorted(path for path in MODELS.iterdir() if path.is_dir())
FORMATS = sorted(path for path in QUANTISED.iterdir() if path.is_dir())
HALVES = {  # whose heads, or columns, do not come in two parts of whole blocks
    "awq", "awq-moe", "bnb-fp4", "bnb-nf4", "bnb-nf4-double", "bnb-nf4-odd", "ct-w4a16-asym",
    "gptq-3", "gptq-4-asym", "gptq-4-order", "hqq-1", "hqq-2", "hqq-3", "hqq-4", "hqq-6", "hqq-8",
    "hqq-wide",
}  # fmt: skip
QUARTERS = {  # of the families: two heads, two blocks, and keys normed over two heads
    "gpt-oss-mxfp4": "2 blocks of 32", "olmo2": "all 2 K/V heads", "olmo3": "all 2 K/V heads",
    "phi4-multimodal": "2 query heads",
}  # fmt: skip
MIXTURES = [
    path for path in FAMILIES
    if path.name in ("mixtral", "qwen2-moe", "qwen3-moe", "gpt-oss", "deepseek-v2", "llama4")
]  # fmt: skip
CLOSE = 5e-6  # of the largest logit: sums are added in another order


def check(path: Path, size: int, by_expert: bool = False) -> None:
    """Holds every rank's logits to the whole model's."""
    whole = decoder(path, CpuOps(1, None, "f32"))
    tokens = np.arange(3, 20) % whole.spec.vocab
    rows = np.arange(len(tokens))
    expected = logits(whole, tokens, rows)

    def compute(comm: ThreadRank) -> F32:
        return logits(load_part(path, comm, by_expert), tokens, rows)

    first, *others = run_ranks(size, compute)
    assert np.abs(first - expected).max() <= CLOSE * np.abs(expected).max()
    assert (first.argmax(-1) == expected.argmax(-1)).all()
    for other in others:
        assert np.array_equal(first, other)


@pytest.mark.parametrize("path", FAMILIES, ids=lambda path: path.name)
def test_two_ranks_compute_what_one_does(path: Path) -> None:
    check(path, 2)


@pytest.mark.parametrize("path", FAMILIES, ids=lambda path: path.name)
def test_four_ranks_compute_what_one_does(path: Path) -> None:
    if path.name not in QUARTERS:
        check(path, 4)
        return
    with pytest.raises(ConfigError, match=QUARTERS[path.name]):
        cut(path, Shard(0, 4))


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("path", MIXTURES, ids=lambda path: path.name)
def test_ranks_may_have_whole_experts(path: Path, size: int) -> None:
    """Of five experts, some ranks have one more than others."""
    check(path, size, by_expert=True)


def test_fewer_experts_than_ranks_are_refused() -> None:
    whole = cut(MODELS / "mixtral", Shard(0, 1))
    layers = tuple(replace(layer, heads=8) for layer in whole.spec.layers)
    spec = replace(whole.spec, layers=layers)
    kinds = {slot.name: [(slot.shape, "f32")] for slot in whole.plan.slots}
    with pytest.raises(ConfigError, match="a layer has 5 experts; allowed: 1, 2, 4"):
        check_size(spec, kinds, 8, by_expert=True)


@pytest.mark.parametrize("path", FORMATS, ids=lambda path: path.name)
def test_quantised_matrices_are_cut_between_blocks(path: Path) -> None:
    if path.name not in HALVES:
        check(path, 2)
        return
    with pytest.raises(ConfigError, match="columns"):
        cut(path, Shard(0, 2))


def test_a_size_that_does_not_fit_is_refused_with_the_sizes_that_do() -> None:
    with pytest.raises(ConfigError) as refused:
        cut(MODELS / "llama3", Shard(0, 3))
    assert str(refused.value) == (
        "tensor_parallel_size = 3: the 4 query heads of a layer do not divide by it; "
        "allowed: 1, 2, 4"
    )


def test_experts_and_the_shared_expert_are_cut_between_their_own_blocks() -> None:
    """Experts of 1,408 elements are no whole blocks of 256; the shared one's 5,632 are."""
    whole = cut(MODELS / "qwen2-moe", Shard(0, 1))
    layers = tuple(
        replace(layer, moe=replace(layer.moe, inner=1408, shared=5632))
        for layer in whole.spec.layers if layer.moe is not None
    )  # fmt: skip
    spec = replace(whole.spec, layers=layers)
    files = Files()
    plan = find_family({"model_type": "qwen2_moe"}).plan(spec, files)
    kinds = {slot.name: [(slot.shape, find_kind(slot.name))] for slot in plan.slots}
    parts = [cut_model(spec, plan, kinds, Shard(rank, 2)).spec.layers[0].moe for rank in (0, 1)]
    assert [(moe.inner, moe.shared) for moe in parts if moe] == [(704, 2816), (704, 2816)]


def find_kind(slot: str) -> str:
    """As llama.cpp's quantiser chooses for such widths."""
    return "q4_k" if "shared_down" in slot else "q5_0" if "down" in slot else "f32"


@pytest.mark.parametrize("name", ["llama3", "qwen2-moe", "gpt-neox", "gpt2", "deepseek-v3"])
def test_parts_of_a_split_matrix_are_as_large_as_the_whole(name: str) -> None:
    """K/V heads apart, which ranks may share."""
    whole, first, second = (cut(MODELS / name, s) for s in (Shard(0, 1), Shard(0, 2), Shard(1, 2)))
    parts = [{slot.name: slot for slot in found.plan.slots} for found in (first, second)]
    assert all(len(held) <= len(whole.plan.slots) for held in parts)
    for slot in whole.plan.slots:
        own = [held[slot.name] for held in parts if slot.name in held]
        if ".k_up." in slot.name or ".v_up." in slot.name or slot.kind == "vector":
            continue
        assert len(own) == 2, slot.name
        if own[0].shape != slot.shape and not slot.name.endswith(".qkv"):
            assert sum(map(count, own)) == count(slot), slot.name


def count(slot: SlotPlan) -> int:
    return slot.shape[0] * slot.shape[1]


@given(st.integers(0, 5000), st.integers(1, 64), st.sampled_from([1, 2, 32, 256]))
def test_parts_follow_one_another_and_differ_by_a_unit(total: int, parts: int, unit: int) -> None:
    total -= total % unit
    found = split_evenly(total, parts, unit)
    assert [x for part in found for x in part] == [*range(total)]
    sizes = [len(part) for part in found]
    assert max(sizes) - min(sizes) in (0, unit)
    assert sizes == sorted(sizes, reverse=True)
