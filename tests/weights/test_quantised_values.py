"""Values of quantised folders that contradict the config, or that no answer can be computed from,
are one line that names the tensor.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flyweight.errors import CheckpointError
from flyweight.ops.grouped import GroupedWeight
from flyweight.weights.checkpoint import open_checkpoint
from quantised_folders import (
    AWQ,
    EIGHT,
    GPTQ,
    HALF,
    ORDER,
    RNG,
    STATIC,
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

PAST = r"'m.\w+' has scales that are too large: .* they come to \S+; at most 2.7\d*e\+11 "
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
        r"has an input_scale that is too large: 8e\+37; at most 8.26e\+03 expected, for sums of",
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
        write(tmp_path / "n", MXFP4, tensors | {"m.weight_scale": tensors["m.weight_scale"] - 100})
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
    tensors = eight(**{"m.weight_scale": np.full((N, 1), 1e9, np.float32)})
    rows = open_checkpoint(write(tmp_path / "m", EIGHT, tensors)).read("m.weight", 0, N)
    assert isinstance(rows, GroupedWeight) and np.isfinite(rows.dequantize()).all()


def test_codes_of_fp8_must_be_numbers(tmp_path: Path) -> None:
    codes = np.full((N, K), 0x7F, np.uint8)
    tensors: Arrays = {"m.weight": codes, "m.weight_scale": np.ones((N, 1), np.float32)}
    path = write(tmp_path / "m", FLOATS, tensors, {"m.weight": "F8_E4M3"})
    with pytest.raises(CheckpointError, match=r"'m.weight' has values that are not finite"):
        open_checkpoint(path).read("m.weight", 0, N)
