"""int8 rows, the scales of static activations, SmoothQuant, and signs, each written out."""

import numpy as np
import pytest
from correlated import make_activations, make_weights, measure_loss

from flyweight.errors import ConfigError
from flyweight.ops.reference import ReferenceOps
from flyweight.quantize.binary import round_to_signs
from flyweight.quantize.folds import Fold
from flyweight.quantize.smoothquant import compute_scales
from flyweight.quantize.static import find_input_scale, round_rows_to_int8, search_channel_scales
from flyweight.quantize.statistics import InputStatistics
from flyweight.wire import F32


def round_static(x: F32, scale: float) -> F32:
    """docs/ops.md: codes rint(x / scale), limited to -127...127."""
    codes = np.clip(np.rint(x / np.float32(scale)), -127, 127)
    return (codes * np.float32(scale)).astype(np.float32)


def measure_static(x: F32, w: F32, scale: float) -> float:
    """The mean squared error of outputs, weights and activations in int8."""
    exact = x.astype(np.float64) @ w.T.astype(np.float64)
    rounded = round_rows_to_int8(w).dequantize()
    lossy = round_static(x, scale).astype(np.float64) @ rounded.T.astype(np.float64)
    return float(np.square(lossy - exact).mean())


# --- int8 rows ---


def test_rows_have_codes_of_their_largest_weight() -> None:
    w = make_weights(9, 96)
    w[4] = 0
    found = round_rows_to_int8(w)
    assert found.row_scales is not None
    assert np.allclose(found.row_scales, np.abs(w).max(axis=1) / 127, rtol=1e-7)
    exact = w.astype(np.float64) / np.maximum(found.row_scales, 1e-30)[:, None]
    assert np.abs(found.codes - exact).max() <= 0.5 + 1e-4
    assert np.abs(found.codes).max(axis=1).tolist() == [127] * 4 + [0] + [127] * 4
    assert np.abs(found.dequantize() - w).max() <= 0.5001 * found.row_scales.max()


def test_kinds_are_those_of_dynamic_and_static_activations() -> None:
    w = make_weights(4, 64)
    assert round_rows_to_int8(w).kind == "s8_rows"
    assert round_rows_to_int8(w, 0.25).kind == "s8_rows_static"


def test_the_backend_reads_the_static_scale() -> None:
    x, w = make_activations(20, 64), make_weights(8, 64)
    scale = find_input_scale(w, x, float(np.abs(x).max()))
    packed = round_rows_to_int8(w, scale)
    ops = ReferenceOps("int8")
    got = ops.linear(x, ops.pack((8, 64), [packed]))
    assert np.allclose(got, round_static(x, scale) @ packed.dequantize().T, rtol=1e-4, atol=1e-3)


# --- static scales ---


def test_the_static_scale_has_the_least_error_of_outputs() -> None:
    x, w = make_activations(400, 64), make_weights(32, 64)
    most = float(np.abs(x).max())
    found = find_input_scale(w, x, most)

    def measure(scale: float) -> float:
        return float(np.square((round_static(x, scale) - x) @ w.T).sum())

    tried = [measure(most * shrink / 127) for shrink in np.linspace(0.06, 1, 200)]
    assert measure(found) <= 1.05 * min(tried)
    assert min(tried) < 0.9 * measure(most / 127)


def test_scales_of_channels_are_the_best_of_all_that_are_tried() -> None:
    """For weights and activations in int8, on tokens that the search has not seen."""
    x, w = make_activations(3000, 128, outliers=4), make_weights(64, 128)
    seen, unseen = x[:1024], x[1024:]
    inputs = InputStatistics(128)
    inputs.take(seen)
    found = search_channel_scales([w], inputs)

    def measure(s: F32) -> float:
        scale = find_input_scale(w * s, seen / s, float(np.abs(seen / s).max()))
        return measure_static(unseen / s, w * s, scale)

    most = np.abs(seen).max(axis=0)
    tried = [measure(compute_scales([w], most, alpha)) for alpha in (0.5, 0.7, 0.8, 0.9, 1.0)]
    assert measure(found) <= 1.05 * min(tried)
    assert measure(found) < 0.2 * measure(np.ones(128, np.float32))


def test_activations_that_are_all_zero_have_a_scale() -> None:
    assert find_input_scale(make_weights(4, 32), np.zeros((3, 32), np.float32), 0.0) > 0


# --- SmoothQuant ---


def test_scales_are_the_papers() -> None:
    x, ws = make_activations(50, 32), [make_weights(8, 32), make_weights(5, 32, 9)]
    found = compute_scales(ws, np.abs(x).max(axis=0), 0.7)
    for j in range(32):
        w = max(float(np.abs(one[:, j]).max()) for one in ws)
        expected = float(np.abs(x[:, j]).max()) ** 0.7 / w**0.3
        assert np.isclose(found[j], expected, rtol=1e-5)


def test_smoothing_beats_plain_static_int8() -> None:
    """With outlier channels, on tokens that calibration has not seen."""
    x, w = make_activations(2000, 256, outliers=4), make_weights(128, 256)
    seen, unseen = x[:1000], x[1000:]
    s = compute_scales([w], np.abs(seen).max(axis=0))
    plain = measure_static(unseen, w, float(np.abs(seen).max() / 127))
    scale = float(np.abs(seen / s).max() / 127)
    assert measure_static(unseen / s, w * s, scale) < 0.5 * plain


def test_smooth_scales_of_dead_channels_and_tied_ones() -> None:
    w, most = make_weights(8, 32), np.ones(32, np.float32)
    most[3], w[:, 5] = 0, 0
    found = compute_scales([w], most)
    assert found[3] == found[5] == 1
    fold = Fold(("out",), ("qkv",), 32, 8, 0, 2)
    tied = compute_scales([w], most, tie=fold.tie).reshape(2, 2, 8)
    assert (tied[:, 0] == tied[:, 1]).all()


def test_an_alpha_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"alpha = 1.5 .*nearest valid: 1"):
        compute_scales([make_weights(8, 32)], np.ones(32, np.float32), 1.5)


# --- signs ---


def test_signs_have_the_scale_of_least_squares() -> None:
    w = make_weights(6, 256)
    found = round_to_signs(w, 128)
    assert found.kind == "u2_g128"
    values = found.dequantize()
    signs = np.where(w < 0, -1, 1)
    mean = np.abs(w).reshape(6, 2, 128).mean(axis=2).astype(np.float16).astype(np.float32)
    assert (values == signs * np.repeat(mean, 128, axis=1)).all()
    best = measure_loss(np.eye(256, dtype=np.float32), w, values)
    for by in (0.9, 1.1):
        assert best < measure_loss(np.eye(256, dtype=np.float32), w, values * by)
