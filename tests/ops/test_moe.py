"""Routing, experts and heads with a matrix each: docs/ops.md's rows of them, for every backend.

A mixture is `linear`, `act`, `linear` of the same backend, bit for bit, and a sum in the order of
ids; what those ops owe the reference is in test_contract.py.
"""

from functools import lru_cache

import numpy as np
import pytest
from op_cases import EPS, GROUPED, Make, ids, normal, part

from flyweight.ops.base import ACTIVATIONS, Array, Ops
from flyweight.ops.cpu import CpuOps
from flyweight.ops.grouped import GroupedWeight
from flyweight.ops.operands import Weights
from flyweight.ops.reference import ReferenceOps
from flyweight.plan.step import count_experts_bytes
from flyweight.spec import RouteSpec
from flyweight.wire import F32, I32

HIDDEN, INNER, EXPERTS = 256, 256, 7
KINDS = ("f32", "bf16", *GROUPED)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(23)


# --- routing ---

SPECS = [
    RouteSpec(128, 8, "softmax", normalise=True),
    RouteSpec(60, 4, "softmax"),
    RouteSpec(32, 4, "chosen"),
    RouteSpec(8, 2, "chosen"),
    RouteSpec(256, 8, "sigmoid", normalise=True, scale=2.5, groups=8, kept=4),
    RouteSpec(256, 8, "sigmoid", normalise=True, scale=2.5, groups=8, kept=4, judges=2),
    RouteSpec(12, 3, "sigmoid", groups=4, kept=2, judges=3),
    RouteSpec(160, 6, "softmax", scale=16.0, groups=8, kept=3),
    RouteSpec(16, 1, "sigmoid"),
    RouteSpec(3, 3, "softmax"),
    RouteSpec(6, 5, "softmax", groups=3, kept=1),  # more chosen than the kept groups hold
    RouteSpec(1, 1, "softmax"),
]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_route(native: Make, rng: np.random.Generator, spec: RouteSpec, biased: bool) -> None:
    logits = (normal(rng, 33, spec.experts) * 3).astype(np.float32)
    bias = normal(rng, spec.experts) if biased else None
    got, want = native().route(logits, spec, bias), ReferenceOps().route(logits, spec, bias)
    assert got[0].dtype == np.int32 and got[1].dtype == np.float32
    assert (got[0] == want[0]).all()
    assert (np.abs(got[1] - want[1]) <= 2 * EPS * np.abs(want[1])).all()


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_equal_scores_go_by_id(make: Make, spec: RouteSpec) -> None:
    chosen, weights = make().route(np.ones((2, spec.experts), np.float32), spec)
    assert (chosen == np.arange(spec.top)).all() and (weights == weights[0, 0]).all()


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_route_rows_stand_for_themselves(
    make: Make, rng: np.random.Generator, spec: RouteSpec
) -> None:
    logits, bias = normal(rng, 20, spec.experts), normal(rng, spec.experts)
    chosen, weights = make(threads=3).route(logits, spec, bias)
    for t in range(20):
        one = make(threads=1).route(logits[t : t + 1], spec, bias)
        assert (one[0] == chosen[t]).all() and (one[1] == weights[t]).all()
    spoilt = logits.copy()
    spoilt[3], spoilt[7, 0], spoilt[8] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        again = make(threads=2).route(spoilt, spec, bias)
    rest = np.delete(np.arange(20), [3, 7, 8])
    assert (again[0][rest] == chosen[rest]).all() and (again[1][rest] == weights[rest]).all()
    assert (again[0] >= 0).all() and (again[0] < spec.experts).all()
    assert all(len(set(row)) == spec.top for row in again[0].tolist())
    assert make().route(logits[:0], spec, None)[0].shape == (0, spec.top)


# --- experts ---


@lru_cache(2)  # tests of one kind follow each other, in every mode
def draw(
    seed: int, kinds: tuple[str, ...], biased: bool, inner: int
) -> list[tuple[GroupedWeight | Array, F32 | None]]:
    """The matrices of `mixture`, up and down in turn, each with its bias."""
    rng, drawn = np.random.default_rng(seed), []
    for e in range(EXPERTS):
        for n, k in ((2 * inner, HIDDEN), (HIDDEN, inner)):
            matrix = part(rng, kinds[e % len(kinds)], n, k)
            drawn.append((matrix, normal(rng, n) if biased else None))
    return drawn


def weight(ops: Ops, rng: np.random.Generator, kind: str, n: int, k: int, biased: bool) -> Weights:
    return ops.pack((n, k), [part(rng, kind, n, k)], normal(rng, n) if biased else None)


def mixture(
    ops: Ops, seed: int, kinds: tuple[str, ...], biased: bool = False, inner: int = INNER
) -> tuple[list[Weights], list[Weights]]:
    """EXPERTS experts; expert e is of the e-th kind, in turn.  The same weights for every `ops`."""
    packed = [
        ops.pack(matrix.shape, [matrix], bias) for matrix, bias in draw(seed, kinds, biased, inner)
    ]
    return packed[::2], packed[1::2]


def choices(rng: np.random.Generator, tokens: int, top: int) -> tuple[I32, F32]:
    chosen = np.stack([rng.permutation(EXPERTS)[:top] for _ in range(tokens)]).astype(np.int32)
    return chosen, rng.random((tokens, top)).astype(np.float32)


def said(ops: Ops, x: F32, up: list[Weights], down: list[Weights], act: str = "silu") -> list[F32]:
    """Every expert's answer to every token, through the finer ops."""
    return [ops.linear(ops.act(ops.linear(x, u), act), d) for u, d in zip(up, down, strict=True)]


def check_sum(got: F32, answers: list[F32], chosen: I32, weights: F32) -> None:
    for t, row in enumerate(chosen):
        terms = [weights[t, j] * answers[e][t].astype(np.float64) for j, e in enumerate(row)]
        bound = (len(row) + 1) * EPS * np.abs(terms).sum(axis=0)
        assert (np.abs(got[t] - np.sum(terms, axis=0)) <= bound).all(), t


@pytest.mark.parametrize("mode", ACTIVATIONS)
@pytest.mark.parametrize("kinds", [(kind,) for kind in KINDS] + [KINDS], ids=str)
def test_experts_are_the_finer_ops(
    make: Make, rng: np.random.Generator, kinds: tuple[str, ...], mode: str
) -> None:
    ops = make(mode, threads=2)
    up, down = mixture(ops, 1, kinds, biased=True)
    x, (chosen, weights) = normal(rng, 9, HIDDEN), choices(rng, 9, 3)
    kept = x.copy(), chosen.copy(), weights.copy()
    got = ops.experts(x, chosen, weights, up, down, "silu")
    assert got.shape == x.shape and got.dtype == np.float32
    answers = said(ops, x, up, down)
    check_sum(got, answers, chosen, weights)
    assert all((a == b).all() for a, b in zip(kept, (x, chosen, weights), strict=True))
    one = np.ones((9, 1), np.float32)  # a sum of one term is that term
    alone = ops.experts(x, chosen[:, :1].copy(), one, up, down, "silu")
    assert all((alone[t] == answers[e][t]).all() for t, e in enumerate(chosen[:, 0]))


def test_experts_against_the_reference(native: Make, rng: np.random.Generator) -> None:
    ops, ref = native(), ReferenceOps()
    x, (chosen, weights) = normal(rng, 9, HIDDEN), choices(rng, 9, 3)
    for act in ("silu", "gelu_tanh", "swiglu_clamped"):
        got = ops.experts(x, chosen, weights, *mixture(ops, 1, ("bf16",), True), act)
        want = ref.experts(x, chosen, weights, *mixture(ref, 1, ("bf16",), True), act)
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * np.abs(want).max())


@pytest.mark.parametrize("mode", ACTIVATIONS)
@pytest.mark.parametrize(
    "kinds", [("f32",), ("q4_0", "q8_0"), ("q4_k", "q6_k"), ("bf16",)], ids=str
)
def test_experts_rows_do_not_depend_on_the_call(
    make: Make, rng: np.random.Generator, kinds: tuple[str, ...], mode: str, at_length: bool
) -> None:
    slow = getattr(make(), "isa", "scalar") == "scalar"  # and the reference
    tokens = 12 if slow and not at_length else 40
    x, (chosen, weights) = normal(rng, tokens, HIDDEN), choices(rng, tokens, 3)
    want: F32 | None = None
    for threads in (1, 2, 3):
        ops = make(mode, threads=threads)
        up, down = mixture(ops, 2, kinds, biased=True)
        whole = ops.experts(x, chosen, weights, up, down, "silu")
        assert want is None or (whole == want).all()
        want = whole
        for start, end in ((0, 1), (1, 3), (3, 10), (10, tokens), (tokens - 1, tokens)):
            span = slice(start, end)
            got = ops.experts(x[span], chosen[span], weights[span], up, down, "silu")
            assert (got == whole[span]).all(), (threads, start, end)


@pytest.mark.parametrize("mode", ["f32", "int8"])
def test_ragged_loads(make: Make, rng: np.random.Generator, mode: str) -> None:
    """Everything to one expert, some that nobody chose, an expert twice, one token, none."""
    ops = make(mode)
    up, down = mixture(ops, 3, ("q8_0", "f32"))
    x = normal(rng, 21, HIDDEN)
    answers = said(ops, x, up, down)
    for row in ([4], [4, 4], [6, 0], [0, 1, 2, 3, 4, 5, 6]):
        chosen = np.tile(ids(*row), (21, 1))
        weights = rng.random(chosen.shape).astype(np.float32)
        got = ops.experts(x, chosen, weights, up, down, "silu")
        check_sum(got, answers, chosen, weights)
        assert (ops.experts(x[:1], chosen[:1], weights[:1], up, down, "silu") == got[0]).all()
    none = ops.experts(x[:0], chosen[:0], weights[:0], up, down, "silu")
    assert none.shape == (0, HIDDEN)


def test_nan_rows_touch_nothing_else(make: Make, rng: np.random.Generator) -> None:
    for mode in ACTIVATIONS:
        ops = make(mode)
        up, down = mixture(ops, 4, ("q4_0", "f32"))
        x, (chosen, weights) = normal(rng, 12, HIDDEN), choices(rng, 12, 2)
        want = ops.experts(x, chosen, weights, up, down, "silu")
        x[5], weights[8, 1] = np.nan, np.nan
        with np.errstate(invalid="ignore"):
            got = ops.experts(x, chosen, weights, up, down, "silu")
        rest = np.delete(np.arange(12), [5, 8])
        assert (got[rest] == want[rest]).all() and np.isnan(got[8]).all()


def test_gate_and_up_of_two_kinds(make: Make, rng: np.random.Generator) -> None:
    """A weight may be a tuple, its parts of any number of rows."""
    ops = make("int8")
    up: list[Weights] = []
    down: list[Weights] = []
    for cut in (INNER, 3, 500, 256, 17, 100, 40):
        first = weight(ops, rng, "q4_k", cut, HIDDEN, True)
        second = weight(ops, rng, "q6_k", 2 * INNER - cut, HIDDEN, False)
        assert not isinstance(first, tuple) and not isinstance(second, tuple)
        up.append((first, second))
        down.append(weight(ops, rng, "bf16", HIDDEN, INNER, False))
    x, (chosen, weights) = normal(rng, 9, HIDDEN), choices(rng, 9, 2)
    got = ops.experts(x, chosen, weights, up, down, "gelu")
    check_sum(got, said(ops, x, up, down, "gelu"), chosen, weights)


def test_more_pairs_than_a_wave(native: Make, rng: np.random.Generator) -> None:
    """16 MiB of working memory hold some 600 pairs of 2,048; here are 1,200."""
    ops = native("int8")
    up, down = mixture(ops, 5, ("q8_0",), inner=2048)
    x, (chosen, weights) = normal(rng, 400, HIDDEN), choices(rng, 400, 3)
    got = ops.experts(x, chosen, weights, up, down, "silu")
    for span in (slice(0, 7), slice(190, 230), slice(393, 400)):
        part_of = ops.experts(x[span], chosen[span], weights[span], up, down, "silu")
        assert (part_of == got[span]).all()


@pytest.mark.parametrize("hidden", [1, 15, 33])
def test_sizes_that_are_no_multiple_of_a_vector(
    make: Make, rng: np.random.Generator, hidden: int
) -> None:
    ops, inner = make(), 21
    up = [weight(ops, rng, "f32", 2 * inner, hidden, True) for _ in range(EXPERTS)]
    down = [weight(ops, rng, "f32", hidden, inner, True) for _ in range(EXPERTS)]
    x, (chosen, weights) = normal(rng, 8, hidden), choices(rng, 8, 2)
    got = ops.experts(x, chosen, weights, up, down, "silu")
    check_sum(got, said(ops, x, up, down), chosen, weights)


# --- heads ---


@pytest.mark.parametrize("mode", ACTIVATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_linear_heads(make: Make, rng: np.random.Generator, kind: str, mode: str) -> None:
    heads, n = 5, 33
    x = normal(rng, 14, heads, HIDDEN)
    want: Array | None = None
    for threads in (1, 2, 3):
        ops, same = make(mode, threads=threads), np.random.default_rng(3)
        some = [weight(ops, same, kind, n, HIDDEN, h == 2) for h in range(heads)]
        some[1] = (
            ops.pack((20, HIDDEN), [part(same, kind, 20, HIDDEN)]),
            ops.pack((n - 20, HIDDEN), [part(same, "f32", n - 20, HIDDEN)]),
        )
        got = ops.linear_heads(x, some)
        assert got.shape == (14, heads, n) and got.dtype == np.float32
        for h, w in enumerate(some):
            assert (got[:, h] == ops.linear(np.ascontiguousarray(x[:, h]), w)).all()
        for start, end in ((0, 1), (1, 6), (13, 14), (3, 3)):
            assert (ops.linear_heads(x[start:end], some) == got[start:end]).all()
        assert want is None or (got == want).all()
        want = got


@pytest.mark.parametrize("mode", ACTIVATIONS)
@pytest.mark.parametrize(("tokens", "top", "inner"), [(1, 3, 256), (64, 7, 512), (300, 4, 2048)])
def test_the_plan_bounds_the_working_memory(
    rng: np.random.Generator, mode: str, tokens: int, top: int, inner: int
) -> None:
    """Of the worst case: gate and up in two kinds, both dense."""
    ops = CpuOps(2, None, mode)
    some = [normal(rng, inner, HIDDEN) for _ in range(2)]
    gate_up = tuple(ops.pack((inner, HIDDEN), [values]) for values in some)
    down = ops.pack((HIDDEN, inner), [normal(rng, HIDDEN, inner)])
    x, (chosen, weights) = normal(rng, tokens, HIDDEN), choices(rng, tokens, top)
    ops.experts(x, chosen, weights, [gate_up] * EXPERTS, [down] * EXPERTS, "silu")
    route = RouteSpec(EXPERTS, top)
    planned = count_experts_bytes(route, HIDDEN, inner, tokens)
    returned = tokens * (HIDDEN + EXPERTS) * 4 + 2 * chosen.nbytes
    assert ops._gemm.panels.nbytes + returned <= planned <= 3 * (ops._gemm.panels.nbytes + returned)
