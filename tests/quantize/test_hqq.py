"""HQQ against the hqq library's own errors on the same matrix (make_fixtures.py), and the method
written out for one group.
"""

from pathlib import Path

import numpy as np
import pytest

from flyweight.errors import ConfigError
from flyweight.ops.grouped import widen
from flyweight.quantize.hqq import round_half_quadratic
from flyweight.wire import F32

STORED = np.load(Path(__file__).parents[1] / "data" / "quantize" / "libraries.npz")
WEIGHTS: F32 = STORED["weights"].astype(np.float32)


def measure(error: F32) -> np.ndarray:
    size = np.abs(error.astype(np.float64))
    return np.array([size.mean(), (size**0.7).mean(), (size**2).mean()])


def round_to_range(w: F32, bits: int, group: int) -> F32:
    """Rounding with the float zero point that spans each group's range."""
    held = w.reshape(len(w), -1, group)
    low, high = held.min(2, keepdims=True), held.max(2, keepdims=True)
    scale = np.maximum((high - low) / ((1 << bits) - 1), 1e-9)
    values: F32 = (np.rint((held - low) / scale) * scale + low).reshape(w.shape)
    return values


@pytest.mark.parametrize("bits", [8, 4, 3, 2])
def test_errors_are_those_of_the_library(bits: int) -> None:
    """Mean |e|, |e|^0.7 and e^2: at most 1 % more."""
    found = round_half_quadratic(WEIGHTS, bits, 64, "float32").dequantize()
    assert (measure(found - WEIGHTS) <= 1.01 * STORED[f"mean hqq {bits}"]).all()


@pytest.mark.parametrize("bits", [4, 3, 2])
def test_sparse_errors_beat_the_range(bits: int) -> None:
    found = round_half_quadratic(WEIGHTS, bits, 64, "float32").dequantize()
    plain = round_to_range(WEIGHTS, bits, 64)
    assert (measure(found - WEIGHTS)[:2] < 0.98 * measure(plain - WEIGHTS)[:2]).all()


def test_the_steps_are_the_papers() -> None:
    """One group in float64: the best zero point of 20 steps by mean |e|."""
    w = WEIGHTS[3, :64].astype(np.float64)
    scale = np.float64(np.float32((w.max() - w.min()) / 15))
    zero, beta, tried = -w.min() / scale, 10.0, []
    for _ in range(20):
        codes = np.clip(np.rint(w / scale + zero), 0, 15)
        error = w - scale * (codes - zero)
        tried.append((np.abs(error).mean(), zero))
        size = np.maximum(np.abs(error), 1e-9)
        kept = np.maximum(size - size**-0.3 / beta, 0)
        zero = (codes - (w - np.sign(error) * kept) / scale).mean()
        beta *= 1.01
    held = round_half_quadratic(w[None].astype(np.float32), 4, 64, "float32")
    assert held.zeros is not None and held.scales is not None
    loss = np.abs(held.dequantize()[0] - w).mean()
    assert np.isclose(loss, min(tried)[0], rtol=1e-3)


@pytest.mark.parametrize("stored", ["float16", "uint16", "float32"])
def test_codes_are_chosen_for_stored_scales(stored: str) -> None:
    held = round_half_quadratic(WEIGHTS, 4, 64, stored)
    assert held.scales is not None and held.zeros is not None
    assert held.scales.dtype == held.zeros.dtype == stored
    assert held.kind == "u4_g64" + {"float16": "", "uint16": "_bf16", "float32": "_f32"}[stored] + (
        "_zf"
    )
    scales, zeros = widen(held.scales)[:, :, None], widen(held.zeros)[:, :, None]
    cells = WEIGHTS.reshape(130, 1, 64)
    codes = np.clip(np.rint(cells / scales + zeros), 0, 15)
    assert (codes.reshape(130, 64) == held.codes).all()


def test_a_group_of_equal_elements_is_kept() -> None:
    w = np.full((2, 64), 0.375, np.float32)
    w[1] = 0
    assert (round_half_quadratic(w, 4).dequantize() == w).all()


def test_parts_do_not_change_the_result() -> None:
    """A matrix larger than what is worked on at once equals its rows by themselves."""
    w = np.tile(WEIGHTS, (70, 2))[:9000]
    whole = round_half_quadratic(w, 3, 128)
    part = round_half_quadratic(w[8900:], 3, 128)
    assert (whole.codes[8900:] == part.codes).all()
    assert (whole.dequantize()[8900:] == part.dequantize()).all()


def test_groups_must_divide_rows() -> None:
    with pytest.raises(ConfigError, match=r"group_size = 50 .*nearest valid: 64"):
        round_half_quadratic(WEIGHTS, 4, 50)
