"""Folders of quantised matrices whose config says one thing and whose tensors another, and finite
scales that make values that are not: refused in one line that names both.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edited_folder import QUANTIZED, EditedFolder, Lie, Q, W, check_lie, config, load_all, put
from flyweight.describe import describe
from flyweight.errors import CheckpointError, ConfigError

FIRST = "model.layers.0.mlp.down_proj"  # the matrix that is read first
PAST = f"tensor '{W}' has scales that are too large: times their codes they come to "


BITSANDBYTES: dict[str, Lie] = {
    "said to be FP4": (
        "bnb-nf4",
        config(bnb_4bit_quant_type="fp4"),
        f"bnb_4bit_quant_type = fp4, but tensor '{FIRST}.weight' is nf4",
    ),
    "said to be NF4": (
        "bnb-fp4",
        config(bnb_4bit_quant_type="nf4"),
        f"bnb_4bit_quant_type = nf4, but tensor '{FIRST}.weight' is fp4",
    ),
    "said to be NF5": (
        "bnb-nf4",
        config(bnb_4bit_quant_type="nf5"),
        "quantization_config.bnb_4bit_quant_type = 'nf5'; one of nf4, fp4 (did you mean 'nf4'?)",
    ),
    "said to be both": (
        "bnb-nf4",
        config(load_in_8bit=True),
        "quantization_config.load_in_4bit = true contradicts load_in_8bit = true",
    ),
    "said to be the other": (
        "bnb-nf4",
        config(load_in_4bit=None, load_in_8bit=True),
        f"load_in_8bit = true, but tensor '{FIRST}.weight' is in the format of load_in_4bit",
    ),
    "said with a word": (
        "bnb-nf4",
        config(load_in_4bit="yes"),
        "load_in_4bit = 'yes'; one of true, false",
    ),
}
FP8: dict[str, Lie] = {
    "another format": (
        "fp8-block",
        config(fmt="e5m2"),
        f"quantization_config.fmt = e5m2, but tensor '{FIRST}.weight' is e4m3",
    ),
    "a format of 4 bits": ("fp8-block", config(fmt="e2m1"), "fmt = 'e2m1'; one of e4m3, e5m2, "),
    "static NaN": (
        "fp8-static",
        put(f"{Q}.input_scale", np.nan),
        "q_proj.input_scale' = nan; a scale above 0 expected",
    ),
    "static 0": ("fp8-static", put(f"{Q}.input_scale", 0), "q_proj.input_scale' = 0.0; a scale"),
}
HQQ: dict[str, Lie] = {
    "bits of the config": (
        "hqq-4",
        config(quant_config={"weight_quant_params": {"nbits": 3}}),
        f"quant_config.weight_quant_params.nbits = 3, but tensor '{FIRST}.nbits' = 4",
    ),
    "bits of the config's parts": (
        "hqq-4",
        config(
            quant_config={
                m: {"weight_quant_params": {"nbits": n}} for m, n in (("q_proj", 2), ("mlp", 8))
            }
        ),
        "quant_config['q_proj'].weight_quant_params.nbits = 2 or 8, but tensor "
        f"'{FIRST}.nbits' = 4",
    ),
    "bits a word": (
        "hqq-4",
        config(quant_config={"weight_quant_params": {"nbits": "four"}}),
        "weight_quant_params.nbits = 'four', but",
    ),
    "groups of the config": (
        "hqq-4",
        config(quant_config={"weight_quant_params": {"nbits": 4, "group_size": 128}}),
        f"weight_quant_params.group_size = 128, but tensor '{FIRST}.group_size' = 64",
    ),
    "axis of the config": (
        "hqq-4",
        config(quant_config={"weight_quant_params": {"axis": 0}}),
        f"weight_quant_params.axis = 0, but tensor '{FIRST}.axis' = 1",
    ),
    "numbers as text": (
        "hqq-4",
        config(quant_config={"weight_quant_params": "4"}),
        "quant_config.weight_quant_params = '4'; an object expected",
    ),
    "a config of text": ("hqq-4", config(quant_config="4"), "quant_config = '4'; an object"),
}
TORCHAO: dict[str, Lie] = {
    "int4 of the config": (
        "torchao-int8",
        config(quant_type={"default": {"_type": "Int8DynamicActivationInt4WeightConfig"}}),
        "quantization_config.quant_type = 'Int8DynamicActivationInt4WeightConfig', but tensor "
        f"'{FIRST}.weight' is int8",
    ),
    "int8 in one word": (
        "torchao-int4",
        config(quant_type="int8_weight_only"),
        f"quant_type = 'int8_weight_only', but tensor '{FIRST}.weight' is int4",
    ),
    "intx of the config": (
        "torchao-intx4",
        config(
            quant_type={
                "default": {
                    "_type": "IntxWeightOnlyConfig",
                    "_data": {"weight_dtype": {"_type": "torch.dtype", "_data": "int2"}},
                }
            }
        ),
        f"quant_type = 'int2', but tensor '{FIRST}.weight' is int4",
    ),
    "a number": ("torchao-int8", config(quant_type=8), "quant_type = 8; a name or an object"),
    "int8 over floats": (
        "torchao-float8",
        config(quant_type={"default": {"_type": "Int8WeightOnlyConfig"}}),
        f"quant_type = 'Int8WeightOnlyConfig', but tensor '{FIRST}.weight' is float8",
    ),
}
PRODUCTS: dict[str, Lie] = {
    "FP8 by rows": ("fp8-rows", put(f"{W}_scale", 3e38), PAST),
    "FP8 by blocks": ("fp8-block", put(f"{W}_scale_inv", 3e38), PAST),
    "exponent 254": ("fp8-power", put(f"{W}_scale_inv", 254), PAST),
    "int8 by rows": ("torchao-int8", put(f"{Q}._weight_scale", 3e38), PAST),
    "float8": ("torchao-float8", put(f"{Q}._weight_scale", 3e38), PAST),
    "NF4": ("bnb-nf4", put(f"{W}.absmax", 3e38), PAST),
    "NF4, quantised scales": ("bnb-nf4-double", put(f"{W}.nested_absmax", 3e37), PAST),
    "LLM.int8()": ("bnb-int8", put(f"{Q}.SCB", 3e38), PAST),
    "exponents of MXFP4": ("ct-mxfp4", put(f"{W}_scale", 250), PAST),
    "int8 by groups": ("torchao-int8-group", put(f"{Q}._weight_scale", 3e38), PAST),
}
CASES = [
    pytest.param(lie, id=f"{family} {name}")
    for family, lies in (
        ("bitsandbytes", BITSANDBYTES),
        ("fp8", FP8),
        ("hqq", HQQ),
        ("torchao", TORCHAO),
        ("products", PRODUCTS),
    )
    for name, lie in lies.items()
]


@pytest.mark.parametrize("lie", CASES)
def test_false_values_are_refused(lie: Lie, tmp_path: Path) -> None:
    check_lie(lie, tmp_path)


@pytest.mark.parametrize(("name", "tensor"), [("bnb-nf4", f"{W}.absmax"), ("bnb-int8", f"{Q}.SCB")])
def test_large_scales_are_read(name: str, tensor: str, tmp_path: Path) -> None:
    """Up to those whose sums of products would not be finite."""
    folder = EditedFolder.read(name)
    put(tensor, 1e10)(folder)
    load_all(folder.write(tmp_path / "large"))


ASKED: dict[str, tuple[str, dict[str, Any], str]] = {
    "bits of W8A8": ("ct-w8a8", {"bits": 4}, "has bits = 4, and ct-w8a8 has 8; leave it out"),
    "bits of W4A16": ("ct-w4a16", {"bits": 8}, "has bits = 8, and ct-w4a16 has 4"),
    "groups of W4A16": ("ct-w4a16", {"group_size": 128}, "group_size = 128, and ct-w4a16 has 32"),
    "zeros of W4A16": ("ct-w4a16", {"sym": False}, "has sym = false, and ct-w4a16 has true"),
    "order of W4A16": ("ct-w4a16", {"desc_act": True}, "desc_act = true, and ct-w4a16 has false"),
    "middles": ("ct-w4a16-asym", {"sym": True}, "sym = true, and ct-w4a16-asym has false"),
    "rows": ("gptq-8", {"group_size": 128}, "group_size = 128, and gptq-8 has -1"),
    "zeros of AWQ": ("awq", {"sym": True}, "has sym = true, and awq has false"),
    "order of AWQ": ("awq", {"desc_act": True}, "desc_act = true, which means nothing for awq"),
    "bits of NF4": ("bnb-nf4", {"bits": 8}, "has bits = 8, and bnb-nf4 has 4"),
    "groups of NF4": ("bnb-nf4", {"group_size": 128}, "group_size = 128, and bnb-nf4 has 64"),
    "zeros of NF4": ("bnb-nf4", {"sym": True}, "which means nothing for bitsandbytes; leave it"),
    "blocks": ("fp8-block", {"group_size": 64}, "group_size = 64, and fp8-block has 128"),
    "bits of HQQ": ("hqq-3", {"bits": 4}, "bits = 4, and hqq-3 has 3"),
    "bits of torchao": ("torchao-int8", {"bits": 4}, "bits = 4, and torchao-int8 has 8"),
    "groups of AutoRound": ("auto-round", {"group_size": 64}, "64, and auto-round has 128"),
    "a truth for a number": ("hqq-1", {"bits": True}, "has bits = true, and hqq-1 has 1"),
    "a word": ("gptq-4", {"bit": 4}, "has 'bit', which is unknown (did you mean 'bits'?); allowed"),
}


@pytest.mark.parametrize("case", ASKED)
def test_matrices_of_another_format_are_refused(case: str) -> None:
    name, requested, says = ASKED[case]
    method = EditedFolder.read(name).config["quant_method"]
    with pytest.raises(ConfigError) as caught:
        describe(QUANTIZED / name, {"method": method, **requested})
    assert says in str(caught.value) and str(caught.value).startswith("quantization ")


@pytest.mark.parametrize(
    ("name", "requested"),
    [
        ("gptq-4-order", {"bits": 4, "group_size": 32, "desc_act": True, "sym": False}),
        ("ct-w8a8", {"bits": 8, "group_size": -1, "sym": True, "desc_act": False}),
        ("fp8-tensor", {"bits": 8, "group_size": -1}),
        ("hqq-wide", {"bits": 3, "group_size": 128}),
        ("torchao-intx4", {"bits": 4}),
    ],
)
def test_true_facts_may_be_requested(name: str, requested: dict[str, Any]) -> None:
    method = EditedFolder.read(name).config["quant_method"]
    with pytest.raises(CheckpointError, match="no tokenizer here"):  # all before it is right
        describe(QUANTIZED / name, {"method": method, **requested})


def test_a_method_can_be_requested() -> None:
    with pytest.raises(ConfigError, match="quantization has no method; allowed: gptq, awq"):
        describe(QUANTIZED / "gptq-4", {"bits": 4})
