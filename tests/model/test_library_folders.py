"""Folders quantised by bitsandbytes, transformers, hqq and torchao: every matrix has the values
that the library makes of it, and the logits are those of a float32 model of these values.

The expected numbers were written by tests/weights/make_library_folders.py; nothing here needs a
library.
"""

import hashlib
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from harness import decoder, logits
from test_adapters import With as WithAdapter

from edited_folder import EditedFolder
from flyweight.models.registry import find_family
from flyweight.ops.base import Ops
from flyweight.ops.cpu import CpuOps
from flyweight.ops.cpu.gemm import PackedWeight
from flyweight.ops.grouped import GroupedWeight, widen
from flyweight.spec import Files
from flyweight.weights.checkpoint import Checkpoint, open_checkpoint
from flyweight.weights.load import list_slot_kinds, load
from flyweight.wire import F32

FOLDERS = Path(__file__).parents[1] / "data" / "models-quantized"
TOLERANCE = 1e-3
CLOSE = 2.0**-22  # of products that two libraries take in another order
KINDS = {
    "bnb-fp4": {"fp4_g64_f32"},
    "bnb-int8": {"s8_rows"},
    "bnb-nf4": {"nf4_g64_f32"},
    "bnb-nf4-double": {"nf4_g64_f32"},
    "bnb-nf4-odd": {"nf4_g32_f32", "bf16"},  # blocks run on from row to row
    "fp8-block": {"e4m3_g128_f32", "e4m3_rows"},
    "fp8-power": {"e4m3_g32_f32"},
    "fp8-rows": {"e4m3_rows"},
    "fp8-static": {"e4m3_rows", "e5m2_rows"},
    "fp8-tensor": {"e4m3_rows"},
    "hqq-1": {"u2_g64_zf"},
    "hqq-2": {"u2_g64_zf"},
    "hqq-3": {"u3_g64_zf"},
    "hqq-4": {"u4_g64_zf"},
    "hqq-6": {"u8_g64_zf"},
    "hqq-8": {"u8_g64_zf"},
    "hqq-columns": {"bf16"},
    "hqq-wide": {"u3_g64_zf", "u3_g128_zf"},  # groups of two rows, and of one
    "torchao-float8": {"e4m3_rows"},
    "torchao-int4": {"u4_g32_f32_min"},
    "torchao-int8": {"s8_rows"},
    "torchao-int8-dynamic": {"s8_rows"},
    "torchao-int8-group": {"s8_g32_f32"},
    "torchao-intx4": {"u4_g32_bf16"},
}


def read_rows(checkpoint: Checkpoint, name: str, start: int, stop: int) -> F32:
    """float32 values of a matrix, which must be of the kind that the checkpoint says."""
    rows, kind = checkpoint.read(name, start, stop), checkpoint.tensors[name].kind
    if isinstance(rows, GroupedWeight):
        assert rows.kind == kind
        return rows.dequantize()
    assert kind == "bf16"
    return widen(rows)


def read_parts(checkpoint: Checkpoint, name: str) -> F32:
    """The matrix, in parts that begin and end anywhere."""
    count = checkpoint.tensors[name].shape[0]
    ends = [*range(0, count, 7), count]
    found = [read_rows(checkpoint, name, a, b) for a, b in itertools.pairwise(ends)]
    return np.concatenate(found)


@pytest.mark.parametrize("folder", KINDS)
def test_values_are_the_library_s(folder: str) -> None:
    expected = np.load(FOLDERS / folder / "expected.npz")
    checkpoint = open_checkpoint(FOLDERS / folder)
    kinds = set()
    for linear, digest in json.loads(str(expected["hashes"])).items():
        name = f"{linear}.weight"
        info = checkpoint.tensors[name]
        kinds.add(info.kind)
        values = read_rows(checkpoint, name, 0, info.shape[0])
        assert (values == read_parts(checkpoint, name)).all()
        if folder == "bnb-int8":
            continue
        found = hashlib.sha256((values + np.float32(0)).tobytes()).hexdigest()  # -0 is 0
        assert found == digest, name
    for key in expected.files:
        if key.startswith("values "):
            name = f"{key.removeprefix('values ')}.weight"
            values = read_rows(checkpoint, name, 0, checkpoint.tensors[name].shape[0])
            np.testing.assert_allclose(values, expected[key], rtol=CLOSE)
    assert kinds == KINDS[folder]


@pytest.mark.parametrize("folder", KINDS)
def test_logits_are_those_of_the_values(folder: str, backend: Ops) -> None:
    expected = np.load(FOLDERS / folder / "expected.npz")
    model = decoder(FOLDERS / folder, backend)
    prompt, true = expected["prompt"], expected["logits"]
    whole = logits(model, prompt, np.arange(len(prompt)))
    assert true.std() > 2
    assert np.abs(whole - true).max() <= TOLERANCE
    assert (whole == logits(model, prompt, np.arange(len(prompt)), chunk=5)).all()


@pytest.mark.parametrize("folder", KINDS)
def test_memory_and_rounded_activations(folder: str) -> None:
    """With activations as kernels choose them, in as much memory as was planned."""
    ops, path = CpuOps(2), FOLDERS / folder
    checkpoint = open_checkpoint(path)
    kind = find_family(checkpoint.config)
    plan = kind.plan(kind.read_spec(checkpoint.config), Files(False, frozenset(checkpoint.tensors)))
    loaded = load(checkpoint, plan, ops)
    for slot, planned in list_slot_kinds(checkpoint, plan).items():
        held = loaded[slot]
        weights = held if isinstance(held, tuple) else (held,)
        for (shape, packed), weight in zip(planned, weights, strict=True):
            assert weight.shape == shape
            if isinstance(weight, PackedWeight):
                assert weight.kind == packed
                assert weight.tiles.nbytes == ops.count_packed_bytes(shape, packed)
    expected = np.load(path / "expected.npz")
    prompt, true = expected["prompt"], expected["logits"]
    found = logits(decoder(path, ops), prompt, np.arange(len(prompt)))
    assert np.square(found - true).sum() <= 0.05**2 * np.square(true).sum()


@pytest.mark.parametrize("folder", ["bnb-nf4-double", "torchao-intx4", "hqq-3"])
def test_matrices_whose_tensors_are_in_several_files(folder: str, tmp_path: Path) -> None:
    whole = open_checkpoint(FOLDERS / folder)
    cut = open_checkpoint(EditedFolder.read(folder).write(tmp_path, shards=3))
    assert cut.tensors == whole.tensors
    for name, info in whole.tensors.items():
        rows, again = (c.read(name, 0, info.shape[0]) for c in (whole, cut))
        if isinstance(rows, GroupedWeight):
            assert isinstance(again, GroupedWeight)
            rows, again = rows.dequantize(), again.dequantize()
        assert (rows == again).all()


def test_hqq_without_a_config(tmp_path: Path) -> None:
    """hqq's own writer, unlike transformers, leaves it out of config.json."""
    folder = EditedFolder.read("hqq-3")
    del folder.whole["quantization_config"]
    found, whole = open_checkpoint(folder.write(tmp_path)), open_checkpoint(FOLDERS / "hqq-3")
    assert found.quantisation == whole.quantisation == "hqq"
    assert found.tensors == whole.tensors


def test_an_adapter_on_a_quantised_base(backend: Ops) -> None:
    """QLoRA: the logits are those of PEFT with its adapter on bitsandbytes' matrices."""
    folder = FOLDERS / "bnb-nf4-double"
    prompt = np.load(folder / "expected.npz")["prompt"]
    true = np.load(folder / "adapter" / "expected.npz")["logits"]
    model = decoder(folder, backend, adapters=[folder / "adapter"])
    every = np.arange(len(prompt))
    plain = logits(model, prompt, every)
    assert np.abs(plain - true).max() > 0.1
    assert np.abs(logits(WithAdapter(model, 0), prompt, every) - true).max() <= TOLERANCE  # type: ignore[arg-type]
    assert (logits(WithAdapter(model, -1), prompt, every) == plain).all()  # type: ignore[arg-type]
