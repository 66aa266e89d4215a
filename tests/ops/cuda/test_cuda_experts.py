"""Routing and experts of the CUDA backend: docs/ops.md's rows of them."""

import numpy as np
import pytest
import torch
from op_cases import EPS, normal

from flyweight.ops.cuda import CudaOps
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
