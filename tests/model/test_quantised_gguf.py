"""A small model in every quantised type of GGUF, embedding and head too, next to the same model
with its dequantised weights in float32.
"""

from pathlib import Path

import numpy as np
import pytest
from harness import decoder, logits

from filewriters import Tensor, encode, random_tensor, write_gguf
from flyweight.models.registry import find_family
from flyweight.ops.base import Ops
from flyweight.ops.cpu import CpuOps, available_isas
from flyweight.ops.grouped import GroupedWeight
from flyweight.ops.reference import ReferenceOps
from flyweight.plan.memory import count_weight_bytes
from flyweight.spec import Files
from flyweight.weights.checkpoint import open_checkpoint
from flyweight.weights.formats import FORMATS
from flyweight.weights.load import list_slot_kinds, load
from flyweight.wire import F32

KINDS = tuple(kind for kind, form in FORMATS.items() if form.quantised)
PROMPT = np.array([3, 60, 17, 8, 8, 41, 0, 22, 13])
ROWS = np.array([0, 4, 8])
META: dict[str, object] = {
    "general.architecture": "llama",
    "llama.embedding_length": 256,
    "llama.block_count": 2,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.key_length": 64,
    "llama.attention.value_length": 64,
    "llama.rope.dimension_count": 64,
    "llama.feed_forward_length": 512,
    "llama.context_length": 64,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}
LAYER = {"attn_q": 256, "attn_k": 128, "attn_v": 128, "attn_output": 256}
LAYER |= {"ffn_gate": 512, "ffn_up": 512, "ffn_down": 256}


def matrices() -> dict[str, tuple[int, int]]:
    names = {"token_embd.weight": (61, 256), "output.weight": (61, 256)}
    for i in range(2):
        for name, n in LAYER.items():
            names[f"blk.{i}.{name}.weight"] = (n, 512 if name == "ffn_down" else 256)
    return names


def values(tensor: Tensor) -> F32:
    kind, shape, raw = tensor
    rows = FORMATS[kind].parse(np.frombuffer(raw, np.uint8), shape)
    assert isinstance(rows, GroupedWeight)
    return rows.dequantize()


def quantised(rng: np.random.Generator, kind: str, shape: tuple[int, int]) -> Tensor:
    """Random blocks, of scales that give about unit gain."""
    most = 0.1
    gain = values(random_tensor(rng, kind, (64, 256), most)).std() * np.sqrt(shape[1])
    return random_tensor(rng, kind, shape, most / float(gain))


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The model in its type, and its twin in float32."""
    rng, folder = np.random.default_rng(5), tmp_path_factory.mktemp(request.param)
    norms = {"output_norm.weight": encode(rng.uniform(0.5, 1.5, 256), "f32")}
    for i in range(2):
        for name in ("attn_norm", "ffn_norm"):
            norms[f"blk.{i}.{name}.weight"] = encode(rng.uniform(0.5, 1.5, 256), "f32")
    mine = {name: quantised(rng, request.param, shape) for name, shape in matrices().items()}
    dense = {name: encode(values(tensor), "f32") for name, tensor in mine.items()}
    return [
        write_gguf(folder / "quantised.gguf", META, mine | norms),
        write_gguf(folder / "dense.gguf", META, dense | norms),
    ]


def run(path: Path, ops: Ops) -> F32:
    return logits(decoder(path, ops), PROMPT, ROWS)


def test_logits_are_those_of_the_dequantised_weights(pair: list[Path]) -> None:
    """The reference multiplies with the very same numbers; kernels round on the way."""
    mine, truth = (run(path, ReferenceOps("f32")) for path in pair)
    assert np.isfinite(truth).all() and truth.std() > 0.05
    assert (mine == truth).all()
    for isa in available_isas():
        got = run(pair[0], CpuOps(2, isa, "f32"))
        assert np.abs(got - truth).max() <= 1e-4 * np.abs(truth).max(), isa


def test_integer_kernels_give_what_the_reference_gives(pair: list[Path]) -> None:
    """Rounded the same way to int8, up to a code that falls to the other side of a half."""
    truth = run(pair[0], ReferenceOps("int8"))
    outs = [run(pair[0], CpuOps(2, isa, "int8")) for isa in available_isas()]
    assert np.abs(outs[-1] - truth).max() <= 0.02 * np.abs(truth).max()
    far = np.abs(truth - run(pair[1], ReferenceOps("f32"))).max()
    assert np.abs(outs[-1] - truth).max() < far, "nearer than int8 is to float32"
    assert all((out == outs[0]).all() for out in outs[1:])


def test_the_memory_plan_counts_what_is_held(pair: list[Path]) -> None:
    checkpoint, ops = open_checkpoint(pair[0]), CpuOps(1)
    kind = find_family(checkpoint.config)
    files = Files(checkpoint.converted, frozenset(checkpoint.tensors))
    plan = kind.plan(kind.read_spec(checkpoint.config), files)
    held = load(checkpoint, plan, ops)
    planned = count_weight_bytes(list_slot_kinds(checkpoint, plan), ops)
    assert planned == sum(
        part.nbytes for w in held.values() for part in (w if isinstance(w, tuple) else (w,))
    )
