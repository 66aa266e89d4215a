"""Routing and experts of the CUDA backend: docs/ops.md's rows of them."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from op_cases import EPS, normal, part

from flyweight.errors import ConfigError
from flyweight.ops.cuda import CudaOps, experts
from flyweight.ops.reference import ReferenceOps
from flyweight.spec import RouteSpec
from flyweight.wire import F32, I32

ref = ReferenceOps()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(37)


def put(ops: CudaOps, x: F32) -> torch.Tensor:
    return torch.from_numpy(x.copy()).to(ops.device)


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
    RouteSpec(512, 10, "softmax", normalise=True),
]


def choose(ops: CudaOps, logits: F32, spec: RouteSpec, bias: F32 | None) -> tuple[I32, F32]:
    ids, weights = ops.route(put(ops, logits), spec, bias)
    assert ids.dtype == torch.int32 and weights.dtype == torch.float32
    return ops.fetch(ids), ops.fetch(weights)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_route(device: str, rng: np.random.Generator, spec: RouteSpec, biased: bool) -> None:
    logits = (normal(rng, 9, spec.experts) * 3).astype(np.float32)
    bias = normal(rng, spec.experts) if biased else None
    got, want = choose(CudaOps(device), logits, spec, bias), ref.route(logits, spec, bias)
    assert (got[0] == want[0]).all()
    assert (np.abs(got[1] - want[1]) <= 2 * EPS * np.abs(want[1])).all()


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_equal_scores_go_by_id(device: str, spec: RouteSpec) -> None:
    logits = np.ones((2, spec.experts), np.float32)
    chosen, weights = choose(CudaOps(device), logits, spec, None)
    assert (chosen == np.arange(spec.top)).all() and (weights == weights[0, 0]).all()


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_route_rows_stand_for_themselves(
    device: str, rng: np.random.Generator, spec: RouteSpec
) -> None:
    ops, logits, bias = CudaOps(device), normal(rng, 9, spec.experts), normal(rng, spec.experts)
    chosen, weights = choose(ops, logits, spec, bias)
    for t in (0, 4, 8):
        one = choose(ops, logits[t : t + 1], spec, bias)
        assert (one[0] == chosen[t]).all() and (one[1] == weights[t]).all()
    logits[3], logits[5, 0], logits[6], logits[7, -1] = np.nan, np.inf, -np.inf, np.nan
    again, want = choose(ops, logits, spec, bias), ref.route(logits, spec, bias)
    rest = [0, 1, 2, 4, 8]
    assert (again[0][rest] == chosen[rest]).all() and (again[1][rest] == weights[rest]).all()
    assert (again[0] == want[0]).all()
    assert (np.isnan(again[1]) == np.isnan(want[1])).all()
    assert choose(ops, logits[:0], spec, None)[0].shape == (0, spec.top)


# --- experts ---

HIDDEN, INNER, EXPERTS = 128, 64, 4
CASES = [  # kinds, activations, sizes
    (("f32",), "f32", (128, 64)),
    (("bf16",), "bf16", (128, 64)),
    (("q8_0",), "bf16", (128, 64)),
    (("q4_0",), "f32", (128, 64)),
    (("q4_k",), "bf16", (256, 256)),
    (("u4_g128",), "bf16", (128, 128)),
    (("nf4_g64",), "bf16", (128, 64)),
    (("e4m3_rows",), "bf16", (128, 64)),
    (("q4_0", "bf16"), "bf16", (128, 64)),
]


def mixture(
    ops: Any,
    kinds: tuple[str, ...],
    biased: bool = False,
    inner: int = INNER,
    hidden: int = HIDDEN,
) -> tuple[list[Any], list[Any]]:
    """EXPERTS experts; expert e is of the e-th kind, in turn.  The same weights for every `ops`."""
    rng = np.random.default_rng(1)
    up: list[Any] = []
    down: list[Any] = []
    for e in range(EXPERTS):
        for made, n, k in ((up, 2 * inner, hidden), (down, hidden, inner)):
            piece = part(rng, kinds[e % len(kinds)], n, k)
            made.append(ops.pack((n, k), [piece], normal(rng, n) if biased else None))
    return up, down


def choices(rng: np.random.Generator, tokens: int, top: int) -> tuple[I32, F32]:
    chosen = np.stack([rng.permutation(EXPERTS)[:top] for _ in range(tokens)]).astype(np.int32)
    return chosen, rng.random((tokens, top)).astype(np.float32)


def ask(
    ops: CudaOps, x: F32, chosen: I32, weights: F32, mixed: tuple[list[Any], list[Any]],
    act: str = "silu",
) -> F32:  # fmt: skip
    got = ops.experts(put(ops, x), chosen, weights, *mixed, act)
    assert got.dtype == torch.float32
    return ops.fetch(got)


def check(got: F32, want: F32, mode: str) -> None:
    """To a part of the largest number of a row: sums of some hundred products."""
    part_of = 2e-5 if mode == "f32" else 2.0**-7
    size = np.abs(want).max(axis=1, keepdims=True)
    assert (np.abs(got - want) <= part_of * size).all(), np.abs((got - want) / size).max()


@pytest.mark.parametrize(("kinds", "mode", "sizes"), CASES, ids=str)
def test_experts(
    device: str, rng: np.random.Generator, kinds: tuple[str, ...], mode: str, sizes: tuple[int, int]
) -> None:
    ops, true, (hidden, inner) = CudaOps(device, mode), ReferenceOps(mode), sizes
    x, (chosen, weights) = normal(rng, 5, hidden), choices(rng, 5, 2)
    mixed = mixture(ops, kinds, True, inner, hidden)
    whole = ask(ops, x, chosen, weights, mixed)
    truth = mixture(true, kinds, True, inner, hidden)
    check(whole, true.experts(x, chosen, weights, *truth, "silu"), mode)
    for start, end in ((0, 1), (2, 4)):
        span = slice(start, end)
        got = ask(ops, x[span], chosen[span], weights[span], mixed)
        assert (got == whole[span]).all(), (start, end)


def test_gate_and_up_of_two_kinds(device: str, rng: np.random.Generator) -> None:
    """Experts that are tuples, cut at any row."""
    ops, true = CudaOps(device, "bf16"), ReferenceOps("bf16")
    mixed: list[Any] = []
    for backend in (ops, true):
        drawn = np.random.default_rng(3)
        up = [
            tuple(
                backend.pack((n, HIDDEN), [part(drawn, kind, n, HIDDEN)], normal(drawn, n))
                for kind, n in (("q4_0", 40), ("bf16", 88))
            )
            for _ in range(EXPERTS)
        ]
        mixed.append((up, mixture(backend, ("q8_0",))[1]))
    x, (chosen, weights) = normal(rng, 3, HIDDEN), choices(rng, 3, 2)
    got = ask(ops, x, chosen, weights, mixed[0])
    check(got, true.experts(x, chosen, weights, *mixed[1], "silu"), "bf16")
    assert (ask(ops, x[:1], chosen[:1], weights[:1], mixed[0]) == got[0]).all()


@pytest.mark.parametrize(("act", "inner"), [("gelu_tanh", 72), ("swiglu_clamped", 20)])
def test_odd_sizes(device: str, rng: np.random.Generator, act: str, inner: int) -> None:
    """Experts whose rows end in the middle of a tile."""
    ops = CudaOps(device, "f32")
    x, (chosen, weights) = normal(rng, 4, HIDDEN), choices(rng, 4, 3)
    got = ask(ops, x, chosen, weights, mixture(ops, ("bf16",), False, inner), act)
    want = ref.experts(x, chosen, weights, *mixture(ref, ("bf16",), False, inner), act)
    check(got, want, "f32")


def test_ragged_loads(device: str, rng: np.random.Generator) -> None:
    """Everything to one expert, some that nobody chose, an expert twice, many tiles, one token."""
    ops, tokens = CudaOps(device, "bf16"), 21
    mixed, true = mixture(ops, ("bf16",), False, 32), ReferenceOps("bf16")
    x, truth = normal(rng, tokens, HIDDEN), mixture(true, ("bf16",), False, 32)
    for row in ([3], [2, 2], [3, 0], [0, 1, 2, 3]):
        chosen = np.tile(np.array(row, np.int32), (tokens, 1))
        weights = rng.random(chosen.shape).astype(np.float32)
        got = ask(ops, x, chosen, weights, mixed)
        check(got, true.experts(x, chosen, weights, *truth, "silu"), "bf16")
        assert (ask(ops, x[:1], chosen[:1], weights[:1], mixed) == got[0]).all()
        assert (ask(ops, x[7:20], chosen[7:20], weights[7:20], mixed) == got[7:20]).all()
    assert ask(ops, x[:0], chosen[:0], weights[:0], mixed).shape == (0, HIDDEN)


@pytest.mark.parametrize(("kind", "mode"), [("bf16", "bf16"), ("q4_0", "bf16"), ("bf16", "f32")])
def test_rows_do_not_depend_on_the_call(
    device: str, rng: np.random.Generator, kind: str, mode: str
) -> None:
    """Calls of every size of tile, on a GPU."""
    ops, tokens = CudaOps(device, mode), 1500 if device == "cuda" else 20
    mixed = mixture(ops, (kind,), True, 32)
    x, (chosen, weights) = normal(rng, tokens, HIDDEN), choices(rng, tokens, 2)
    whole = ask(ops, x, chosen, weights, mixed)
    for start, count in ((0, 1), (5, 2), (3, 12), (9, 40), (1, 120), (100, 700)):
        span = slice(start, start + count)
        if count < tokens:
            got = ask(ops, x[span], chosen[span], weights[span], mixed)
            assert (got == whole[span]).all(), (start, count)


def test_long_calls_are_cut(
    device: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = CudaOps(device, "f32")
    mixed = mixture(ops, ("bf16",), False, 32)
    x, (chosen, weights) = normal(rng, 9, HIDDEN), choices(rng, 9, 2)
    want = ask(ops, x, chosen, weights, mixed)
    monkeypatch.setattr(experts, "MOST_PAIRS", 7)
    assert (ask(ops, x, chosen, weights, mixed) == want).all()


def test_nan_rows_touch_nothing_else(device: str, rng: np.random.Generator) -> None:
    ops = CudaOps(device, "bf16")
    mixed = mixture(ops, ("bf16",), False, 32)
    x, (chosen, weights) = normal(rng, 12, HIDDEN), choices(rng, 12, 2)
    want = ask(ops, x, chosen, weights, mixed)
    x[5], weights[8, 1] = np.nan, np.nan
    got, rest = ask(ops, x, chosen, weights, mixed), np.delete(np.arange(12), [5, 8])
    assert (got[rest] == want[rest]).all() and np.isnan(got[[5, 8]]).all()


def test_stacks_hold_nothing_twice(device: str, rng: np.random.Generator) -> None:
    """An expert is a view of its layer's stack, for both kinds of products and for `linear`."""
    ops, exact = CudaOps(device, "bf16"), CudaOps(device, "f32")
    up, down = mixture(ops, ("q4_0",), True, 32)
    x, (chosen, weights) = normal(rng, 3, HIDDEN), choices(rng, 3, 2)
    before = [ops.fetch(ops.linear(put(ops, x), w)) for w in up]
    ask(ops, x, chosen, weights, (up, down))
    held = up[0].data.untyped_storage().data_ptr()
    ask(exact, x, chosen, weights, (list(up), list(down)))
    assert all(w.data.untyped_storage().data_ptr() == held for w in up)
    assert all(w.bias.untyped_storage().data_ptr() == up[0].bias.data_ptr() for w in up)
    after = [ops.fetch(ops.linear(put(ops, x), w)) for w in up]
    assert all((a == b).all() for a, b in zip(before, after, strict=True))


def test_layers_are_stacked_when_they_are_made(device: str) -> None:
    ops = CudaOps(device, "bf16")
    up, down = mixture(ops, ("bf16",), False, 32)
    mixed, plain = SimpleNamespace(up=up, down=down), SimpleNamespace(up=up[0], down=down[0])
    ops.stack([SimpleNamespace(reads_host=False, mlp=mlp) for mlp in (plain, mixed)])
    for experts_of in (up, down):
        first = experts_of[0].data.untyped_storage().data_ptr()
        assert all(w.data.untyped_storage().data_ptr() == first for w in experts_of)


def test_an_unknown_activation_is_refused(device: str, rng: np.random.Generator) -> None:
    ops = CudaOps(device)
    x, (chosen, weights) = normal(rng, 1, HIDDEN), choices(rng, 1, 2)
    with pytest.raises(ConfigError, match="did you mean 'silu'"):
        ops.experts(put(ops, x), chosen, weights, *mixture(ops, ("bf16",), False, 32), "silux")
