"""docs/ops.md for the CUDA backend's ops on rows: bounds against the reference, rows alone and in
company with `==`.
"""

from typing import Any

import numpy as np
import pytest
import torch
from op_cases import EPS, normal, within

from flyweight.errors import ConfigError
from flyweight.ops.base import GATED_ACTS, PLAIN_ACTS, Array
from flyweight.ops.cuda import CudaOps
from flyweight.ops.reference import ReferenceOps
from flyweight.wire import F32

MODES = ("f32", "bf16")
SHAPES = [(1, 1), (3, 33), (2, 172), (1, 4096)]
ref = ReferenceOps()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(31)


@pytest.fixture(params=MODES)
def ops(request: pytest.FixtureRequest, device: str) -> CudaOps:
    return CudaOps(device, request.param)


def put(ops: CudaOps, x: F32) -> torch.Tensor:
    return torch.from_numpy(x.copy()).to(ops.device)


def check(ops: CudaOps, got: torch.Tensor, want: F32, bound: Array | float) -> None:
    """A result that `linear` reads: of the mode's type, bf16 to the nearest."""
    assert got.dtype == ops.dtype
    extra = 2.0**-8 * np.abs(want) if ops.dtype == torch.bfloat16 else 0
    within(ops.fetch(got), want, bound + extra)


def spread(x: F32, w: F32, eps: float) -> Array:
    """The size that a layer norm's error is measured by, without the bias."""
    wide = x.astype(np.float64)
    size = np.abs(wide) + np.abs(wide).mean(axis=-1, keepdims=True)
    return size * np.abs(w) / np.sqrt(wide.var(axis=-1, keepdims=True) + eps)


def sizes(rng: np.random.Generator, tokens: int, width: int) -> F32:
    """Rows of sizes from 0.01 to 100."""
    x = normal(rng, tokens, width) * np.float32(10) ** rng.integers(-2, 3, (tokens, 1))
    return x.astype(np.float32)


@pytest.mark.parametrize(("tokens", "width"), [*SHAPES, (1, 20000)])
def test_norms(ops: CudaOps, rng: np.random.Generator, tokens: int, width: int) -> None:
    x, w, residual = sizes(rng, tokens, width), normal(rng, width), normal(rng, tokens, width)
    want = ref.norm(x, w, 1e-6)
    check(ops, ops.norm(put(ops, x), w, 1e-6), want, 16 * EPS * np.abs(want))
    sums = put(ops, residual)
    got = ops.add_norm(put(ops, x), sums, w, 1e-5)
    want = ref.add_norm(x, residual, w, 1e-5)
    check(ops, got, want, 16 * EPS * np.abs(want))
    assert (ops.fetch(sums) == residual).all()
    half = put(ops, x).bfloat16()  # what a product may give
    sums = put(ops, residual)
    got = ops.add_norm(half, sums, w, 1e-5)
    want = ref.add_norm(half.float().cpu().numpy(), residual, w, 1e-5)
    check(ops, got, want, 16 * EPS * np.abs(want))


@pytest.mark.parametrize(("tokens", "width"), [*SHAPES, (1, 20000)])
def test_layer_norm(ops: CudaOps, rng: np.random.Generator, tokens: int, width: int) -> None:
    x, w, b = sizes(rng, tokens, width) + np.float32(2), normal(rng, width), normal(rng, width)
    for bias in (b, None):
        more = 0 if bias is None else np.abs(bias)
        got = ops.layer_norm(put(ops, x), w, bias, 1e-6)
        want = ref.layer_norm(x, w, bias, 1e-6)
        check(ops, got, want, 16 * EPS * (spread(x, w, 1e-6) + more))


@pytest.mark.parametrize(("tokens", "heads", "dim"), [(0, 2, 4), (1, 1, 1), (3, 5, 24), (4, 2, 64)])
def test_layer_norm_heads(
    ops: CudaOps, rng: np.random.Generator, tokens: int, heads: int, dim: int
) -> None:
    x, w = normal(rng, tokens, heads * dim + 7), normal(rng, heads, dim)
    got, want = put(ops, x), x.copy()
    ops.layer_norm_heads(got, w, 1e-5)
    ref.layer_norm_heads(want, w, 1e-5)
    bound = np.zeros(x.shape)
    size = spread(x[:, : heads * dim].reshape(tokens, heads, dim), w, 1e-5)
    bound[:, : heads * dim] = 16 * EPS * size.reshape(tokens, heads * dim)
    within(ops.fetch(got), want, bound)


@pytest.mark.parametrize("kind", GATED_ACTS)
@pytest.mark.parametrize(("tokens", "inner"), [(1, 1), (3, 17), (2, 1100)])
def test_act(ops: CudaOps, rng: np.random.Generator, kind: str, tokens: int, inner: int) -> None:
    x = sizes(rng, tokens, 2 * inner)
    gate, up = x[:, :inner].astype(np.float64), x[:, inner:].astype(np.float64)
    if kind == "swiglu_clamped":
        gate, up = np.minimum(gate, 7), np.clip(up, -7, 7) + 1
    check(ops, ops.act(put(ops, x), kind), ref.act(x, kind), 16 * EPS * np.abs(gate * up))


@pytest.mark.parametrize("kind", PLAIN_ACTS)
@pytest.mark.parametrize(("tokens", "inner"), [(1, 1), (3, 17), (2, 1100)])
def test_activate(
    ops: CudaOps, rng: np.random.Generator, kind: str, tokens: int, inner: int
) -> None:
    x = sizes(rng, tokens, inner)
    bound = 16 * EPS * np.abs(x).astype(np.float64)
    check(ops, ops.activate(put(ops, x), kind), ref.activate(x, kind), bound)


@pytest.mark.parametrize("kind", PLAIN_ACTS)
def test_extremes_and_nan(device: str, kind: str) -> None:
    ops = CudaOps(device, "f32")
    x = np.array([[0, -0.0, 1e-30, -1e-30, 5, -5, 9.5, -9.5, 90, -90, 1e20, -1e20]], np.float32)
    got, want = ops.fetch(ops.activate(put(ops, x), kind)), ref.activate(x, kind)
    within(got, want, 16 * EPS * np.abs(x).astype(np.float64))
    x[0, 5] = np.nan
    assert (np.isnan(ops.fetch(ops.activate(put(ops, x), kind))) == np.isnan(x)).all()


def test_clamped_at_the_extremes(device: str) -> None:
    ops = CudaOps(device, "f32")
    gate = np.array([0, 7, 7.1, 200, -5, -60, -200, np.inf, np.nan, 1], np.float32)
    up = np.array([-1, 7, 7.1, -200, 1e9, 1, 1, 1, 1, np.nan], np.float32)
    x = np.concatenate([gate, up])[None]
    got, want = ops.fetch(ops.act(put(ops, x), "swiglu_clamped")), ref.act(x, "swiglu_clamped")
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("op", ["act", "activate"])
def test_unknown_kinds_are_refused(device: str, op: str) -> None:
    ops = CudaOps(device)
    with pytest.raises(ConfigError, match=r"silux.*silu, gelu, gelu_tanh.*did you mean 'silu'"):
        getattr(ops, op)(torch.zeros(1, 4, device=ops.device), "silux")


@pytest.mark.parametrize(("tokens", "width"), [(1, 1), (3, 17), (2, 4097)])
def test_factors_in_place(ops: CudaOps, rng: np.random.Generator, tokens: int, width: int) -> None:
    x = sizes(rng, tokens, width)
    for cap in (0.5, 5.0, 30.0):
        got, want = put(ops, x), x.copy()
        ops.softcap(got, cap)
        ref.softcap(want, cap)
        within(ops.fetch(got), want, 16 * EPS * np.abs(want))
    logits = (normal(rng, tokens, 1) * 10).astype(np.float32)
    got, want = put(ops, x), x.copy()
    ops.gate(got, put(ops, logits))
    ref.gate(want, logits)
    within(ops.fetch(got), want, 16 * EPS * np.abs(x))


def everything(ops: CudaOps, x: torch.Tensor, w: Array) -> list[Any]:
    """[T,K] -> the outputs of every op, each with T rows."""
    residual = x.flip(1).contiguous()
    out = [ops.norm(x, w, 1e-5), ops.add_norm(x, residual, w, 1e-5), residual]
    if x.shape[1] % 2 == 0:
        out += [ops.act(x, kind) for kind in GATED_ACTS]
    out += [ops.activate(x, kind) for kind in PLAIN_ACTS]
    out += [ops.layer_norm(x, w, w[::-1].copy(), 1e-5), ops.layer_norm(x, w, None, 1e-5)]
    capped, gated, headed = x.clone(), x.clone(), x.clone()
    ops.softcap(capped, 2.0)
    ops.gate(gated, x[:, :1].contiguous())
    ops.layer_norm_heads(headed, w[None, : x.shape[1] // 2], 1e-5)
    return [*out, capped, gated, headed]


@pytest.mark.parametrize("width", [2, 33, 288])
def test_rows_do_not_depend_on_their_company(
    ops: CudaOps, rng: np.random.Generator, width: int
) -> None:
    """Also where a row begins in the middle of a tensor."""
    x, w = put(ops, normal(rng, 7, width)), np.arange(1, width + 1, dtype=np.float32)
    whole = everything(ops, x, w)
    for start, end in ((0, 1), (1, 3), (6, 7)):
        for part in (x[start:end], x[start:end].clone()):
            for got, want in zip(everything(ops, part, w), whole, strict=True):
                assert (got == want[start:end]).all()


def test_views_are_changed_in_place(ops: CudaOps, rng: np.random.Generator) -> None:
    """A residual that begins in the middle of a tensor, and one that is not contiguous."""
    x, w = normal(rng, 3, 33), normal(rng, 33)
    for sums in (put(ops, normal(rng, 4, 33))[1:], put(ops, normal(rng, 3, 40))[:, :33]):
        want = ops.fetch(sums) + x
        ops.add_norm(put(ops, x), sums, w, 1e-5)
        assert (ops.fetch(sums) == want).all()


def test_no_rows(ops: CudaOps) -> None:
    none, w = torch.zeros(0, 32, device=ops.device), np.ones(32, np.float32)
    assert all(len(out) == 0 for out in everything(ops, none, w))
