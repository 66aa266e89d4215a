"""Every lie that a folder of quantised matrices can tell is one line that names the tensor or the
config's field.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flyweight.errors import CheckpointError
from flyweight.models.registry import find_family
from flyweight.weights.checkpoint import open_checkpoint
from quantised_folders import (
    AWQ,
    EIGHT,
    EIGHT_BITS,
    GPTQ,
    HALF,
    ORDER,
    STATIC,
    WEIGHTS,
    Arrays,
    K,
    N,
    awq,
    eight,
    gptq,
    packed,
    schemes,
    write,
)

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
        GPTQ, gptq() | {"m.weight": np.ones((N, K), HALF)}, "'m.weight' is present twice",
    ),
    "a config that is a list": ([4], gptq(), r"quantization_config = \[4\]; an object expected"),
    "AWQ's other layouts": (AWQ | {"version": "gemv"}, awq(), "version = 'gemv'; gemm expected"),
    "AWQ of 3 bits": (AWQ | {"bits": 3}, awq(), "bits = 3; 4 expected"),
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
        "has no input_activations.dynamic = false, but the folder has tensor 'm.input_scale'",
    ),
    "weights that are dynamic": (
        schemes(dynamic=True), packed(), "weights.dynamic = true; false expected",
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
        "config_groups.g.input_activations.num_bits = 4; 8 expected",
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
        schemes(), packed() | {"m.weight": np.ones((N, K), HALF)}, "present twice",
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


@pytest.mark.parametrize(("method", "near"), [("GPTQ", "gptq"), ("FP8", "fp8"), ("hqqq", "hqq")])
def test_methods_have_a_nearest_name(method: str, near: str) -> None:
    config = {"model_type": "llama", "quantization_config": {"quant_method": method}}
    with pytest.raises(CheckpointError, match=rf"quant_method = '{method}' .*mean '{near}'\?\)"):
        find_family(config)


def test_two_schemes_that_both_fit_are_refused(tmp_path: Path) -> None:
    config = schemes(num_bits=8, group_size=16)
    config["config_groups"]["h"] = {"weights": WEIGHTS}
    tensors = packed() | {"m.weight_packed": np.zeros((N, K // 8), np.int32)}
    with pytest.raises(CheckpointError, match=r"fits several schemes of .*config_groups"):
        open_checkpoint(write(tmp_path / "m", config, tensors))


def test_a_config_next_to_is_read_as_strictly(tmp_path: Path) -> None:
    path = write(tmp_path / "m", None, gptq())
    (path / "quantize_config.json").write_text(json.dumps({"bits": 7, "group_size": 32}))
    with pytest.raises(CheckpointError, match=r"quantization_config.bits = 7"):
        open_checkpoint(path)
