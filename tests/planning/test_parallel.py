"""Splits over GPUs: bubbles and all-reduces by hand, and what may be split."""

import pytest

from flyweight.config import Settings
from flyweight.describe import SilentListener
from flyweight.errors import ConfigError
from flyweight.planning.outline import ModelOutline, outline_model
from flyweight.planning.parallel import (
    GpuLink,
    Split,
    StepLoad,
    compute_all_reduce,
    compute_cost,
    list_splits,
    list_tensor_sizes,
)
from flyweight.planning.parallel_report import ParallelUse, report_parallel

SLOW = GpuLink(read=1e12, peak=1e15, link=1e11, latency=0.0, memory=80e9)


@pytest.fixture(scope="module")
def llama() -> ModelOutline:
    return outline_model(Settings(model="llama-2-70b"), SilentListener())


@pytest.mark.parametrize(
    ("pp", "micro", "bubble"), [(1, 1, 0), (4, 1, 3 / 4), (4, 4, 3 / 7), (4, 16, 3 / 19)]
)
def test_the_bubble(pp: int, micro: int, bubble: float) -> None:
    assert Split(1, pp, micro).bubble == pytest.approx(bubble)


def test_an_all_reduce_sends_twice_all_but_one_share() -> None:
    assert compute_all_reduce(8e9, 4, SLOW) == pytest.approx(2 * 3 / 4 * 8e9 / 1e11)
    assert compute_all_reduce(8e9, 1, SLOW) == 0


def test_a_step_that_reads_weights_alone(llama: ModelOutline) -> None:
    """138 GB over 4 GPUs of 1 TB/s, without a link's cost."""
    fast = GpuLink(1e12, 1e18, 1e18, 0.0, 80e9)
    load = StepLoad(1, 138e9, 1.0)
    whole = compute_cost(Split(4, 1, 1), llama.spec, load, fast)
    assert whole.seconds == pytest.approx(0.0345, rel=1e-3)
    # four stages after each other: as slow as one GPU with all weights
    stages = compute_cost(Split(1, 4, 1), llama.spec, load, fast)
    assert stages.seconds == pytest.approx(0.138, rel=1e-3)


def test_all_reduces_of_a_step(llama: ModelOutline) -> None:
    cost = compute_cost(Split(2, 1, 1), llama.spec, StepLoad(64, 1.0, 1.0), SLOW)
    message = 64 * 8192 * 2
    assert cost.reduce == pytest.approx(2 * 80 * message / 1e11)  # 2 (tp - 1) / tp is 1


def test_ways_to_split(llama: ModelOutline) -> None:
    found = list_splits(4, llama.spec, 64)
    assert {(one.tp, one.pp) for one in found} == {(4, 1), (2, 2), (1, 4)}
    assert {one.micro for one in found if one.pp == 4} == {1, 4, 8, 16}
    assert list_tensor_sizes(6, llama.spec) == [1, 2]  # 3 does not divide 64 heads


def test_what_fits_comes_first(llama: ModelOutline) -> None:
    use = ParallelUse(2, "any", 64, 16, None, 10)
    rows = report_parallel(llama, use, SLOW).tables[0].list_records()
    assert all(row["fits"] for row in rows)  # 69 GB a GPU
    small = GpuLink(1e12, 1e15, 1e11, 0.0, 60e9)
    assert not any(row["fits"] for row in report_parallel(llama, use, small).tables[0]
                   .list_records())  # fmt: skip


def test_more_groups_than_layers(outline: ModelOutline) -> None:
    with pytest.raises(ConfigError, match="nearest valid: 2"):
        report_parallel(outline, ParallelUse(97, "any", 64, 16, None, 10), SLOW)


def test_a_token_meets_the_chosen_experts_only() -> None:
    found = outline_model(Settings(model="deepseek-v3"), SilentListener())
    assert round(found.active_params / 1e9) == 38  # published as 37, without the embedding
