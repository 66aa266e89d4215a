"""Every lie that a folder of quantised matrices can tell is one line that names the tensor or the
config's field.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flyweight.errors import CheckpointError
from flyweight.models.registry import find_family
from flyweight.ops.grouped import GroupedWeight
from flyweight.weights.checkpoint import open_checkpoint
from quantised_folders import AWQ, GPTQ, RNG, Arrays, K, N, awq, gptq, write

ORDER = np.arange(K) // 32
HALF = np.float16
WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}


def schemes(form: str = "pack-quantized", inputs: Any = None, **weights: Any) -> dict[str, Any]:
    scheme = {"targets": ["Linear"], "weights": WEIGHTS | weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"g": scheme}}


def packed(**change: Any) -> Arrays:
    found: Arrays = {
        "m.weight_packed": RNG.integers(-(2**31), 2**31, (N, K // 8)).astype(np.int32),
        "m.weight_scale": RNG.uniform(0.1, 1, (N, K // 32)).astype(HALF),
        "m.weight_shape": np.array([N, K], np.int64),
    }
    return {name: t for name, t in (found | change).items() if t is not None}


def eight(**change: Any) -> Arrays:
    found: Arrays = {
        "m.weight": RNG.integers(-128, 128, (N, K)).astype(np.int8),
        "m.weight_scale": RNG.uniform(0.1, 1, (N, 1)).astype(HALF),
    }
    return found | change


EIGHT_BITS = {"num_bits": 8, "strategy": "channel", "group_size": None}
EIGHT = schemes("int-quantized", **EIGHT_BITS)
STATIC = schemes("int-quantized", {"num_bits": 8, "dynamic": False}, **EIGHT_BITS)

# what is claimed: a config, tensors, and what the error says
CLAIMS: dict[str, tuple[Any, Arrays, str]] = {
    "bits of 5": (GPTQ | {"bits": 5}, gptq(), r"quantization_config.bits = 5; one of 2, 3, 4, 8"),
    "bits as text": (GPTQ | {"bits": "4"}, gptq(), r"bits = '4'; one of"),
    "group of 0": (GPTQ | {"group_size": 0}, gptq(), "group_size = 0; -1 or a whole number"),
    "a group that does not divide": (
        GPTQ | {"group_size": 48}, gptq(), r"'m.qweight' has 64 x 32 codes .* group_size = 48",
    ),
    "zero points of another width": (
        GPTQ, gptq() | {"m.qzeros": np.zeros((2, N // 4), np.int32)},
        r"'m.qzeros' is i32 \[2, 8\]; i32 \[2, 4\] expected for 'm.qweight'",
    ),
    "scales of another shape": (
        GPTQ, gptq() | {"m.scales": np.ones((4, N), HALF)},
        r"'m.scales' is f16 \[4, 32\]; .*\[2, 32\]",
    ),
    "scales of whole numbers": (
        GPTQ, gptq() | {"m.scales": np.ones((2, N), np.int32)}, "'m.scales' is i32",
    ),
    "no scales": (GPTQ, {k: v for k, v in gptq().items() if "scales" not in k},
                  "'m.scales' is missing; 'm.qweight' needs it"),
    "codes of three axes": (
        GPTQ, gptq() | {"m.qweight": np.zeros((1, 8, N), np.int32)},
        r"'m.qweight' is i32 \[1, 8, 32\]",
    ),
    "no columns": (GPTQ, gptq() | {"m.qweight": np.zeros((0, N), np.int32)}, "has 0 x 32 codes"),
    "no order where desc_act says so": (
        GPTQ | {"desc_act": True}, gptq(), "'m.g_idx' is missing; 'm.qweight' with desc_act = true",
    ),
    "an order of other length": (
        GPTQ | {"desc_act": True}, gptq(order=ORDER[:32]), r"'m.g_idx' is i32 \[32\]",
    ),
    "an unknown version": (
        GPTQ | {"checkpoint_format": "marlin"}, gptq(),
        r"checkpoint_format = 'marlin'; one of gptq,",
    ),
    "bits that are a float": (GPTQ | {"bits": 4.0}, gptq(), "bits = 4.0; one of 2, 3, 4, 8"),
    "two orders": (
        GPTQ | {"desc_act": False, "actOrder": True}, gptq(),
        "actOrder = true contradicts desc_act = false",
    ),
    "desc_act of 1": (GPTQ | {"desc_act": 1}, gptq(), "desc_act = 1; one of false, true"),
    "a method over tensors of another": (
        AWQ, gptq(),
        r"'m.qzeros' is i32|'m.scales' is f16|columns",
    ),
    "GPTQ over AWQ's tensors": (GPTQ, awq(), r"'m\.\w+' is|codes of 4 bits"),
    "a method over plain tensors": (
        GPTQ, {"m.weight": np.ones((N, K), HALF)},
        "quant_method = 'gptq', but no tensor is in that",
    ),
    "a matrix twice": (
        GPTQ, gptq() | {"m.weight": np.ones((N, K), HALF)}, "'m.weight' is there twice",
    ),
    "a config that is a list": ([4], gptq(), r"quantization_config = \[4\]; an object expected"),
    "AWQ's other layouts": (AWQ | {"version": "gemv"}, awq(), "version = 'gemv'; one of gemm"),
    "AWQ of 3 bits": (AWQ | {"bits": 3}, awq(), "bits = 3; one of 4"),
    "AWQ's group missing": (
        {k: v for k, v in AWQ.items() if k != "group_size"}, awq(), "group_size = null; a whole",
    ),
    "sparse": (
        schemes() | {"sparsity_config": {"format": "sparse-24"}}, packed(), "sparsity_config = ",
    ),
    "rotated": (
        schemes() | {"transform_config": {"config_groups": {"R1": {}}}}, packed(),
        "transform_config = ",
    ),
    "an unknown format": (schemes("marlin-24"), packed(), "format = 'marlin-24'; one of"),
    "no schemes": (
        {"quant_method": "compressed-tensors", "config_groups": {}}, packed(),
        r"config_groups = \{\}; an object of schemes expected",
    ),
    "a scheme of text": (
        {"quant_method": "compressed-tensors", "config_groups": {"g": "W4A16"}}, packed(),
        "config_groups.g = 'W4A16'; a scheme with weights expected",
    ),
    "a strategy that is not known": (schemes(strategy="row"), packed(), "strategy = 'row'; one of"),
    "a group without its strategy": (
        schemes(strategy="channel"), packed(), "weights.group_size = 32 for strategy channel",
    ),
    "a block that is a word": (
        schemes(strategy="block", group_size=None, block_structure="128x128"), packed(),
        "block_structure = '128x128'",
    ),
    "scales that fit no scheme": (
        schemes(group_size=64), packed(),
        r"with scales f16 \[32, 2\] fits no scheme of .* group of 64",
    ),
    "activations with zero points": (
        schemes(inputs={"num_bits": 8, "symmetric": False}), packed(),
        "input_activations.symmetric = false",
    ),
    "zero points missing": (
        schemes(symmetric=False), packed(), "'m.weight_zero_point' is missing",
    ),
    "an order missing": (schemes(actorder="group"), packed(), "'m.weight_g_idx' is missing"),
    "an unknown order": (
        schemes(actorder="groups"), packed(),
        r"config_groups.g.weights.actorder = 'groups'; one of group, .*did you mean 'group'",
    ),
    "an order of numbers": (schemes(actorder=1), packed(), "weights.actorder = 1; one of group,"),
    "bits of a scheme": (
        schemes(num_bits=9), packed(),
        "/m: quantization_config.config_groups.g.weights.num_bits = 9; one of 2, 3,",
    ),
    "static activations without scales": (
        STATIC, eight(),
        "'m.input_scale' is missing; 'm.weight' with input_activations.dynamic = false needs it",
    ),
    "a static scale of dynamic activations": (
        EIGHT, eight(**{"m.input_scale": np.ones(1, np.float32)}),
        "has no input_activations.dynamic = false, but tensor 'm.input_scale' is there",
    ),
    "weights that are dynamic": (
        schemes(dynamic=True), packed(), "weights.dynamic = true; one of false",
    ),
    "activations of another word": (
        schemes("int-quantized", {"num_bits": 8, "dynamic": "static"}, **EIGHT_BITS), eight(),
        "config_groups.g.input_activations.dynamic = 'static'; one of true, false",
    ),
    "modules of a number": (GPTQ | {"dynamic": 5}, gptq(), "dynamic = 5; an object expected"),
    "bits as text beside modules": (
        GPTQ | {"bits": "4", "dynamic": {"+:m": {"bits": 8}}}, gptq(), "bits = '4'; one of 2, 3",
    ),
    "a module of a number": (
        GPTQ | {"dynamic": {"+:m": 8}}, gptq(),
        r"quantization_config.dynamic\['\+:m'\] = 8; an object expected",
    ),
    "a module of 5 bits": (
        GPTQ | {"dynamic": {"+:m": {"bits": 5}}}, gptq(), r"dynamic\['\+:m'\].bits = 5; one of 2,",
    ),
    "bits that no module has": (
        GPTQ | {"bits": 8, "dynamic": {"+:o": {"bits": 3}, "-:p": None}}, gptq(),
        r"'m.qzeros' is \[2, 4\], which fits none of the bits 8, 3 and groups 32 of quant",
    ),
    "a group that no module has": (
        GPTQ | {"group_size": 64, "dynamic": {"+:o": {"group_size": -1}}}, gptq(),
        r"'m.qzeros' is \[2, 4\], which fits none of the bits 4 and groups 64, -1 of quant",
    ),
    "AutoRound's modules of 5 bits": (
        GPTQ | {"quant_method": "auto-round", "extra_config": {"m": {"bits": 5}}}, gptq(),
        r"quantization_config.extra_config\['m'\].bits = 5; one of 2, 3, 4, 8",
    ),
    "AWQ's bits twice": (
        AWQ | {"w_bit": 8, "q_group_size": 32}, awq(), "w_bit = 8 contradicts bits = 4",
    ),
    "AWQ's groups twice": (
        AWQ | {"w_bit": 4, "q_group_size": 64}, awq(), "q_group_size = 64 contradicts group_size",
    ),
    "sparse by a number": (
        schemes() | {"sparsity_config": 5}, packed(), "sparsity_config = 5; an object expected",
    ),
    "activations of 4 bits": (
        schemes("int-quantized", {"num_bits": 4, "dynamic": True}, **EIGHT_BITS), eight(),
        "config_groups.g.input_activations.num_bits = 4; one of 8",
    ),
    "activations of text": (
        schemes("int-quantized", "int8", **EIGHT_BITS), eight(),
        "config_groups.g.input_activations = 'int8'; an object expected",
    ),
    "AutoRound's modules of a number": (
        GPTQ | {"quant_method": "auto-round", "extra_config": [5]}, gptq(),
        r"quantization_config.extra_config = \[5\]; an object expected",
    ),
    "GPTQ without a config": (
        None, gptq(), "'m.qweight' is of a matrix quantised as gptq or awq; config.json has no "
        "quantization_config, and there is no quantize_config.json",
    ),
    "compressed-tensors without a config": (
        None, packed(), "'m.weight_packed' is of a matrix quantised as compressed-tensors; config",
    ),
    "packed and plain": (
        schemes(), packed() | {"m.weight": np.ones((N, K), HALF)}, "there twice",
    ),
    "scales missing": (
        schemes(), {k: v for k, v in packed().items() if "scale" not in k},
        "'m.weight_scale' is missing",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CLAIMS)
def test_what_headers_say_is_held_to_the_config(case: str, tmp_path: Path) -> None:
    config, tensors, says = CLAIMS[case]
    with pytest.raises(CheckpointError, match=says) as caught:
        open_checkpoint(write(tmp_path / "m", config, tensors))
    assert "\n" not in str(caught.value) and str(tmp_path / "m") in str(caught.value)


PAST = r"'m.\w+' has values that are not finite: its scales times its codes come to \S+, past 3.39"
BAD = np.array([[1, np.nan] * (N // 2)] * 2, HALF)
SYMMETRIC = GPTQ | {"sym": True}
ORDERED = GPTQ | {"desc_act": True}
VALUES: dict[str, tuple[Any, Arrays, str]] = {
    "scales that are no numbers": (GPTQ, gptq() | {"m.scales": BAD}, "'m.scales' has values that"),
    "scales of bfloat16 that are none": (
        GPTQ, gptq() | {"m.scales": np.full((2, N), 0x7F80, np.uint16)},
        "'m.scales' has values that",
    ),
    "AWQ's scales that are no numbers": (
        AWQ, awq() | {"m.scales": BAD},
        "'m.scales' has values that",
    ),
    "zero points that are not the middle": (
        SYMMETRIC, gptq() | {"m.qzeros": np.full((2, N // 8), 0x66666666, np.int32)},
        r"'m.qzeros' holds the zero point 7, but quantization_config.sym = true, .* are all 8",
    ),
    "AWQ's zero points that are not the middle": (
        AWQ | {"zero_point": False}, awq(), "but quantization_config.zero_point = false, .* all 8",
    ),
    "a group out of range": (
        ORDERED, gptq(order=np.where(np.arange(K) == 3, 2, ORDER)), "'m.g_idx' names group 2 of 2",
    ),
    "a group below 0": (
        ORDERED, gptq(order=np.where(np.arange(K) == 3, -1, ORDER)), "names group -1 of 2",
    ),
    "groups of other sizes": (
        ORDERED, gptq(order=np.where(np.arange(K) == 3, 1, ORDER)),
        "puts 31 columns into group 0; every group has 32",
    ),
    "an order that desc_act denies": (
        GPTQ, gptq(order=ORDER[::-1].copy()), "in another order, but .*desc_act = false",
    ),
    "a shape that is not the codes'": (
        schemes(), packed(**{"m.weight_shape": np.array([N, K + 1])}),
        r"'m.weight_shape' says \[32, 65\], the codes are of \[32, 64\]",
    ),
    "an order that actorder denies": (
        schemes(), packed(**{"m.weight_g_idx": ORDER[::-1].astype(np.int32)}),
        "in another order, but quantization_config has no actorder",
    ),
    "scales too large for their codes": (
        GPTQ, gptq() | {"m.scales": np.full((2, N), 3e38, np.float32)}, PAST,
    ),
    "scales too large for AWQ's codes": (
        AWQ, awq() | {"m.scales": np.full((2, N), 0x7F7F, np.uint16)}, PAST,
    ),
    "scales a row too large": (
        EIGHT, eight(**{"m.weight_scale": np.full((N, 1), 3e38, np.float32)}), PAST,
    ),
    "a static scale of 0": (
        STATIC, eight(**{"m.input_scale": np.zeros(1, np.float32)}),
        "'m.input_scale' = 0.0; a scale above 0 expected",
    ),
    "a static scale without a reciprocal": (
        STATIC, eight(**{"m.input_scale": np.full(1, 1e-40, np.float32)}),
        "'m.input_scale' = 9.9\\d+e-41; a scale from 1.2e-38 to 8.5e\\+37 expected",
    ),
    "a static scale too large for the codes": (
        STATIC, eight(**{"m.input_scale": np.full(1, 8e37, np.float32)}),
        "has products that are not finite: its input_scale is 8e\\+37, and its scales times",
    ),
    "zero points of symmetric weights": (
        EIGHT, eight(**{"m.weight_zero_point": np.ones((N, 1), np.int8)}), "holds zero points, but",
    ),
    "zero points of activations": (
        EIGHT, eight(**{"m.input_zero_point": np.ones(1, np.int8)}),
        "'m.input_zero_point' is not 0",
    ),
    "scales a row that are infinite": (
        EIGHT, eight(**{"m.weight_scale": np.full((N, 1), np.inf, HALF)}),
        "has values that are not",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", VALUES)
def test_values_are_held_to_the_config(case: str, tmp_path: Path) -> None:
    config, tensors, says = VALUES[case]
    checkpoint = open_checkpoint(write(tmp_path / "m", config, tensors))
    with pytest.raises(CheckpointError, match=says) as caught:
        checkpoint.read("m.weight", 0, N)
    assert "\n" not in str(caught.value)


FLOATS = schemes("float-quantized", num_bits=8, type="float", strategy="channel", group_size=None)
NVFP4 = schemes("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group",
                group_size=16)  # fmt: skip


MXFP4 = schemes("mxfp4-pack-quantized", num_bits=4, type="float")


def nvfp4(scale: int = 0x38, whole: float = 1.0) -> Arrays:
    return {
        "m.weight_packed": RNG.integers(0, 256, (N, K // 2)).astype(np.uint8),
        "m.weight_scale": np.full((N, K // 16), scale, np.uint8),
        "m.weight_global_scale": np.array([whole], np.float32),
    }


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: nvfp4(0x7F), "'m.weight_scale' has values that are not finite"),
        (lambda: nvfp4(whole=0.0), "'m.weight_global_scale' = 0.0; a scale above 0"),
        (lambda: nvfp4(whole=np.nan), "'m.weight_global_scale' = nan; a scale above 0"),
    ],
)
def test_floats_must_be_numbers(make: Callable[[], Arrays], says: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m", NVFP4, make(), {"m.weight_scale": "F8_E4M3"})
    with pytest.raises(CheckpointError, match=says):
        open_checkpoint(path).read("m.weight", 0, N)


@pytest.mark.parametrize(
    ("exponent", "says"), [(254, PAST), (255, "'m.weight_scale' has values that are not finite")]
)
def test_exponents_past_the_largest_number(exponent: int, says: str, tmp_path: Path) -> None:
    tensors = nvfp4() | {"m.weight_scale": np.full((N, K // 32), exponent, np.uint8)}
    del tensors["m.weight_global_scale"]
    with pytest.raises(CheckpointError, match=says):
        open_checkpoint(write(tmp_path / "m", MXFP4, tensors)).read("m.weight", 0, N)
    found = open_checkpoint(
        write(tmp_path / "n", MXFP4, tensors | {"m.weight_scale": tensors["m.weight_scale"] - 4})
    )
    found.read("m.weight", 0, N)


@pytest.mark.parametrize("scale", [0.0, np.nan, -1.0])
def test_static_scales_of_fp8_must_be_numbers(scale: float, tmp_path: Path) -> None:
    tensors: Arrays = {
        "m.weight": np.ones((N, K), np.uint8),
        "m.weight_scale": np.ones((N, 1), np.float32),
        "m.input_scale": np.full(1, scale, np.float32),
    }
    path = write(tmp_path / "m", FLOATS, tensors, {"m.weight": "F8_E4M3"})
    with pytest.raises(CheckpointError, match=rf"'m.input_scale' = {scale}; a scale above 0 expec"):
        open_checkpoint(path).read("m.weight", 0, N)


def test_a_block_of_all_columns_has_scales_in_a_row(tmp_path: Path) -> None:
    """Whether they have one axis or two."""
    config = schemes(
        "float-quantized", num_bits=8, type="float", strategy="block", group_size=None,
        block_structure=[16, K],
    )  # fmt: skip
    codes = np.full((N, K), 0x38, np.uint8)  # 1
    for shape in ((2,), (2, 1)):
        scales = np.array([1, 2], np.float32).reshape(shape)
        path = write(tmp_path / "m", config, {"m.weight": codes, "m.weight_scale": scales},
                     {"m.weight": "F8_E4M3"})  # fmt: skip
        rows = open_checkpoint(path).read("m.weight", 0, N)
        assert isinstance(rows, GroupedWeight)
        assert np.array_equal(rows.dequantize()[:, 5], np.repeat([1, 2], 16))


def test_scales_as_large_as_their_codes_allow_are_read(tmp_path: Path) -> None:
    tensors = eight(**{"m.weight_scale": np.full((N, 1), 2e36, np.float32)})
    rows = open_checkpoint(write(tmp_path / "m", EIGHT, tensors)).read("m.weight", 0, N)
    assert isinstance(rows, GroupedWeight) and np.isfinite(rows.dequantize()).all()


@pytest.mark.parametrize(("method", "near"), [("GPTQ", "gptq"), ("FP8", "fp8"), ("hqqq", "hqq")])
def test_methods_have_a_nearest_name(method: str, near: str) -> None:
    config = {"model_type": "llama", "quantization_config": {"quant_method": method}}
    with pytest.raises(CheckpointError, match=rf"quant_method = '{method}' .*mean '{near}'\?\)"):
        find_family(config)


def test_codes_of_fp8_must_be_numbers(tmp_path: Path) -> None:
    codes = np.full((N, K), 0x7F, np.uint8)
    tensors: Arrays = {"m.weight": codes, "m.weight_scale": np.ones((N, 1), np.float32)}
    path = write(tmp_path / "m", FLOATS, tensors, {"m.weight": "F8_E4M3"})
    with pytest.raises(CheckpointError, match=r"'m.weight' has values that are not finite"):
        open_checkpoint(path).read("m.weight", 0, N)


def test_two_schemes_that_both_fit_are_refused(tmp_path: Path) -> None:
    config = schemes(num_bits=8, group_size=16)
    config["config_groups"]["h"] = {"weights": WEIGHTS}
    tensors = packed() | {"m.weight_packed": np.zeros((N, K // 8), np.int32)}
    with pytest.raises(CheckpointError, match=r"fits several schemes of .*config_groups"):
        open_checkpoint(write(tmp_path / "m", config, tensors))


def test_a_config_beside_is_read_as_strictly(tmp_path: Path) -> None:
    path = write(tmp_path / "m", None, gptq())
    (path / "quantize_config.json").write_text(json.dumps({"bits": 7, "group_size": 32}))
    with pytest.raises(CheckpointError, match=r"quantization_config.bits = 7"):
        open_checkpoint(path)
