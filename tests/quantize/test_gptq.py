"""GPTQ and rounding to nearest against both written out in NumPy, column by column."""

import numpy as np
import pytest
from correlated import make_activations, make_weights, measure_loss

from flyweight.errors import ConfigError
from flyweight.ops.cpu import available_isas
from flyweight.ops.cpu.calibration import CalibrationKernels, GroupGrid
from flyweight.quantize import gptq
from flyweight.quantize.gptq import Gptq, invert_hessian, invert_lower
from flyweight.quantize.method import MethodSettings
from flyweight.quantize.precision import Precision
from flyweight.quantize.rounding import round_rows
from flyweight.quantize.statistics import InputStatistics
from flyweight.wire import F32

BLOCK = 128
PRECISIONS = [
    Precision(bits, 32, symmetric) for bits in (2, 3, 4, 8) for symmetric in (True, False)
]


# --- the references ---


def find_grid(cells: F32, bits: int, symmetric: bool) -> tuple[F32, F32]:
    """Scales and zero points of rows of cells [n, group]."""
    low, high = cells.min(axis=1), cells.max(axis=1)
    most, middle = (1 << bits) - 1, 1 << (bits - 1)
    if symmetric:
        spread = np.maximum(np.abs(low), np.abs(high)) / np.float32(middle - 0.5)
        return to_half(spread), np.full_like(low, middle)
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    scales = to_half((high - low) / np.float32(most))
    return scales, np.clip(np.rint(-low / scales), 1, most)


def to_half(scales: F32) -> F32:
    least = np.float32(2**-24)
    return np.clip(scales, least, 65504).astype(np.float16).astype(np.float32)


def choose(x: F32, scale: F32, zero: F32, bits: int) -> F32:
    return np.clip(np.rint(x / scale) + zero, 0, (1 << bits) - 1).astype(np.float32)


def round_plainly(rows: F32, grid: GroupGrid) -> tuple[F32, F32, F32]:
    n, k = rows.shape
    cells = rows.reshape(-1, grid.group)
    scales, zeros = find_grid(cells, grid.bits, grid.symmetric)
    codes = choose(cells, scales[:, None], zeros[:, None], grid.bits)
    return codes.reshape(n, k), scales.reshape(n, -1), zeros.reshape(n, -1)


def sweep_plainly(rows: F32, factor: F32, grid: GroupGrid) -> tuple[F32, F32, F32]:
    (n, k), group = rows.shape, grid.group
    w, codes = rows.copy(), np.empty((n, k), np.float32)
    scales, zeros = (np.empty((n, k // group), np.float32) for _ in range(2))
    for first in range(0, k, BLOCK):
        last = min(first + BLOCK, k)
        errors = np.empty((n, last - first), np.float32)
        for j in range(first, last):
            g = j // group
            if j % group == 0:
                scales[:, g], zeros[:, g] = find_grid(
                    w[:, j : j + group], grid.bits, grid.symmetric
                )
            codes[:, j] = choose(w[:, j], scales[:, g], zeros[:, g], grid.bits)
            kept = scales[:, g] * (codes[:, j] - zeros[:, g])
            errors[:, j - first] = (w[:, j] - kept) / factor[j, j]
            w[:, j:last] -= errors[:, j - first, None] * factor[j, j:last]
        w[:, last:] -= errors @ factor[first:last, last:]
    return codes, scales, zeros


def restore(found: tuple[F32, F32, F32], group: int) -> F32:
    """The weights that codes represent."""
    codes, scales, zeros = (part.astype(np.float32) for part in found)
    spread = np.repeat(scales, group, axis=1), np.repeat(zeros, group, axis=1)
    return spread[0] * (codes - spread[1])


def gather(x: F32) -> InputStatistics:
    found = InputStatistics(x.shape[1], CalibrationKernels().accumulate)
    for first in range(0, len(x), 400):
        found.take(x[first : first + 400])
    return found


def make_factor(x: F32) -> F32:
    return invert_hessian(x.T @ x, 0.01, "slot").factor


# --- the sum of x^T x ---


@pytest.mark.parametrize("t, k", [(1, 1), (7, 5), (300, 33), (513, 129), (2100, 257), (64, 384)])
def test_gram_is_the_product_on_every_instruction_set(t: int, k: int) -> None:
    rng = np.random.default_rng(t)
    x = rng.standard_normal((t, k)).astype(np.float32)
    before = np.diag(np.arange(1, k + 1)).astype(np.float32)
    exact = before + x.astype(np.float64).T @ x
    found = []
    for isa in available_isas():
        for threads in (1, 3):
            h = before.copy()
            CalibrationKernels(threads, isa).accumulate(h, x)
            found.append(h)
    assert np.abs(found[0] - exact).max() < 2e-6 * np.abs(exact).max() * np.sqrt(t)
    assert (found[0] == found[0].T).all()
    assert all((h == found[0]).all() for h in found)


def test_importance_is_the_mean_square_of_each_column() -> None:
    """With and without the whole products."""
    x = make_activations(1200, 64)
    exact = np.square(x.astype(np.float64)).mean(axis=0)
    plain = InputStatistics(64)
    plain.take(x[:700])
    plain.take(x[700:])
    for found in (gather(x), plain):
        assert np.allclose(found.compute_mean_square(), exact, rtol=1e-5)


def test_gram_of_no_rows_adds_nothing() -> None:
    h = np.ones((40, 40), np.float32)
    CalibrationKernels(2).accumulate(h, np.empty((0, 40), np.float32))
    assert (h == 1).all()


# --- rounding to nearest ---


@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
def test_rounding_has_the_codes_of_its_definition(precision: Precision) -> None:
    w = make_weights(70, 192)
    w[3, :32], w[4, :32], w[5] = 0, 1e-9, np.abs(w[5])
    grid = GroupGrid(precision.bits, precision.group, precision.symmetric)
    want = round_plainly(w, grid)
    for isa in available_isas():
        found = CalibrationKernels(2, isa).round(w, grid)
        assert all((got == one).all() for got, one in zip(found, want, strict=True))


@pytest.mark.parametrize("group", [8, 12, 100, 600])
def test_groups_may_have_any_length(group: int) -> None:
    w = make_weights(3, 600)
    grid = GroupGrid(4, group, False)
    found = CalibrationKernels(2).round(w, grid)
    assert all((got == one).all() for got, one in zip(found, round_plainly(w, grid), strict=True))


def test_searched_ranges_cost_no_more_than_whole_ones() -> None:
    w = make_weights(64, 256)
    for bits, symmetric in ((2, True), (3, False), (4, True)):
        whole, searched = (
            GroupGrid(bits, 64, symmetric),
            GroupGrid(bits, 64, symmetric, shrink=True),
        )
        lost = [
            np.square(w - restore(CalibrationKernels(2).round(w, grid), 64)).reshape(-1, 64).sum(1)
            for grid in (whole, searched)
        ]
        assert (lost[1] <= lost[0] * (1 + 1e-5)).all()
        assert lost[1].sum() < 0.98 * lost[0].sum()


# --- the sweep ---


@pytest.mark.parametrize("group", [8, 12, 32, 96, 192, 384])
@pytest.mark.parametrize("symmetric", [True, False])
def test_sweep_finds_weights_as_good_as_the_reference(group: int, symmetric: bool) -> None:
    """Sums are in another order, so a few codes differ; the outputs' error must not."""
    x, w = make_activations(2000, 384), make_weights(768, 384)
    factor, grid = make_factor(x), GroupGrid(4, group, symmetric)
    want, found = sweep_plainly(w, factor, grid), CalibrationKernels(2).sweep(w, factor, grid)
    assert (found[0] == want[0]).mean() > 0.99
    losses = [measure_loss(x, w, restore(one, group)) for one in (want, found)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def test_sweep_without_correlations_is_rounding() -> None:
    w, grid = make_weights(20, 200), GroupGrid(3, 40, False)
    kernels = CalibrationKernels(2)
    found = kernels.sweep(w, np.eye(200, dtype=np.float32), grid)
    assert all((a == b).all() for a, b in zip(found, kernels.round(w, grid), strict=True))


@pytest.mark.parametrize("k", [8, 100, 129, 300])
def test_sweep_is_the_same_everywhere_and_row_by_row(k: int) -> None:
    x, w = make_activations(400, k), make_weights(131, k)
    factor, grid = make_factor(x), GroupGrid(4, k, False, shrink=True)
    want = CalibrationKernels(1, "scalar").sweep(w, factor, grid)
    for isa in available_isas():
        for threads in (1, 3):
            found = CalibrationKernels(threads, isa).sweep(w, factor, grid)
            assert all((a == b).all() for a, b in zip(found, want, strict=True))
    for rows in (slice(0, 1), slice(70, 131)):
        alone = CalibrationKernels(2).sweep(w[rows], factor, grid)
        assert all((a == b[rows]).all() for a, b in zip(alone, want, strict=True))


# --- the inverse Hessian ---


def test_the_factor_is_that_of_the_inverse() -> None:
    x = make_activations(900, 150).astype(np.float64)
    gram = (x.T @ x).astype(np.float32)
    found = invert_hessian(gram, 0.01, "slot")
    damped = gram + 0.01 * np.diagonal(gram).mean() * np.eye(150)
    upper = np.linalg.cholesky(np.linalg.inv(damped)).T
    assert (found.factor == np.triu(found.factor)).all()
    assert np.allclose(found.factor, upper, rtol=1e-4, atol=1e-6 * np.abs(upper).max())
    assert found.damping == 0.01 and not found.dead.any()


def test_triangles_are_inverted_in_place() -> None:
    rng = np.random.default_rng(3)
    for n in (1, 2, 47, 101):
        lower = np.tril(rng.standard_normal((n, n))) + 4 * np.eye(n)
        found = lower.copy()
        invert_lower(found)
        assert np.allclose(found @ lower, np.eye(n), atol=1e-9)


def test_damping_is_raised_until_the_hessian_is_one() -> None:
    """A matrix with a negative eigenvalue, as sums that rounding spoilt have."""
    gram = np.full((40, 40), 1.05, np.float32)
    np.fill_diagonal(gram, 1)
    settings = MethodSettings(damping=0.01)
    method, inputs = Gptq(settings), InputStatistics(40)
    inputs.gram = gram
    weight = method.round("layers.3.down", make_weights(5, 40), Precision(4, 40), inputs)
    assert settings.notes == ["layers.3.down: damping raised to 0.1"]
    method.round("layers.3.down", make_weights(5, 40, 2), Precision(4, 40), inputs)
    assert len(settings.notes) == 1, "a part of the same slot"
    assert np.isfinite(weight.dequantize()).all()
    with pytest.raises(ConfigError, match=r"calibration gives inputs of layers\.3\.up .* no Hess"):
        invert_hessian(gram - 4 * np.ones_like(gram) + 4 * np.eye(40, dtype=np.float32), 0.01,
                       "layers.3.up")  # fmt: skip


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_sums_that_are_not_finite_are_refused(bad: float) -> None:
    gram = np.eye(8, dtype=np.float32)
    gram[2, 5] = gram[5, 2] = bad
    with pytest.raises(
        ConfigError, match=r"calibration gives inputs of layers\.0\.qkv that are not"
    ):
        invert_hessian(gram, 0.01, "layers.0.qkv")
    with pytest.raises(ConfigError, match=r"layers\.0\.qkv that are all 0"):
        invert_hessian(np.zeros_like(gram), 0.01, "layers.0.qkv")


# --- the method ---


@pytest.mark.parametrize("precision", [p for p in PRECISIONS if p.bits < 8], ids=str)
@pytest.mark.parametrize("act_order", [False, True])
def test_error_is_below_roundings(precision: Precision, act_order: bool) -> None:
    """On tokens that the calibration has not seen."""
    x, w = make_activations(3000, 256), make_weights(64, 256)
    inputs = gather(x[:2000])
    weight = Gptq(MethodSettings(act_order=act_order)).round("slot", w, precision, inputs)
    plain = measure_loss(x[2000:], w, round_rows(w, precision).dequantize())
    assert measure_loss(x[2000:], w, weight.dequantize()) < 0.7 * plain


def test_columns_with_large_inputs_come_first() -> None:
    x, w = make_activations(600, 64), make_weights(16, 64)
    weight = Gptq(MethodSettings(act_order=True)).round("slot", w, Precision(4, 32), gather(x))
    size = np.diagonal(x.T @ x)
    assert weight.columns is not None
    assert (np.diff(size[weight.columns]) <= 1e-3 * size.max()).all()


def test_columns_without_inputs_become_zero_and_change_nothing() -> None:
    x, w = make_activations(600, 96), make_weights(16, 96)
    x[:, [5, 40]] = 0
    w[:, 5] = 9  # would widen its group's grid
    precision = Precision(4, 32, symmetric=False)
    found = Gptq(MethodSettings()).round("slot", w, precision, gather(x)).dequantize()
    assert (found[:, [5, 40]] == 0).all()
    w[:, [5, 40]] = 0
    again = Gptq(MethodSettings()).round("slot", w, precision, gather(x)).dequantize()
    assert (found == again).all()


def test_fewer_tokens_than_columns_are_enough() -> None:
    x, w = make_activations(40, 128), make_weights(16, 128)
    weight = Gptq(MethodSettings()).round("slot", w, Precision(4, 32), gather(x))
    plain = measure_loss(x, w, round_rows(w, Precision(4, 32)).dequantize())
    assert measure_loss(x, w, weight.dequantize()) < 0.3 * plain


def test_without_inputs_it_rounds() -> None:
    w = make_weights(4, 64)
    found = Gptq(MethodSettings()).round("head", w, Precision(4, 32), None)
    assert (found.codes == round_rows(w, Precision(4, 32)).codes).all()


def test_ranges_are_searched_as_measured() -> None:
    assert gptq.SHRINK is True
