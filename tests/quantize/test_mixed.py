"""Mixed precision: the choice under a budget, and what each matrix costs."""

import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import prepare, run_job

from flyweight import ConfigError
from flyweight.describe import describe
from flyweight.ops.cpu import CpuOps
from flyweight.quantize.allocation import allocate, allocate_cost
from flyweight.quantize.calibration import CalibrationText
from flyweight.quantize.costs import CostMeter, TypeCost
from flyweight.quantize.ggml.encode import BlockEncoder
from flyweight.quantize.ggml.recipes import find_recipe
from flyweight.quantize.gguf_job import make_target
from flyweight.quantize.make import make_reading
from flyweight.quantize.options import QuantizeOptions
from flyweight.quantize.sensitivity import SensitivityRun
from flyweight.weights.formats import FORMATS
from flyweight.weights.load import load

SIZES = st.lists(
    st.lists(
        st.tuples(st.integers(1, 60), st.floats(0, 10, allow_subnormal=False)),
        min_size=1, max_size=4,
    ),
    min_size=1, max_size=5,
)  # fmt: skip


def make_costs(sizes: list[list[tuple[int, float]]]) -> dict[str, list[TypeCost]]:
    return {
        f"m{i}": [TypeCost(f"t{j}", n, c) for j, (n, c) in enumerate(each)]
        for i, each in enumerate(sizes)
    }


@given(SIZES, st.integers(1, 300))
def test_the_choice_is_the_best_of_all(sizes: list[list[tuple[int, float]]], budget: int) -> None:
    costs = make_costs(sizes)
    totals = [
        (sum(one.nbytes for one in choice), sum(one.divergence for one in choice))
        for choice in product(*costs.values())
    ]
    fitting = [cost for nbytes, cost in totals if nbytes <= budget]
    if not fitting:
        with pytest.raises(ConfigError, match="smallest types"):
            allocate(costs, budget)
        return
    found = allocate(costs, budget)
    assert found.nbytes <= budget
    assert found.cost == pytest.approx(min(fitting))
    assert found.bound <= found.cost + 1e-9
    assert found.nbytes == sum(
        next(one.nbytes for one in costs[name] if one.kind == kind)
        for name, kind in found.types.items()
    )


@given(SIZES, st.floats(0.1, 40))
def test_the_smallest_choice_within_a_cost(
    sizes: list[list[tuple[int, float]]], limit: float
) -> None:
    costs = make_costs(sizes)
    totals = [
        (sum(one.nbytes for one in choice), sum(one.divergence for one in choice))
        for choice in product(*costs.values())
    ]
    fitting = [nbytes for nbytes, cost in totals if cost <= limit]
    if not fitting:
        with pytest.raises(ConfigError, match="max_kld"):
            allocate_cost(costs, limit)
        return
    found = allocate_cost(costs, limit)
    assert found.cost <= limit
    assert found.nbytes <= min(fitting) + 1


def test_a_large_budget_is_counted_in_larger_units() -> None:
    draw = np.random.default_rng(3)
    sizes = [
        [(int(n), float(1e6 / n * draw.uniform(0.5, 2))) for n in draw.integers(1, 10**6, 6)]
        for _ in range(60)
    ]
    found = allocate(make_costs(sizes), 20 * 10**6)
    assert found.nbytes <= 20 * 10**6
    assert found.gap < 0.02


def test_a_matrix_costs_what_the_model_loses_with_it(full: Path, words: CalibrationText) -> None:
    """Computed by a whole model with that matrix replaced."""
    from flyweight.models.decoder import Decoder, SingleProcess
    from flyweight.models.linear import Parts
    from flyweight.ops.grouped import GroupedWeight
    from flyweight.quantize.layers import make_batch
    from flyweight.weights.load import read_matrix

    found, ops = describe(full), CpuOps(1, None, "f32")
    windows = words.cut(make_reading(found), (), 4, 32)
    target = make_target(found, find_recipe("Q4_0"), False)
    run = SensitivityRun(found, windows, target.assignment.rows, ops)
    run.importance.clear()
    names = ["blk.0.attn_v.weight", "blk.1.ffn_down.weight", "token_embd.weight"]
    meter = CostMeter(lambda: run, target.assignment.rows, {})
    costs = meter.measure(dict.fromkeys(names, ("q4_0",)), lambda *_: None)
    weights = load(found.checkpoint, found.plan, ops)
    batch = make_batch(windows)

    def predict(held: dict[str, object]) -> np.ndarray:
        model = Decoder(Parts(ops, SingleProcess(), found.spec, held), windows.shape[1])
        kv = [
            ops.make_kv_layer(layer.kv, int(batch.tables.max()) + 1, 32, "f32")
            for layer in found.spec.layers
        ]
        rows = np.arange(windows.size, dtype=np.int32)
        logits = model.compute_logits(model.compute_hidden(batch, kv, rows)).astype(np.float64)
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    exact = predict(weights)
    pieces = {p.tensor: p for each in target.assignment.rows.values() for p in each}
    for name in names:
        piece = pieces[name]
        slot = next(s for s in found.plan.slots if s.name == piece.slot)
        rows = read_matrix(found.checkpoint, slot)
        own = slice(piece.first, piece.first + piece.rows)
        raw = BlockEncoder(1).encode("q4_0", rows[own])
        parsed = FORMATS["q4_0"].parse(raw, (piece.rows, rows.shape[1]))
        assert isinstance(parsed, GroupedWeight)
        rows[own] = parsed.dequantize()
        now = predict({**weights, piece.slot: ops.pack(rows.shape, [rows])})
        expected = (np.exp(exact) * (exact - now)).sum(axis=1).mean()
        assert costs[name][0].divergence == pytest.approx(expected, rel=1e-4)


def test_costs_are_measured_around_applied_types(full: Path, words: CalibrationText) -> None:
    """A matrix in the type it has leaves the divergence as it is; a finer one lowers it."""
    found = describe(full)
    target = make_target(found, find_recipe("Q4_0"), False)
    windows = words.cut(make_reading(found), (), 4, 32)
    run = SensitivityRun(found, windows, target.assignment.rows, CpuOps(1, None, "f32"))
    meter = CostMeter(lambda: run, target.assignment.rows, {})
    names = [p.tensor for each in target.assignment.rows.values() for p in each]
    whole = meter.apply(dict.fromkeys(names, "q4_0"))
    assert whole > 0
    near = {"token_embd.weight": ("q4_0", "q8_0"), "blk.1.attn_k.weight": ("q4_0", "q8_0")}
    for same, finer in meter.measure(near, lambda *_: None).values():
        assert same.divergence == pytest.approx(whole, rel=1e-5)
        assert finer.divergence < whole


@pytest.mark.parametrize("method", ["rtn", "gptq"])
def test_a_file_meets_its_size_and_its_divergence(
    full: Path, words: CalibrationText, tmp_path: Path, method: str
) -> None:
    sizes = {}
    for name, budget in (("small", 80_000), ("large", 100_000)):
        prepared = prepare(full, words, method=method, target_size=budget, length=32)
        out = run_job(prepared, tmp_path / f"{name}.gguf")
        sizes[name] = out.stat().st_size
        assert sizes[name] <= budget
        assert "mean KLD" in prepared.job.notes[0]
    assert sizes["small"] < sizes["large"]
    limited = prepare(full, words, method=method, max_kld=0.1, length=32)
    assert float(limited.job.notes[0].split()[2]) <= 0.1


def test_a_budget_is_met_by_gptq_unless_another_method_is_named() -> None:
    budgets: list[dict[str, Any]] = [{"target_size": 10**6}, {"max_kld": 0.1}]
    for budget in budgets:
        assert QuantizeOptions(**budget).method == "gptq"
        assert QuantizeOptions(**budget, method="rtn").method == "rtn"
    assert QuantizeOptions().method == QuantizeOptions(type="Q4_0").method == "rtn"


def test_the_nearest_size_is_one_that_can_be_made(full: Path, words: CalibrationText) -> None:
    options: dict[str, Any] = {"method": "rtn", "length": 32}
    with pytest.raises(ConfigError, match="target_size = 60000 is less than the file") as refused:
        prepare(full, words, target_size=60_000, **options)
    least = re.search(r"nearest valid: (\d+) bytes", str(refused.value))
    assert least is not None
    assert prepare(full, words, target_size=int(least[1]), **options).job.notes


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"target_size": 10}, "target_size = 10 is less than the file needs"),
        ({"max_kld": 1e-9}, "max_kld = 1e-09 cannot be met by any of the types; nearest valid"),
        ({"max_kld": -1.0}, "max_kld = -1.0 is not valid; allowed: above 0"),
        ({"max_kld": 0.1, "type": "Q4_0"}, "max_kld chooses the types of a GGUF file"),
        ({"max_kld": 0.1, "target_size": 99}, "target_size cannot be combined with max_kld"),
    ],
)
def test_budgets_that_nothing_meets_are_refused(
    full: Path, words: CalibrationText, options: dict[str, float], error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        prepare(full, words, method="rtn", length=32, **options)
