"""Folding random scales into every fixture of a model leaves its logits as they were."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from filewriters import write_folder
from flyweight.models.registry import find_family
from flyweight.ops.cpu import CpuOps
from flyweight.quantize.folds import Fold, TensorEdit, find_folds, list_edits
from flyweight.spec import Files, ModelSpec, WeightPlan
from flyweight.weights.checkpoint import Checkpoint, open_checkpoint
from flyweight.weights.formats.values import to_f32

sys.path.insert(0, str(Path(__file__).parents[1] / "model"))

from harness import MODELS, decoder, logits

NORMS = {"qkv", "up"}
WHOLE = {"qkv", "out", "up", "down"}
# Which slots of the first layer have a place for their scales
FOUND = {
    "cohere": WHOLE, "cohere-plus": WHOLE, "cohere2": WHOLE, "ernie4-5": WHOLE, "exaone": WHOLE,
    "exaone4": {"out", "down"}, "gemma": WHOLE, "gemma2": WHOLE, "gemma2-scalar": WHOLE,
    "gemma3": WHOLE, "glm": WHOLE, "glm4": WHOLE, "gpt-neox": NORMS | {"out"},
    "gpt-neox-serial": NORMS | {"out"}, "gpt2": NORMS | {"out"}, "gpt2-odd": NORMS | {"out"},
    "granite": WHOLE, "llama-bias": WHOLE, "llama-dynamic": WHOLE, "llama-linear": WHOLE,
    "llama-yarn": WHOLE, "llama1": WHOLE, "llama2-gqa": WHOLE, "llama3": WHOLE, "minicpm": WHOLE,
    "mistral": WHOLE, "mistral-window": WHOLE, "olmo2": {"out", "down"}, "olmo3": {"out", "down"},
    "opt": WHOLE, "opt-350m": {"out", "down"}, "opt-odd": WHOLE, "phi3": WHOLE,
    "phi4-longrope": WHOLE, "phi4-multimodal": WHOLE, "qwen2": WHOLE, "qwen2-window": WHOLE,
    "qwen3": WHOLE, "qwen3-bias": WHOLE, "seed-oss": WHOLE, "smollm3": WHOLE, "stablelm": WHOLE,
    "stablelm-heads": WHOLE, "stablelm-parallel": WHOLE, "starcoder2": NORMS | {"out"},
    "mixtral": {"qkv", "out"}, "qwen3-moe": {"qkv", "out"}, "gpt-oss": {"qkv", "out"},
    "deepseek-v2-lite": {"up", "down"},
}  # fmt: skip


def planned(name: str) -> tuple[Checkpoint, ModelSpec, WeightPlan]:
    checkpoint = open_checkpoint(MODELS / name)
    kind = find_family(checkpoint.config)
    spec = kind.read_spec(checkpoint.config)
    return checkpoint, spec, kind.plan(spec, Files(names=frozenset(checkpoint.tensors)))


def read_tensors(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Float32, by name."""
    found = {}
    for name, info in checkpoint.tensors.items():
        rows = math.prod(info.shape[:-1]) if len(info.shape) > 1 else math.prod(info.shape)
        values = to_f32(checkpoint.read(name, 0, rows))
        found[name] = values.reshape(info.shape)
    return found


def scales_of(fold: Fold, rng: np.random.Generator) -> np.ndarray:
    return fold.tie(np.exp(rng.uniform(-1, 1, fold.width)).astype(np.float32))


@pytest.mark.parametrize("name", sorted(FOUND))
def test_folded_scales_leave_the_logits(name: str, tmp_path: Path) -> None:
    checkpoint, spec, plan = planned(name)
    tensors, readers = read_tensors(checkpoint), set()
    rng = np.random.default_rng(7)
    for i in range(len(spec.layers)):
        for fold in find_folds(spec, i, plan):
            readers |= {r.split(".")[2] for r in fold.readers if i == 0}
            scales = scales_of(fold, rng)
            for edit in list_edits(plan, fold):
                tensors[edit.tensor] = edit.apply(tensors[edit.tensor], scales)
    assert readers == FOUND[name]
    expected = np.load(next((MODELS / name).glob("expected*.npz")))
    rows, length = expected["rows"][:4], int(expected["length"])
    ops, prompt = CpuOps(2, None, "f32"), expected["prompt"][: rows.max() + 1]
    plain = logits(decoder(MODELS / name, ops, length=length), prompt, rows)
    written = {key: ("f32", x.shape, x.tobytes()) for key, x in tensors.items()}
    folder = write_folder(tmp_path / name, checkpoint.config, written)
    folded = logits(decoder(folder, ops, length=length), prompt, rows)
    assert np.abs(plain - folded).max() <= 1e-4 * max(1, np.abs(plain).max())
    assert (plain != folded).any()


def test_every_dense_fixture_is_tried() -> None:
    for path in sorted(MODELS.glob("*/config.json")):
        name = path.parent.name
        _, spec, plan = planned(name)
        dense = not any(layer.moe or layer.latent for layer in spec.layers)
        assert name in FOUND or not dense, name
        for i in range(len(spec.layers)):  # the others are judged without an error
            find_folds(spec, i, plan)


def test_grouped_queries_share_the_scales_of_their_values() -> None:
    """Two KV heads of 2 elements, each read by 3 query heads; values begin at row 16."""
    fold = Fold(("layers.0.out",), ("layers.0.qkv",), 12, 2, 16, 3)
    assert fold.list_rows().tolist() == [16, 17] * 3 + [18, 19] * 3
    scales = np.array([1, 2, 8, 4, 1, 1, 3, 5, 3, 5, 3, 5], np.float32)
    assert np.allclose(fold.tie(scales), [2, 2, 2, 2, 2, 2, 3, 5, 3, 5, 3, 5], rtol=1e-6)


def test_an_edit_leaves_other_rows_bit_for_bit() -> None:
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    edit = TensorEdit("w", 0, np.array([-1, 1, -1, 0]), multiply=False, plus=1.0)
    changed = edit.apply(x, np.array([2, 4], np.float32))
    assert (changed[[0, 2]] == x[[0, 2]]).all()
    assert np.allclose(changed[1], (x[1] + 1) / 4 - 1)
    assert np.allclose(changed[3], (x[3] + 1) / 2 - 1)
