"""The roofline's arithmetic, by values worked out by hand."""

import dataclasses
from dataclasses import replace

import pytest

from flyweight.describe import ASSETS, describe
from flyweight.plan.roofline import (
    MachineLimits,
    Matrix,
    OpCost,
    Shape,
    StepShape,
    count_chunk_pairs,
    count_pairs,
    make_attention_cost,
    make_shape,
    sum_work,
)
from flyweight.spec import KV_TYPES, KVGroup, LayerSpec

LIMITS = MachineLimits(read=100.0, int8=1000.0, bf16=500.0, f32=250.0)
LAYER = LayerSpec(heads=4, head=8, kv=KVGroup(heads=2, k_dim=8, v_dim=8), inner=16)


def test_an_op_takes_what_binds() -> None:
    assert (
        OpCost(2000, 100, "int8").compute_seconds(LIMITS) == 2.0
    )  # arithmetic: 2000 / 1000 above 100 / 100
    assert OpCost(2000, 500, "int8").compute_seconds(LIMITS) == 5.0  # memory
    assert OpCost(2000, 100, "bf16").compute_seconds(LIMITS) == 4.0
    assert OpCost(2000, 100, "f32").compute_seconds(LIMITS) == 8.0


def test_a_matrix_counts_two_operations_a_weight_and_token() -> None:
    assert Matrix(10, 20, 300, "int8").make_op(7) == OpCost(2 * 10 * 20 * 7, 300, "int8")
    assert Matrix(10, 20, 300, "int8").make_op(0) == OpCost(
        0, 0, "int8"
    )  # nothing meets it, nothing is read


def test_an_expert_is_met_by_its_share_of_tokens() -> None:
    op = Matrix(10, 20, 300, "int8", share=0.25).make_op(2)
    assert op.operations == 2 * 10 * 20 * 2 * 0.25
    assert op.nbytes == pytest.approx(300 * (1 - 0.75 * 0.75))


@pytest.mark.parametrize(
    "count, context, window, pairs",
    [
        (1, 1, 1 << 62, 1),
        (1, 9, 1 << 62, 9),
        (3, 3, 1 << 62, 1 + 2 + 3),
        (2, 10, 1 << 62, 9 + 10),
        (1, 9, 4, 4),
        (5, 5, 3, 1 + 2 + 3 + 3 + 3),
        (2, 10, 4, 4 + 4),
    ],
)
def test_pairs_of_queries_and_keys(count: int, context: int, window: int, pairs: int) -> None:
    assert count_pairs(count, context, window) == pairs
    walked = sum(min(seen, window) for seen in range(context - count + 1, context + 1))
    assert walked == pairs


@pytest.mark.parametrize("chunk", [1, 3, 8, 100])
def test_pairs_within_chunks(chunk: int) -> None:
    for context in range(20):
        assert count_chunk_pairs(chunk, context) == sum(p % chunk + 1 for p in range(context))
    layer = replace(LAYER, kv=replace(LAYER.kv, chunk=8))
    op = make_attention_cost(layer, StepShape(((3, 18),), 1, 100), KV_TYPES["bf16"])
    assert op.operations == 2 * (8 + 1 + 2) * 4 * 16  # positions 15, 16, 17
    assert op.nbytes == (18 - 8) * layer.kv.width * 2


def test_attention_reads_shared_positions_once() -> None:
    alone = StepShape(((1, 100), (1, 100)), rows=2, distinct=200)
    together = dataclasses.replace(alone, distinct=110)
    width = 2 * (8 + 8)
    assert make_attention_cost(LAYER, alone, KV_TYPES["bf16"]) == OpCost(
        2 * 200 * 4 * 16, 200 * width * 2, "bf16"
    )
    assert make_attention_cost(LAYER, together, KV_TYPES["bf16"]) == OpCost(
        2 * 200 * 4 * 16, 110 * width * 2, "bf16"
    )


def test_attention_reads_no_more_than_its_window() -> None:
    layer = dataclasses.replace(LAYER, kv=KVGroup(2, 8, 8, window=10))
    op = make_attention_cost(
        layer, StepShape(((1, 100),), rows=1, distinct=100), KV_TYPES["bf16"], layers=3
    )
    assert op == OpCost(3 * 2 * 10 * 4 * 16, 3 * 10 * 32 * 2, "bf16")


def test_a_step_adds_up_its_ops_each_at_its_own_limit() -> None:
    body = Matrix(10, 20, 300, "int8")
    head = Matrix(50, 20, 100, "bf16", head=True)
    two = Shape(((body, 2), (head, 1)), ((LAYER, 1),), kv_type=KV_TYPES["bf16"])
    step = StepShape(((3, 3),), rows=1, distinct=3)
    # two bodies: 1200 operations, 300 bytes: 3 s of reading each; head: 2000 bf16 = 4 s
    # attention: 2 * 6 pairs * 4 heads * 16 = 768 bf16 = 1.536 s; 3 * 32 * 2 = 192 bytes = 1.92 s
    done = sum_work(two, [step], LIMITS)
    assert done.operations == 2 * 1200 + 2000 + 768
    assert done.nbytes == 600 + 100 + 192
    assert done.seconds == pytest.approx(3 + 3 + 4 + 1.92)
    again = sum_work(two, [step, step], LIMITS)
    assert again.seconds == pytest.approx(2 * done.seconds)


def test_the_shape_of_the_model_inside_is_its_files() -> None:
    found = describe(ASSETS / "stories.gguf")
    requested = make_shape(found.checkpoint, found.plan, found.spec, "int8", "f16")
    read = sum(matrix.nbytes * n for matrix, n in requested.matrices)
    size = (ASSETS / "stories.gguf").stat().st_size
    assert 0.9 * size < read < size  # the rest: vocabulary, norms, padding
    weights = sum(matrix.rows * matrix.columns * n for matrix, n in requested.matrices)
    assert read == weights * 34 // 32  # Q8_0
    assert {matrix.unit for matrix, _ in requested.matrices} == {"int8"}
    heads = [matrix for matrix, _ in requested.matrices if matrix.head]
    assert [(m.rows, m.columns) for m in heads] == [(found.spec.vocab, found.spec.hidden)]
    assert sum(n for _, n in requested.layers) == len(found.spec.layers)
