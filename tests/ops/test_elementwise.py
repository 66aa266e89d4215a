"""Norms, activations, sums, factors and row copies on every instruction set, against the reference.

What must be equal is compared with `==`: rows alone and in company, any thread count, any target.
"""

import numpy as np
import pytest

from flyweight.errors import ConfigError
from flyweight.ops.cpu import CpuOps, available_isas
from flyweight.ops.reference import ReferenceOps

ISAS = available_isas()
THREADS = (1, 2, 3, 7)
SHAPES = [(1, 1), (1, 16), (3, 17), (2, 63), (5, 64), (1, 172), (9, 1000), (70, 288), (2, 4096)]
KINDS = ("silu", "gelu", "gelu_tanh")
PLAIN = (*KINDS, "relu")


def rows(shape: tuple[int, int], seed: int = 0, scale: float = 3.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, scale, shape).astype(np.float32)


@pytest.fixture(params=ISAS)
def ops(request: pytest.FixtureRequest) -> CpuOps:
    return CpuOps(2, request.param, "f32")


@pytest.fixture(scope="module")
def true() -> ReferenceOps:
    return ReferenceOps()


def close(got: np.ndarray, want: np.ndarray, rtol: float = 2e-6, atol: float = 1e-6) -> None:
    assert got.dtype == want.dtype == np.float32
    assert got.flags.c_contiguous
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)


@pytest.mark.parametrize("shape", SHAPES)
def test_norm(ops: CpuOps, true: ReferenceOps, shape: tuple[int, int]) -> None:
    x, w = rows(shape), rows((1, shape[1]), 1)[0]
    close(ops.norm(x, w, 1e-5), true.norm(x, w, 1e-5))


def test_norm_of_zeros_and_of_tiny_rows_uses_eps(ops: CpuOps, true: ReferenceOps) -> None:
    x = np.stack([np.zeros(48), np.full(48, 1e-4)]).astype(np.float32)
    w = np.ones(48, np.float32)
    close(ops.norm(x, w, 1e-6), true.norm(x, w, 1e-6))


@pytest.mark.parametrize("shape", SHAPES)
def test_add_norm_updates_the_residual(
    ops: CpuOps, true: ReferenceOps, shape: tuple[int, int]
) -> None:
    x, residual, w = rows(shape), rows(shape, 2), rows((1, shape[1]), 1)[0]
    want_residual = residual.copy()
    want = true.add_norm(x, want_residual, w, 1e-5)
    got = ops.add_norm(x, residual, w, 1e-5)
    assert (residual == want_residual).all()
    close(got, want)
    assert (got == ops.norm(residual, w, 1e-5)).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_act(ops: CpuOps, true: ReferenceOps, shape: tuple[int, int], kind: str) -> None:
    x = rows((shape[0], 2 * shape[1]))
    close(ops.act(x, kind), true.act(x, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_act_at_the_extremes(ops: CpuOps, true: ReferenceOps, kind: str) -> None:
    gate = np.array(
        [0, -0.0, 1e-30, -1e-30, 5, -5, 9.5, -9.5, 30, -30, 90, -90, 200, -200], np.float32
    )
    x = np.concatenate([gate, np.ones_like(gate)])[None]
    close(ops.act(x, kind), true.act(x, kind), rtol=3e-6)
    x[0, 3] = np.nan
    assert np.isnan(ops.act(x, kind)[0, 3])
    assert np.isfinite(np.delete(ops.act(x, kind)[0], 3)).all()


def test_act_refuses_an_unknown_kind(ops: CpuOps) -> None:
    with pytest.raises(ConfigError, match=r"swish.*silu, gelu, gelu_tanh"):
        ops.act(rows((1, 4)), "swish")


def test_clamped_at_the_extremes(ops: CpuOps, true: ReferenceOps) -> None:
    gate = np.array([0, 7, 7.1, 200, -5, -60, -200, np.inf, -np.inf, np.nan, 1, 1], np.float32)
    up = np.array([-1, 7, 7.1, -200, 1e9, 1, 1, 1, 1, 1, np.nan, -np.inf], np.float32)
    x = np.concatenate([gate, up])[None]
    with np.errstate(invalid="ignore"):  # -inf * 0 in the reference
        want = true.act(x, "swiglu_clamped")
    got = ops.act(x, "swiglu_clamped")
    assert np.isnan(got[0, [8, 9, 10]]).all() and np.isnan(want[0, [8, 9, 10]]).all()
    close(got[:, [0, 1, 2, 3, 4, 5, 6, 7, 11]], want[:, [0, 1, 2, 3, 4, 5, 6, 7, 11]])


def test_nan_stays_in_its_place(ops: CpuOps) -> None:
    x = rows((5, 40))
    x[2, 7] = np.nan
    for kind in PLAIN:
        got = ops.activate(x, kind)
        assert np.isnan(got[2, 7]) and np.isnan(got).sum() == 1, kind
    w = np.ones(40, np.float32)
    assert (np.isnan(ops.layer_norm(x, w, w, 1e-5)).all(axis=1) == [0, 0, 1, 0, 0]).all()
    capped, gated, logits = x.copy(), x.copy(), np.array([[0], [np.nan], [0], [0], [0]], np.float32)
    ops.softcap(capped, 3.0)
    ops.gate(gated, logits)
    assert np.isnan(capped).sum() == 1 and np.isnan(gated).sum() == 41


@pytest.mark.parametrize("kind", PLAIN)
def test_activate_at_the_extremes(ops: CpuOps, true: ReferenceOps, kind: str) -> None:
    x = np.array([[0, 1e-30, -1e-30, 5, -5, 9.5, -9.5, 30, -30, 90, -90, 200, -200]], np.float32)
    close(ops.activate(x, kind), true.activate(x, kind), rtol=3e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_add_and_take(ops: CpuOps, shape: tuple[int, int]) -> None:
    x, residual = rows(shape), rows(shape, 5)
    want = residual + x
    ops.add(x, residual)
    assert (residual == want).all()
    picked = np.array([shape[0] - 1, 0, shape[0] // 2, 0], np.int32)
    assert (ops.take(x, picked) == x[picked]).all()
    assert ops.take(x, picked[:0]).shape == (0, shape[1])


@pytest.mark.parametrize("shape", [(3, 5), (4, 2, 24), (0, 8)])
def test_rows_are_scaled_each_by_its_own(
    ops: CpuOps, true: ReferenceOps, shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(3)
    x, by = rng.standard_normal(shape, np.float32), rng.standard_normal(shape[0], np.float32)
    want = np.stack([row * factor for row, factor in zip(x, by, strict=True)]) if len(x) else x
    again = x.copy()
    ops.scale_rows(x, by)
    true.scale_rows(again, by)
    assert x.dtype == np.float32 and (x == want).all() and (again == want).all()


def test_activate_refuses_an_unknown_kind(ops: CpuOps) -> None:
    with pytest.raises(ConfigError, match=r"swiglu_clamped.*silu, gelu, gelu_tanh, relu"):
        ops.activate(rows((1, 4)), "swiglu_clamped")


def test_arrays_that_do_not_fit_are_refused(ops: CpuOps) -> None:
    x, w = rows((2, 16)), np.ones(16, np.float32)
    with pytest.raises(ValueError, match="length"):
        ops.norm(x, w[:8].copy(), 1e-5)
    for weight, bias in ((w[:8].copy(), w), (w, w[:8].copy())):
        with pytest.raises(ValueError, match="length"):
            ops.layer_norm(x, weight, bias, 1e-5)
    with pytest.raises(ValueError, match="cap"):
        ops.softcap(x, 0.0)
    with pytest.raises(ValueError, match="one number a row"):
        ops.gate(x, rows((1, 2)))
    with pytest.raises(TypeError):
        ops.scale(x[:, ::2], 2.0)  # a copy would be scaled, and thrown away
    with pytest.raises(ValueError, match="shape"):
        ops.add(x, rows((1, 16)))
    with pytest.raises(ValueError, match="range"):
        ops.take(x, np.array([2], np.int32))
    with pytest.raises(TypeError):
        ops.norm(x.astype(np.float64), w, 1e-5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        ops.add(x[:, ::2], x[:, ::2])


def everything(ops: CpuOps, x: np.ndarray, w: np.ndarray) -> list[np.ndarray]:
    """[T,K] -> the outputs of every op, each with T rows."""
    residual = x[:, ::-1].copy()
    out = [ops.norm(x, w, 1e-5), ops.add_norm(x, residual, w, 1e-5), residual]
    out += [ops.act(x, kind) for kind in (*KINDS, "swiglu_clamped")]
    out += [ops.activate(x, kind) for kind in PLAIN]
    out += [ops.layer_norm(x, w, w[::-1].copy(), 1e-5), ops.layer_norm(x, w, None, 1e-5)]
    scaled, capped, gated = x.copy(), x.copy(), x.copy()
    ops.scale(scaled, 0.7)
    ops.softcap(capped, 2.0)
    ops.gate(gated, x[:, :1].copy())
    return [*out, scaled, capped, gated]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", [2, 34, 288, 2304])
def test_rows_do_not_depend_on_threads_or_company(isa: str, width: int) -> None:
    x, w = rows((70, width)), rows((1, width), 1)[0]
    alone = CpuOps(1, isa, "f32")
    want = everything(alone, x, w)
    for threads in THREADS:
        for got, same in zip(everything(CpuOps(threads, isa, "f32"), x, w), want, strict=True):
            assert (got == same).all()
    for r in (0, 13, 69):
        for got, same in zip(everything(alone, x[r : r + 1], w), want, strict=True):
            assert (got[0] == same[r]).all()


@pytest.mark.parametrize("width", [2, 34, 1000])
def test_every_instruction_set_gives_the_same_bits(width: int) -> None:
    x, w = rows((7, width)), rows((1, width), 1)[0]
    want = everything(CpuOps(1, "scalar", "f32"), x, w)
    for isa in ISAS:
        for got, same in zip(everything(CpuOps(1, isa, "f32"), x, w), want, strict=True):
            assert got.tobytes() == same.tobytes()
