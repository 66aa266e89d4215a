"""Folding random scales into every fixture of a model leaves its logits as they were."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flyweight.models.registry import find_family
from flyweight.ops.reference import ReferenceOps, ReferenceWeight
from flyweight.quantize.folds import Fold, find_folds
from flyweight.spec import Files, ModelSpec, WeightPlan
from flyweight.weights.checkpoint import open_checkpoint

sys.path.insert(0, str(Path(__file__).parents[1] / "model"))

from harness import MODELS, decoder, logits

WHOLE = {"qkv", "out", "up", "down"}
NO_DOWN = {"qkv", "out", "up"}  # GELU without a gate
NO_NORMS = {"out", "down"}
PARALLEL = {"qkv", "out", "down"}  # `up` reads with `qkv`
LATENT = {"router", "down", "shared_down"}
EXPERTS = {"qkv", "out", "router", "down"}
# The first readers of the folds of the last layer, where they are not WHOLE
FOUND = {
    "cohere": PARALLEL, "cohere-plus": PARALLEL, "cohere2": PARALLEL, "deepseek-v2": LATENT,
    "deepseek-v2-lite": LATENT, "deepseek-v3": LATENT, "exaone4": NO_NORMS, "gpt-neox": NO_DOWN,
    "gpt-neox-serial": NO_DOWN, "gpt-oss": {"qkv", "out", "router"}, "gpt2": NO_DOWN,
    "gpt2-odd": NO_DOWN, "kimi-k2": LATENT, "llama4": EXPERTS | {"shared_down"},
    "llama4-scout": EXPERTS | {"shared_down"}, "mixtral": EXPERTS, "olmo2": NO_NORMS,
    "olmo3": NO_NORMS, "opt-350m": NO_NORMS, "qwen2-moe": EXPERTS | {"shared_down"},
    "qwen3-moe": EXPERTS, "stablelm-heads": PARALLEL, "stablelm-parallel": PARALLEL,
    "starcoder2": NO_DOWN,
}  # fmt: skip
SKIPPED = {"gpt-oss-mxfp4"}  # is quantised
NAMES = sorted({p.parent.name for p in MODELS.glob("*/config.json")} - SKIPPED)


def planned(name: str) -> tuple[ModelSpec, WeightPlan]:
    checkpoint = open_checkpoint(MODELS / name)
    kind = find_family(checkpoint.config)
    spec = kind.read_spec(checkpoint.config)
    return spec, kind.plan(spec, Files(names=frozenset(checkpoint.tensors)))


def fold_everything(spec: ModelSpec, plan: WeightPlan, loaded: dict[str, Any]) -> None:
    """Random scales into every place there is."""
    rng = np.random.default_rng(7)
    packed = {k: w for k, w in loaded.items() if isinstance(w, ReferenceWeight)}
    matrices = {k: w.matrix for k, w in packed.items()}
    biases = {k: w.bias for k, w in packed.items() if w.bias is not None}
    vectors = {k: w for k, w in loaded.items() if isinstance(w, np.ndarray)}
    for i in range(len(spec.layers)):
        for fold in find_folds(spec, i, plan):
            scales = np.exp(rng.uniform(-1, 1, fold.width)).astype(np.float32)
            fold.apply(fold.tie(scales), matrices, biases, vectors)
    loaded.update(vectors)


@pytest.mark.parametrize("name", NAMES)
def test_folded_scales_leave_the_logits(name: str) -> None:
    spec, plan = planned(name)
    last = find_folds(spec, len(spec.layers) - 1, plan)
    readers = {fold.readers[0].split(".")[2] for fold in last}
    assert readers == FOUND.get(name, WHOLE) and last
    expected = np.load(sorted((MODELS / name).glob("expected*.npz"))[0])
    rows, length = np.arange(8, 40, 8), int(expected["length"])
    prompt = expected["prompt"][:40]
    ops = ReferenceOps("f32")
    plain = logits(decoder(MODELS / name, ops, length=length), prompt, rows)

    def fold(loaded: dict[str, Any]) -> None:
        fold_everything(spec, plan, loaded)

    folded = logits(decoder(MODELS / name, ops, weights=fold, length=length), prompt, rows)
    assert np.abs(plain - folded).max() <= 1e-4
    assert (plain != folded).any()


def test_norms_after_a_block_take_no_scales() -> None:
    spec, plan = planned("opt-350m")
    found = [find_folds(spec, i, plan) for i in range(len(spec.layers))]
    assert {r.split(".")[2] for folds in found for f in folds for r in f.readers} == {"out", "down"}


def test_blocks_side_by_side_share_their_norm() -> None:
    spec, plan = planned("cohere")
    assert find_folds(spec, 0, plan)[0] == Fold(
        ("layers.0.qkv", "layers.0.up"), ("layers.0.attn_norm",), spec.hidden, spec.hidden
    )


def test_activations_that_are_not_linear_have_no_fold() -> None:
    for name in ("gpt2", "starcoder2", "gpt-oss"):
        spec, plan = planned(name)
        folds = find_folds(spec, 0, plan)
        assert not [f for f in folds if "down" in f.readers[0]], name


def test_grouped_queries_share_the_scales_of_their_values() -> None:
    """Two KV heads of 2 elements, each read by 3 query heads; values begin at row 16."""
    fold = Fold(("layers.0.out",), ("layers.0.qkv",), 12, 2, 16, 3)
    assert fold.list_rows().tolist() == [16, 17] * 3 + [18, 19] * 3
    scales = np.array([1, 2, 8, 4, 1, 1, 3, 5, 3, 5, 3, 5], np.float32)
    assert np.allclose(fold.tie(scales), [2, 2, 2, 2, 2, 2, 3, 5, 3, 5, 3, 5], rtol=1e-6)
