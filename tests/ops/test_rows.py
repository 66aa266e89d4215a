"""docs/ops.md for the ops on rows that came with more families: LayerNorm, plain and clamped
activations, factors, soft caps and gates, native against the reference.
"""

import re
from pathlib import Path

import numpy as np
import pytest
from op_cases import EPS, Make, normal, within

from flyweight.ops.base import Ops
from flyweight.ops.reference import ReferenceOps


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


@pytest.mark.parametrize(("tokens", "hidden"), [(1, 1), (1, 8), (3, 33), (70, 172), (2, 4096)])
def test_layer_norm(native: Make, rng: np.random.Generator, tokens: int, hidden: int) -> None:
    ops, ref = native(), ReferenceOps()
    w, b = normal(rng, hidden), normal(rng, hidden)
    for mean in (0, 5):
        x = (normal(rng, tokens, hidden) + np.float32(mean)).astype(np.float32)
        x[0] *= 1e-3
        size = np.abs(x).astype(np.float64)
        spread = np.sqrt(x.astype(np.float64).var(axis=1, keepdims=True) + 1e-6)
        size = (size + size.mean(axis=1, keepdims=True)) / spread * np.abs(w)
        for bias in (b, None):
            more = 0 if bias is None else np.abs(b)
            want = ref.layer_norm(x, w, bias, 1e-6)
            within(ops.layer_norm(x, w, bias, 1e-6), want, 16 * EPS * (size + more))


@pytest.mark.parametrize(
    ("tokens", "heads", "dim"), [(0, 2, 4), (1, 1, 1), (3, 5, 24), (40, 3, 33)]
)
def test_layer_norm_heads(
    native: Make, rng: np.random.Generator, tokens: int, heads: int, dim: int
) -> None:
    """Head h with its own weights; what follows the heads in a row stays as it is."""
    w, x = normal(rng, heads, dim), normal(rng, tokens, heads * dim + 7)
    got, want = x.copy(), x.copy()
    native().layer_norm_heads(got, w, 1e-5)
    ReferenceOps().layer_norm_heads(want, w, 1e-5)
    assert (got[:, heads * dim :] == x[:, heads * dim :]).all()
    spread = np.abs(x[:, : heads * dim]).reshape(tokens, heads, dim).astype(np.float64)
    std = x[:, : heads * dim].reshape(tokens, heads, dim).astype(np.float64).std(axis=2)
    size = (spread + spread.mean(axis=2, keepdims=True)) / np.sqrt(std**2 + 1e-5)[..., None]
    bound = 16 * EPS * (size * np.abs(w)).reshape(tokens, heads * dim)
    within(got[:, : heads * dim], want[:, : heads * dim], bound)
    for t in range(tokens):  # the same bits alone
        alone = x[t : t + 1].copy()
        native().layer_norm_heads(alone, w, 1e-5)
        assert (alone == got[t : t + 1]).all()


@pytest.mark.parametrize(("tokens", "inner"), [(1, 1), (3, 17), (33, 172), (2, 1000)])
def test_act_clamped(native: Make, rng: np.random.Generator, tokens: int, inner: int) -> None:
    x = normal(rng, tokens, 2 * inner) * np.float32(10) ** rng.integers(-2, 3, (tokens, 1))
    x = x.astype(np.float32)
    gate, up = np.minimum(x[:, :inner], 7), np.clip(x[:, inner:], -7, 7)
    bound = 16 * EPS * np.abs(gate).astype(np.float64) * np.abs(up.astype(np.float64) + 1)
    got = native().act(x, "swiglu_clamped")
    within(got, ReferenceOps().act(x, "swiglu_clamped"), bound)


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize(("tokens", "inner"), [(1, 1), (3, 17), (33, 172), (2, 1000)])
def test_activate(
    native: Make, rng: np.random.Generator, kind: str, tokens: int, inner: int
) -> None:
    x = normal(rng, tokens, inner) * np.float32(10) ** rng.integers(-2, 3, (tokens, 1))
    x = x.astype(np.float32)
    bound = 16 * EPS * np.abs(x).astype(np.float64)
    within(native().activate(x, kind), ReferenceOps().activate(x, kind), bound)


@pytest.mark.parametrize(("tokens", "width"), [(1, 1), (3, 17), (33, 172), (2, 4097)])
def test_factors_in_place(native: Make, rng: np.random.Generator, tokens: int, width: int) -> None:
    ops, ref = native(), ReferenceOps()
    x = normal(rng, tokens, width) * np.float32(10) ** rng.integers(-3, 3, (tokens, 1))
    x = x.astype(np.float32)
    mine, truth = x.copy(), x.copy()
    ops.scale(mine, 45.254833)
    ref.scale(truth, 45.254833)
    assert (mine == truth).all()
    for cap in (5.0, 30.0):
        mine, truth = x.copy(), x.copy()
        ops.softcap(mine, cap)
        ref.softcap(truth, cap)
        within(mine, truth, 16 * EPS * np.abs(truth))
    mine, truth, logits = x.copy(), x.copy(), (normal(rng, tokens, 1) * 10).astype(np.float32)
    ops.gate(mine, logits)
    ref.gate(truth, logits)
    within(mine, truth, 16 * EPS * np.abs(x))


def test_concat(make: Make, rng: np.random.Generator) -> None:
    ops, parts = make(), [normal(rng, 5, 3, n) for n in (1, 8, 2)]
    got = ops.concat(parts)
    assert got.shape == (5, 3, 11) and got.flags.c_contiguous
    assert (got[..., 1:9] == parts[1]).all() and (got[..., 9:] == parts[2]).all()


def test_the_page_has_every_op() -> None:
    page = (Path(__file__).parents[2] / "docs" / "ops.md").read_text()
    rows = set(re.findall(r"`(\w+)\(", "\n".join(re.findall(r"^\|.*", page, re.M))))
    ops = {name for name, one in vars(Ops).items() if callable(one) and name[0] != "_"}
    assert ops - rows == set()
