"""Tests by llama-bench's names, their tokens, and what the engine really computes for them."""

import pytest
from test_kernels_bench import Heard

from flyweight.bench.facts import choose_model_prompt
from flyweight.bench.ours import BenchEngineOptions, OwnEngine
from flyweight.bench.workloads import (
    Workload,
    WorkloadPlan,
    choose_prompt,
    count_needs,
    parse_numbers,
)
from flyweight.errors import ConfigError


def test_names_are_llama_benchs() -> None:
    assert Workload(prompt=512).name == "pp512"
    assert Workload(gen=128).name == "tg128"
    assert Workload(prompt=512, depth=2048).name == "pp512 @ d2048"
    assert Workload(gen=32, seqs=16).name == "tg32 b16"
    assert Workload(gen=32, seqs=16, shared=3000).name == "tg32 b16 @ s3000"


def test_lists_become_tests_in_order() -> None:
    wanted = WorkloadPlan((512,), (128, 0), (0, 2048), (1, 2, 16), 32)
    assert [test.name for test in wanted.list_tests()] == [
        "pp512", "tg128", "pp512 @ d2048", "tg128 @ d2048",
        "tg32 b2", "tg32 b16", "tg32 b2 @ d2048", "tg32 b16 @ d2048",
    ]  # fmt: skip
    shared = WorkloadPlan((), (), (0,), (16,), 32, (3000,))
    assert [test.name for test in shared.list_tests()] == ["tg32 b16 @ s3000"]


@pytest.mark.parametrize(
    "depth, batch, said",
    [(0, 1, "shared_prefix = 64 is for batches"), (32, 2, "shared_prefix = 64 with n_depth = 32")],
)
def test_nothing_requested_is_dropped(depth: int, batch: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        list(WorkloadPlan((), (), (0, depth), (batch,), 32, (64,)).list_tests())


@pytest.mark.parametrize(
    "text, said",
    [
        ("1,x", "depth = '1,x': 'x' is not a number"),
        ("-1", "depth = -1 is out of range; allowed: whole numbers of 0 to 9"),
        ("10", "nearest valid: 9"),
    ],
)
def test_lists_are_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_numbers("depth", text, 0, 9)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "context, depth, length",
    [(512, 0, 510), (513, 0, 511), (514, 0, 512), (4096, 0, 512), (512, 256, 254), (512, 600, 512)],
)
def test_the_default_prompt_fits_the_context(context: int, depth: int, length: int) -> None:
    assert choose_prompt(context, depth) == length
    longest, _, _ = count_needs([Workload(prompt=length, depth=depth)], 32, 512)
    assert longest <= context or depth >= context


def test_the_default_prompt_of_a_model() -> None:
    assert choose_model_prompt("stories", 0) == 510
    assert choose_model_prompt("org/name", 0) == 512
    assert choose_model_prompt(__file__, 0) == 512, "what is no model is refused when it is loaded"


def test_prompts_are_random_and_the_same_again() -> None:
    one = Workload(gen=4, seqs=3)
    assert one.make_prompts(1000) == one.make_prompts(1000)
    assert len({tuple(p) for p in one.make_prompts(1000)}) == 3
    assert Workload(prompt=9).make_fresh_prompt(1000, 1) != Workload(prompt=9).make_fresh_prompt(
        1000, 2
    )
    assert all(0 <= token < 50 for token in Workload(prompt=99).make_fresh_prompt(50, 0))
    together = Workload(gen=4, seqs=3, shared=10).make_prompts(1000)
    assert len({tuple(p[:10]) for p in together}) == 1 and len({p[10] for p in together}) > 1


TESTS = [
    Workload(prompt=70),
    Workload(gen=6),
    Workload(prompt=20, depth=64),
    Workload(gen=6, depth=70),
    Workload(gen=5, seqs=3),
    Workload(gen=5, seqs=3, shared=70),
    Workload(gen=5, seqs=3, depth=70),
]


@pytest.fixture(scope="module")
def ours() -> OwnEngine:
    return OwnEngine("stories", TESTS, BenchEngineOptions(threads=1))


@pytest.mark.parametrize("round", [0, 1])
@pytest.mark.parametrize("test", TESTS, ids=lambda test: test.name)
def test_only_what_a_test_names_is_timed(ours: OwnEngine, test: Workload, round: int) -> None:
    """Also in a second round, when more could be found in the prefix cache."""
    timed = ours.measure(test, round)
    steps = timed.steps
    assert 0 < timed.outside < timed.seconds
    assert timed.outside_us == pytest.approx(1e6 * timed.outside / len(steps))
    if test.prompt:
        assert sum(step.tokens for step in steps) == test.prompt
        assert steps[-1].chunks[-1][1] == test.depth + test.prompt
    else:
        assert [step.tokens for step in steps] == [test.seqs] * test.gen
        assert [step.rows for step in steps] == [test.seqs] * test.gen
        first = max(test.before, 1) + 1
        assert {context for _, context in steps[0].chunks} >= {first + bool(test.shared)}
    assert not ours.loaded.engine.busy


def test_shared_blocks_are_counted_once(ours: OwnEngine) -> None:
    step = ours.measure(Workload(gen=5, seqs=3, shared=70), 0).steps[0]
    own = sum(context - 64 for _, context in step.chunks)  # 70 tokens fill two blocks of 32
    assert step.distinct == 64 + own
    apart = ours.measure(Workload(gen=5, seqs=3), 0).steps[0]
    assert apart.distinct == sum(context for _, context in apart.chunks)


def test_an_engine_is_made_as_small_as_the_tests_allow() -> None:
    assert count_needs([Workload(prompt=512)], 32, 512) == (514, 1, 19)
    length, seqs, blocks = count_needs([Workload(gen=32, seqs=64)], 32, 512)
    assert (length, seqs) == (32 + 32 + 1 + 6, 64)
    assert blocks * 32 >= seqs * length


def test_a_test_beyond_the_models_context_is_warned_about() -> None:
    heard = Heard()
    engine = OwnEngine("stories", [Workload(prompt=8)], BenchEngineOptions(threads=1), heard)
    assert heard.warnings == []
    beyond = Workload(prompt=engine.loaded.spec.context + 1)
    OwnEngine("stories", [beyond], BenchEngineOptions(threads=1), heard)
    (warning,) = heard.warnings
    assert f"above the {engine.loaded.spec.context} tokens" in warning


def test_a_depth_that_ends_inside_a_block_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"depth = 50 .* nearest valid: 64"):
        OwnEngine("stories", [Workload(prompt=8, depth=50)], BenchEngineOptions())
