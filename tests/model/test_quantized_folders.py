"""Folders that libraries quantised (`make_quantized`): every matrix is read as the library
dequantises it, and the model's logits are those of a float run of what it dequantised.
"""

import hashlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from harness import decoder, logits

from flyweight.models.registry import find_family
from flyweight.ops.base import Ops
from flyweight.ops.cpu import CpuOps
from flyweight.ops.cpu.gemm import PackedWeight
from flyweight.ops.grouped import GroupedWeight
from flyweight.ops.reference import ReferenceOps
from flyweight.spec import Files
from flyweight.weights.checkpoint import Checkpoint, open_checkpoint
from flyweight.weights.load import list_slot_kinds, load
from flyweight.wire import F32

TOKENS = (1, 17, 80, 3, 95, 41, 42, 7, 64, 5, 29, 30)
FOLDERS = Path(__file__).parents[1] / "data" / "models-quantized"
KINDS = {  # what the matrices of a folder are packed as
    "gptq-4": "s4_g64 s4_rows", "gptq-4-asym": "u4_g64", "gptq-4-order": "u4_g32_order",
    "gptq-3": "u3_g128", "gptq-2": "u2_g32", "gptq-8": "s8_rows", "awq": "u4_g64",
    "awq-moe": "u4_g64", "auto-round": "s4_rows", "ct-w4a16": "s4_g32_bf16",
    "ct-w4a16-asym": "u4_g64_bf16", "ct-w8a16": "s8_rows", "ct-w8a8": "s8_rows",
    "ct-w8a8-static": "s8_rows_static", "ct-fp8": "e4m3_rows", "ct-fp8-tensor": "e4m3_rows",
    "ct-fp8-block": "e4m3_g64_bf16 e4m3_rows", "ct-nvfp4": "nvfp4_rows", "ct-mxfp4": "mxfp4",
}  # fmt: skip


def read(checkpoint: Checkpoint, name: str) -> F32:
    """A matrix in parts whose ends lie within packed words."""
    rows = checkpoint.tensors[name].shape[0]
    ends = [0, 5, 19, rows]
    parts = []
    for start, stop in pairwise(ends):
        part = checkpoint.read(name, start, stop)
        assert isinstance(part, GroupedWeight) and part.kind == checkpoint.tensors[name].kind
        parts.append(part.dequantize())
    return np.concatenate(parts)


@pytest.mark.parametrize("name", KINDS)
def test_matrices_are_what_the_library_dequantises(name: str) -> None:
    checkpoint, expected = open_checkpoint(FOLDERS / name), np.load(FOLDERS / name / "expected.npz")
    assert {i.kind for i in checkpoint.tensors.values()} - {"bf16"} == {*KINDS[name].split()}
    assert checkpoint.opened == 0
    for key, sum in zip(expected["names"], expected["sums"], strict=True):
        values = read(checkpoint, str(key)) + np.float32(0)  # of two zeros the positive one
        if name == "ct-nvfp4":  # the library divides scales first, which rounds otherwise
            continue
        found = hashlib.sha256(values.tobytes()).digest()[:8]
        assert found == sum.tobytes(), f"{key}: {values[:2, :4]}"


@pytest.mark.parametrize("ops", [ReferenceOps("f32"), CpuOps(2, None, "f32")], ids=["numpy", "cpu"])
@pytest.mark.parametrize("name", KINDS)
def test_logits_are_those_of_a_float_run(name: str, ops: Ops) -> None:
    expected = np.load(FOLDERS / name / "expected.npz")["logits"]
    found = run(name, ops)
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()
    assert (found.argmax(1) == expected.argmax(1)).all()


def test_static_activations_are_rounded_with_the_scale_of_the_file() -> None:
    expected = np.load(FOLDERS / "ct-w8a8-static" / "expected.npz")
    found = run("ct-w8a8-static", CpuOps(2, None, "int8"))
    off = [np.abs(found - expected[key]).max() for key in ("logits rounded", "logits")]
    assert off[0] < 0.2 * off[1]


@pytest.mark.parametrize("name", KINDS)
def test_memory_and_rounded_activations(name: str) -> None:
    """With activations as kernels choose them, in as much memory as was planned."""
    ops, checkpoint = CpuOps(2), open_checkpoint(FOLDERS / name)
    kind = find_family(checkpoint.config)
    plan = kind.plan(kind.read_spec(checkpoint.config), Files(False, frozenset(checkpoint.tensors)))
    loaded = load(checkpoint, plan, ops)
    for slot, planned in list_slot_kinds(checkpoint, plan).items():
        held = loaded[slot]
        weights = held if isinstance(held, tuple) else (held,)
        for (shape, packed), weight in zip(planned, weights, strict=True):
            if isinstance(weight, PackedWeight):
                assert (weight.shape, weight.kind) == (shape, packed)
                assert weight.tiles.nbytes == ops.count_packed_bytes(weight.shape, packed)
    expected = np.load(FOLDERS / name / "expected.npz")["logits"]
    found = run(name, ops)
    limit = 0.2 if name.endswith("static") else 0.05
    assert np.square(found - expected).sum() <= limit**2 * np.square(expected).sum()


def run(name: str, ops: Ops) -> F32:
    return logits(decoder(FOLDERS / name, ops), np.array(TOKENS, np.int32), np.arange(len(TOKENS)))
