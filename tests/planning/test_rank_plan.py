"""Ranks of one machine: what they share, rounds of stages and exchanges by hand, and what may be
divided.
"""

import os
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from flyweight.bench.rank_link import FLOAT, LARGE, SMALL, LinkSpeed
from flyweight.config import Settings
from flyweight.describe import SilentListener
from flyweight.errors import ConfigError
from flyweight.parallel.pipeline import count_parts
from flyweight.plan.roofline import MachineLimits, Matrix, Shape, StepShape, sum_work
from flyweight.planning import rank_limits
from flyweight.planning.calibration import LocalEngine
from flyweight.planning.outline import ModelOutline, outline_model
from flyweight.planning.rank_cost import (
    DividedModel,
    RankMachine,
    SharedLimits,
    StageShape,
    cut_step,
)
from flyweight.planning.rank_plan import (
    ALONE,
    RankAnswer,
    RankPlan,
    answer_ranks,
    choose_ways,
    divide_model,
    list_ways,
    list_work,
)
from flyweight.planning.rank_report import judge_nodes, report_ranks
from flyweight.planning.speed import SpeedQuestion, make_decode
from flyweight.spec import KV_TYPES

FREE = LinkSpeed(0.0, inf)
READ = MachineLimits(1e6, inf, inf, inf)  # only reading takes time
ASKED = SpeedQuestion(prompt=200, context=10, batches=(1,), chunk=128)


@pytest.fixture(scope="module")
def stories() -> ModelOutline:
    """Six layers, six query heads, two K/V heads."""
    return outline_model(Settings(model="stories"), SilentListener())


@pytest.fixture
def engine(outline: ModelOutline) -> LocalEngine:
    return LocalEngine.of(Settings(threads=2), outline)


def make_stages(nbytes: int, unit: str = "int8") -> DividedModel:
    """Two stages of one matrix of 8 x 8."""
    shape = Shape(((Matrix(8, 8, nbytes, unit), 1),), (), KV_TYPES["bf16"])
    return DividedModel(1, (StageShape(shape, 1, nbytes), StageShape(shape, 1, nbytes)), 8, 16)


def test_ranks_that_compute_at_the_same_time_share_limits() -> None:
    whole, alone = MachineLimits(10, 8, 4, 2), MachineLimits(7, 5, 2, 1)
    shared = SharedLimits(whole, alone, 10)
    assert shared.divide(1) == alone
    assert shared.divide(2) == MachineLimits(5, 4, 2, 1)
    assert SharedLimits(whole, alone, 20).divide(2) == MachineLimits(7, 4, 2, 1), "two nodes"


def test_memory_of_a_node_is_read_by_its_own_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks on two of three nodes: twice what half of the threads read on the first."""
    bound: list[set[int]] = []
    threads: list[int] = []

    def make_sampler(engine: object, count: int) -> SimpleNamespace:
        threads.append(count)
        read = 15.0 if not bound else 10.0
        return SimpleNamespace(sample_best=lambda count: MachineLimits(read, 1, 1, 1))

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: bound.append(set(cores)))
    monkeypatch.setattr(rank_limits, "_make_sampler", make_sampler)
    local: Any = SimpleNamespace(ops=SimpleNamespace(threads=4))
    nodes = [{0, 1}, {2, 3}, {4, 5}]
    found = rank_limits.sample_shared_limits(local, 2, nodes)
    assert (found.whole.read, found.read, threads) == (15, 20, [4, 2, 2])
    assert bound == [{0, 1}, set(range(6))], "and as before in the end"
    assert rank_limits.sample_shared_limits(local, 2, nodes[:1]).read == 10, "what all read"


def test_a_latency_and_a_bandwidth_from_two_sizes() -> None:
    link = LinkSpeed.of(1e-4, 3e-4)
    assert link.latency == 1e-4
    assert link.compute_seconds(FLOAT * (LARGE - SMALL)) == pytest.approx(3e-4)


def test_micro_batches_are_those_of_the_engine() -> None:
    counts = {1: 1, 127: 1, 128: 2, 512: 8, 4096: 8}
    assert {tokens: count_parts(tokens, 2) for tokens in counts} == counts
    assert make_stages(0).split(512).micro == 8


def test_a_step_is_cut_between_tokens() -> None:
    """The last sequence has computed 201 of its 300 positions before."""
    seen = StepShape(((100, 100), (1, 50), (99, 300)), 3, 450)
    assert cut_step(seen, 3) == [
        StepShape(((66, 66),), 0, 66),
        StepShape(((34, 100), (1, 50), (32, 233)), 0, 383),
        StepShape(((67, 300),), 0, 300),
    ]
    assert [part.tokens for part in cut_step(seen, 3)] == [66, 67, 67]


def test_one_memory_controller_gives_tensor_parallelism_nothing(
    outline: ModelOutline, engine: LocalEngine
) -> None:
    """Half of the bytes at half of the bandwidth, and on top two all-reduces a layer, one of the
    embedding, what begins the step, and the logits of 242 of 483 tokens.
    """
    link = LinkSpeed(1e-3, 1e6)
    model, decode = divide_model(outline, engine, (2, 1)), make_decode(1, 10)
    least = sum_work(engine.shape, [decode], READ).seconds
    cost = RankMachine(SharedLimits(READ, READ, READ.read), link).compute_cost(model, [decode])
    reduce = 1e-3 + FLOAT * 32 / 1e6
    exchange = (2 * 2 + 1) * reduce + 2 * 1e-3 + (1e-3 + FLOAT * 242 / 1e6)
    assert cost.exchange == pytest.approx(exchange)
    assert cost.seconds == pytest.approx(least + exchange)


def test_memory_of_two_nodes_is_read_at_the_same_time(
    outline: ModelOutline, engine: LocalEngine
) -> None:
    model, decode = divide_model(outline, engine, (2, 1)), make_decode(1, 10)
    machine = RankMachine(SharedLimits(READ, READ, 2 * READ.read), FREE)
    least = sum_work(engine.shape, [decode], READ).seconds
    assert machine.compute_cost(model, [decode]).seconds == pytest.approx(least / 2)


def test_kv_heads_fewer_than_ranks_are_read_by_several(
    outline: ModelOutline, engine: LocalEngine
) -> None:
    """Of four ranks two have each of two heads."""
    model = divide_model(outline, engine, (4, 1))
    machine = RankMachine(SharedLimits(READ, READ, READ.read), FREE)
    near, far = (
        machine.compute_cost(model, [StepShape(((1, seen),), 0, seen)]).seconds for seen in (10, 20)
    )
    token = sum(KV_TYPES[engine.kv_dtype].count_bytes(one.kv) for one in outline.spec.layers)
    assert far - near == pytest.approx(2 * 10 * token / READ.read)


def test_stages_wait_as_the_formula_says() -> None:
    """512 tokens in eight parts: nine rounds of 64 tokens with half of the machine each."""
    whole, alone = MachineLimits(inf, 1000, inf, inf), MachineLimits(inf, 500, inf, inf)
    model, step = make_stages(0), StepShape(((512, 512),), 0, 512)
    machine = RankMachine(SharedLimits(whole, alone, inf), FREE)
    cost = machine.compute_cost(model, [step])
    assert cost.seconds == pytest.approx(9 * 2 * 8 * 8 * 64 / 500)
    in_one = 2 * 2 * 8 * 8 * 512 / 1000
    assert in_one / cost.seconds == pytest.approx(1 - model.split(512).bubble)


def test_every_micro_batch_reads_the_weights_of_a_stage() -> None:
    """In the first and the last round one stage reads alone, in the other seven both do."""
    model, step = make_stages(1000), StepShape(((512, 512),), 0, 512)
    machine = RankMachine(SharedLimits(READ, READ, READ.read), FREE)
    one = 1000 / READ.read
    assert machine.compute_cost(model, [step]).seconds == pytest.approx(2 * one + 7 * 2 * one)


def test_stages_send_what_they_have_computed() -> None:
    """Each of nine rounds, and two broadcasts that begin the step."""
    model, step = make_stages(0), StepShape(((512, 512),), 0, 512)
    machine = RankMachine(SharedLimits(READ, READ, READ.read), LinkSpeed(1e-3, 1e6))
    cost = machine.compute_cost(model, [step])
    assert cost.exchange == pytest.approx(9 * (1e-3 + FLOAT * 64 * 8 / 1e6) + 2e-3)


def test_stages_are_the_whole_model(stories: ModelOutline) -> None:
    engine = LocalEngine.of(Settings(threads=2), stories)
    whole = divide_model(stories, engine, ALONE)
    for stages in (2, 3, 6):
        found = divide_model(stories, engine, (1, stages)).stages
        assert sum(stage.layers for stage in found) == 6
        assert sum(stage.nbytes for stage in found) == whole.nbytes
        work = [sum_work(stage.shape, [make_decode(1, 9)], READ).nbytes for stage in found]
        assert sum(work) == sum_work(engine.shape, [make_decode(1, 9)], READ).nbytes


def test_ways_are_those_that_the_engine_accepts(stories: ModelOutline) -> None:
    """Three ranks cannot have two K/V heads, and four not six query heads."""
    assert list_ways(stories, 2) == [(2, 1), (1, 2)]
    assert list_ways(stories, 4) == [(2, 2), (1, 4)]
    assert list_ways(stories, 6) == [(6, 1), (2, 3), (1, 6)]
    assert choose_ways(stories, 6, 2) == [(2, 3)]


@pytest.mark.parametrize(
    ("ranks", "tensor", "said"),
    [
        (7, None, "ranks = 7 divides neither the model's heads nor its layers; nearest valid: 6"),
        (6, 3, "tp = 3 is no way to divide the model over 6 ranks; allowed: 1, 2, 6; nearest"),
    ],
)
def test_other_sizes_are_refused(
    stories: ModelOutline, ranks: int, tensor: int | None, said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        choose_ways(stories, ranks, tensor)
    assert said in str(refused.value)


def make_plan(outline: ModelOutline, engine: LocalEngine, nodes: int) -> RankPlan:
    machine = RankMachine(SharedLimits(READ, READ, nodes * READ.read), LinkSpeed(1e-3, 1e6))
    divided = [divide_model(outline, engine, way) for way in (ALONE, *list_ways(outline, 2))]
    answers = [answer_ranks(work, engine, machine, divided) for work in list_work(ASKED)]
    return RankPlan(machine, nodes, "as given", answers)


def test_the_report_says_what_this_machine_gains(
    outline: ModelOutline, engine: LocalEngine
) -> None:
    one, two = (make_plan(outline, engine, nodes) for nodes in (1, 2))
    assert "one memory controller serves all cores, so tensor parallelism gains" in judge_nodes(one)
    assert "2 NUMA nodes" in judge_nodes(two) and "gains nothing" not in judge_nodes(two)
    report = report_ranks(outline, engine, one)
    assert report.notes[0] == judge_nodes(one)
    decode, prompt = (table.list_records() for table in report.tables)
    assert [(row["tp"], row["pp"]) for row in decode] == [(1, 1), (2, 1), (1, 2)]
    assert decode[0]["speedup"] == 1.0 and decode[0]["exchange_seconds"] == 0.0
    assert all(float(str(row["speedup"])) < 1 for row in decode[1:])
    assert [row["micro"] for row in decode] == [1, 1, 1]
    assert [row["micro"] for row in prompt] == [1, 1, 2], "of a whole step of 128 tokens"
    assert prompt[2]["bubble"] == pytest.approx(1 / 3)


def test_speeds_are_multiples_of_one_process(outline: ModelOutline, engine: LocalEngine) -> None:
    answer: RankAnswer = make_plan(outline, engine, 1).answers[0]
    assert answer.speeds[1] == answer.costs[0][1].seconds / answer.costs[1][1].seconds
