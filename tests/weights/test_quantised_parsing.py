"""What folders of quantised matrices may have besides the usual: zero points past a byte's range,
orders, modules of other bits, groups without a kernel, configs in files of their own.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flyweight.errors import CheckpointError
from flyweight.models.registry import find_family
from flyweight.ops.base import from_bf16_bits
from flyweight.ops.cpu import CpuOps
from flyweight.ops.grouped import GroupedWeight
from flyweight.spec import SlotPlan, Source, WeightPlan
from flyweight.weights import load as loader
from flyweight.weights.checkpoint import Checkpoint, open_checkpoint
from flyweight.weights.survey import find_value_faults
from flyweight.wire import F32
from quantised_folders import AWQ, GPTQ, RNG, Arrays, K, N, awq, gptq, pack, write
from torchwriter import archive, state, storage, tensor


def read(checkpoint: Checkpoint, name: str = "m.weight") -> F32:
    rows = checkpoint.read(name, 0, checkpoint.tensors[name].shape[0])
    return rows.dequantize() if isinstance(rows, GroupedWeight) else from_bf16_bits(rows)


def unpack(words: Any, bits: int) -> Any:
    """Codes along the first axis, one by one: nothing of the reader's."""
    stream = (words.view(np.uint32)[:, None] >> np.arange(32, dtype=np.uint32)[:, None]) & 1
    flat = stream.reshape(-1, bits, words.shape[1]).astype(np.int64)
    return (flat << np.arange(bits)[:, None]).sum(1)


def expect(tensors: Arrays, bits: int, order: Any, missing: int) -> F32:
    """w = scale * (code - zero), in the order of GPTQ's own kernels."""
    codes, scales = unpack(tensors["m.qweight"], bits), tensors["m.scales"].astype(np.float32)
    zeros = unpack(tensors["m.qzeros"].T.copy(), bits).T + missing
    found: F32 = (scales[order] * (codes - zeros[order]).astype(np.float32)).T
    return found


@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("group", [16, 32, 64, -1])
@pytest.mark.parametrize("ordered", [False, True])
def test_gptq_is_what_its_definition_says(bits, group, version, ordered, tmp_path: Path) -> None:
    size = K if group == -1 else group
    order = np.arange(K) // size
    order = RNG.permutation(order) if ordered else order
    tensors = gptq(bits, size, order)
    config = {"bits": bits, "group_size": group, "desc_act": ordered, "checkpoint_format": version}
    checkpoint = open_checkpoint(write(tmp_path / "m", GPTQ | config, tensors))
    expected = expect(tensors, bits, order, version == "gptq")
    kind = checkpoint.tensors["m.weight"].kind
    assert kind.endswith("_order") == (ordered and group in (32,)) and (kind == "bf16") == (
        group == 16
    )
    assert checkpoint.opened == (group == 16)
    if group == 16:
        assert np.abs(read(checkpoint) - expected).max() <= np.abs(expected).max() / 256
    else:
        assert np.array_equal(read(checkpoint), expected)


def test_zero_points_of_16_are_not_masked(tmp_path: Path) -> None:
    tensors = gptq() | {"m.qzeros": np.full((2, N // 8), -1, np.int32)}
    checkpoint = open_checkpoint(write(tmp_path / "m", GPTQ, tensors))
    rows = checkpoint.read("m.weight", 3, 9)
    assert isinstance(rows, GroupedWeight) and rows.zeros is not None and (rows.zeros == 16).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_symmetric_weights_keep_no_zero_points(bits: int, tmp_path: Path) -> None:
    middle = np.full((N, 2), (1 << bits - 1) - 1)
    tensors = gptq(bits) | {"m.qzeros": pack(middle, bits).T.copy()}
    checkpoint = open_checkpoint(write(tmp_path / "m", GPTQ | {"bits": bits, "sym": True}, tensors))
    assert checkpoint.tensors["m.weight"].kind == ("q4_0" if bits == 4 else "q8_0")
    assert np.array_equal(read(checkpoint), expect(tensors, bits, np.arange(K) // 32, 1))


def test_modules_of_other_bits_are_seen_from_their_shapes(tmp_path: Path) -> None:
    other = {name.replace("m.", "o."): t for name, t in gptq(8, 64).items()}
    config = GPTQ | {"dynamic": {"+:o": {"bits": 8, "group_size": 64}}}
    checkpoint = open_checkpoint(write(tmp_path / "m", config, gptq() | other))
    kinds = {name: info.kind for name, info in checkpoint.tensors.items()}
    assert kinds == {"m.weight": "u4_g32", "o.weight": "u8_g64_zf"}
    lie = {"o.qzeros": np.zeros((1, 5), np.int32)}
    with pytest.raises(
        CheckpointError,
        match=r"'o.qzeros' is \[1, 5\], which fits none of the bits 4, 8 and groups 32, 64",
    ):
        open_checkpoint(write(tmp_path / "l", config, gptq() | other | lie))


@pytest.mark.parametrize(
    ("file", "config", "tensors"),
    [
        ("quantize_config.json", {k: v for k, v in GPTQ.items() if k != "quant_method"}, gptq()),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 32, "version": "GEMM"}, awq()),
    ],
)
def test_configs_in_files_of_their_own(file, config, tensors, tmp_path: Path) -> None:
    path = write(tmp_path / "m", None, tensors)
    (path / file).write_text(json.dumps(config))
    (path / "model.safetensors").rename(path / "gptq_model-4bit-32g.safetensors")
    checkpoint = open_checkpoint(path)
    whole = write(tmp_path / "w", GPTQ if file[5] == "i" else AWQ, tensors)
    assert np.array_equal(read(checkpoint), read(open_checkpoint(whole)))
    before = checkpoint.fingerprint
    (path / file).write_text(json.dumps(config | {"damp_percent": 0.1}))
    assert open_checkpoint(path).fingerprint != before


def test_pytorch_files_hold_them_too(tmp_path: Path) -> None:
    arrays = gptq(4, 32, np.arange(K) // 32)
    path = write(tmp_path / "m", GPTQ, arrays)
    expected = read(open_checkpoint(path))
    (path / "model.safetensors").unlink()
    kinds = {"i4": "IntStorage", "f2": "HalfStorage"}
    items = {
        name: tensor(storage(kinds[array.dtype.str[1:]], name, array.size), array.shape)
        for name, array in arrays.items()
    }
    held = {name: array.tobytes() for name, array in arrays.items()}
    (path / "pytorch_model.bin").write_bytes(archive(state(items), held))
    assert np.array_equal(read(open_checkpoint(path)), expected)


def test_older_compressed_tensors_have_their_config_elsewhere(tmp_path: Path) -> None:
    weights = {"num_bits": 8, "type": "int", "strategy": "channel"}
    config = {"format": "int-quantized", "config_groups": {"g": {"weights": weights}}}
    codes = RNG.integers(-128, 128, (N, K)).astype(np.int8)
    scales = RNG.uniform(0.1, 1, (N, 1)).astype(np.float16)
    path = write(tmp_path / "m", None, {"m.weight": codes, "m.weight_scale": scales})
    (path / "config.json").write_text(json.dumps({"compression_config": config}))
    checkpoint = open_checkpoint(path)
    assert checkpoint.quantisation == "compressed-tensors"
    assert np.array_equal(read(checkpoint), codes * scales.astype(np.float32))


def test_modelopt_has_a_config_of_its_own(tmp_path: Path) -> None:
    codes = RNG.integers(0, 256, (N, K // 2)).astype(np.uint8)
    tensors: Arrays = {
        "m.weight": codes,
        "m.weight_scale": np.full((N, K // 16), 0x40, np.uint8),  # 2
        "m.weight_scale_2": np.array(0.25, np.float32),
        "m.input_scale": np.array(0.5, np.float32),
    }
    path = write(tmp_path / "m", None, tensors, {"m.weight_scale": "F8_E4M3"})
    about = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}
    (path / "hf_quant_config.json").write_text(json.dumps(about))
    checkpoint = open_checkpoint(path)
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    expected = table[np.stack((codes & 15, codes >> 4), 2).reshape(N, K)] / 2
    assert checkpoint.tensors["m.weight"].kind == "nvfp4_rows"
    assert np.array_equal(read(checkpoint), expected)


@pytest.mark.parametrize(
    ("stated", "kind", "says"),
    [("FP8", "U8", "FP8, but tensor 'm.weight' is u8"), ("NVFP4", "F8_E4M3", "NVFP4, but .* e4m3")],
)
def test_modelopt_is_held_to_its_algorithm(
    stated: str, kind: str, says: str, tmp_path: Path
) -> None:
    tensors: Arrays = {
        "m.weight": np.ones((N, K), np.uint8),
        "m.weight_scale": np.ones((), np.float32),
    }
    config = {"quant_method": "modelopt", "quant_algo": stated}
    path = write(tmp_path / "m", config, tensors, {"m.weight": kind})
    with pytest.raises(CheckpointError, match=f"quant_algo = {says}"):
        open_checkpoint(path)


def test_mxfp8_is_what_its_definition_says(tmp_path: Path) -> None:
    """E4M3 (bias 7) in groups of 32 with exponents, 127 for 1."""
    codes = RNG.integers(0, 256, (N, K)).astype(np.uint8)
    codes[codes & 0x7F == 0x7F] = 0x38
    powers = RNG.integers(110, 140, (N, K // 32)).astype(np.uint8)
    weights = {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32,
               "scale_dtype": "torch.uint8"}  # fmt: skip
    config = {"quant_method": "compressed-tensors", "format": "mxfp8-quantized",
              "config_groups": {"g": {"weights": weights}}}  # fmt: skip
    tensors: Arrays = {"m.weight": codes, "m.weight_scale": powers}
    checkpoint = open_checkpoint(write(tmp_path / "m", config, tensors, {"m.weight": "F8_E4M3"}))
    exponent, digits = codes >> 3 & 15, codes & 7
    value = np.where(exponent, 8 + digits, digits) * 2.0 ** (np.maximum(exponent, 1) - 10.0)
    signed = np.where(codes >> 7, -value, value)
    expected = signed * np.repeat(2.0 ** (powers - 127.0), 32, axis=1)
    assert checkpoint.tensors["m.weight"].kind == "e4m3_g32_f32" and not checkpoint.opened
    assert np.array_equal(read(checkpoint), expected)


def test_scales_of_a_cache_go_with_the_keys(tmp_path: Path) -> None:
    codes = RNG.integers(-128, 128, (N, K)).astype(np.int8)
    tensors: Arrays = {
        "a.k_proj.weight": codes,
        "a.k_proj.weight_scale": np.ones((N, 1), np.float16),
        "a.k_scale": np.ones(1, np.float32),
        "a.v_scale": np.ones(1, np.float32),
    }
    weights = {"num_bits": 8, "type": "int", "strategy": "channel"}
    config = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8},
              "config_groups": {"g": {"weights": weights}}}  # fmt: skip
    checkpoint = open_checkpoint(write(tmp_path / "m", config, tensors))
    assert set(checkpoint.tensors) == {"a.k_proj.weight"}


def pair_plan() -> WeightPlan:
    sources = tuple(Source(f"{m}.weight", (N, K), N) for m in "mo")
    return WeightPlan((SlotPlan("pair", (2 * N, K), sources),))


def test_neighbours_with_orders_of_their_own_stay_apart(tmp_path: Path) -> None:
    order = np.arange(K) // 32
    both = gptq(order=RNG.permutation(order))
    both |= {k.replace("m.", "o."): t for k, t in gptq(order=RNG.permutation(order)).items()}
    path = write(tmp_path / "m", GPTQ | {"desc_act": True}, both)
    ops = CpuOps(2, None, "f32")
    packed = loader.load(open_checkpoint(path), pair_plan(), ops)["pair"]
    assert isinstance(packed, tuple) and len(packed) == 2
    x = RNG.standard_normal((3, K)).astype(np.float32)
    checkpoint = open_checkpoint(path)
    dense = np.concatenate([read(checkpoint, "m.weight"), read(checkpoint, "o.weight")])
    assert np.abs(ops.linear(x, packed) - x @ dense.T).max() < 1e-3 * np.abs(x @ dense.T).max()


def test_biases_of_zeros_are_passed_over(tmp_path: Path) -> None:
    """Older writers of GPTQ gave every matrix one."""
    plan = WeightPlan((SlotPlan("one", (N, K), (Source("m.weight", (N, K), N),)),))
    for value, says in ((0, None), (1, "1 tensor is not used by this model: 'm.bias'")):
        tensors = gptq() | {"m.bias": np.full(N, value, np.float16)}
        checkpoint = open_checkpoint(write(tmp_path / str(value), GPTQ, tensors))
        assert [*loader.find_misfits(checkpoint, plan)] == ([says] if says else [])


def test_codes_without_a_config_are_named(tmp_path: Path) -> None:
    plan = WeightPlan((SlotPlan("one", (N, K), (Source("m.weight", (N, K), N),)),))
    tensors: Arrays = {"m.weight": np.zeros((N, K), np.uint8)}
    checkpoint = open_checkpoint(write(tmp_path / "m", None, tensors, {"m.weight": "F8_E4M3"}))
    (said,) = loader.find_misfits(checkpoint, plan)
    assert said.endswith("codes without a meaning: config.json has no quantization_config for it")


def test_codes_of_another_method_are_named(tmp_path: Path) -> None:
    plan = WeightPlan((SlotPlan("one", (N, K), (Source("m.weight", (N, K), N),)),
                       SlotPlan("two", (N, K), (Source("o.weight", (N, K), N),))))  # fmt: skip
    tensors: Arrays = gptq() | {"o.weight": np.zeros((N, K), np.int8)}
    (said,) = loader.find_misfits(open_checkpoint(write(tmp_path / "m", GPTQ, tensors)), plan)
    assert said == (
        "tensor 'o.weight' is i8, codes without a meaning: gptq, the quant_method of "
        "quantization_config, has no such matrices"
    )


def test_a_survey_lists_bad_scales(tmp_path: Path) -> None:
    tensors = gptq()
    tensors["m.scales"][0, 3] = np.nan
    checkpoint = open_checkpoint(write(tmp_path / "m", GPTQ, tensors))
    (said,) = find_value_faults(checkpoint)
    assert "'m.scales' has values that are not finite" in said


def test_unknown_methods_are_named(tmp_path: Path) -> None:
    config = {"model_type": "llama", "quantization_config": {"quant_method": "aqlm"}}
    with pytest.raises(CheckpointError, match=r"quant_method = 'aqlm' is not supported; known: "):
        find_family(config)


def test_awq_without_zero_points_has_the_middle(tmp_path: Path) -> None:
    tensors = awq() | {"m.qzeros": np.full((K // 32, N // 8), 0x88888888 - (1 << 32), np.int32)}
    plain, kept = (
        open_checkpoint(write(tmp_path / str(held), AWQ | {"zero_point": held}, tensors))
        for held in (False, True)
    )
    assert (plain.tensors["m.weight"].kind, kept.tensors["m.weight"].kind) == ("q4_0", "u4_g32")
    assert np.array_equal(read(plain), read(kept))
