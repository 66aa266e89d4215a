"""Fragmentation of K/V memory: small traces worked out by hand, and the bars on long ones."""

from itertools import islice
from pathlib import Path

import pytest

from flyweight.bench.fragmentation import Lengths, MemoryUse, SimulatedMemory, make_lengths
from flyweight.bench.serving.traces import read_trace
from flyweight.config import find_data_folder
from flyweight.errors import ConfigError
from flyweight.planning.fragmentation import FragmentationTest, report_fragmentation


def simulate(requests: list[Lengths], slots: int, block_size: int) -> MemoryUse:
    memory = SimulatedMemory(requests, slots, block_size)
    use = memory.run()
    memory.pool.check_integrity([])
    assert len(memory.pool.free) == slots // block_size
    return use


def test_contiguous_memory_by_hand() -> None:
    # 16 slots, 8 each: two run at once.  Stored, step by step: 2 3 4 | 3 | then 5 6 alone.
    use = simulate([(2, 3), (3, 1), (5, 2)], 16, 8)
    assert (use.steps, use.most, use.preempted) == (3, 2, 0)
    stored = (2 + 3) + (3 + 5) + (4 + 6)  # the third starts when the second has ended
    assert use.waste == pytest.approx(1 - stored / (3 * 16))
    assert use.mean == pytest.approx(2)


def test_paged_memory_by_hand() -> None:
    # 16 slots in blocks of 4: the prompts need 1, 1 and 2 blocks, and the first may need one more
    use = simulate([(2, 4), (3, 1), (5, 2)], 16, 4)
    # step 1: 2, 3 (one block each); a third would leave no block for the first, which needs one
    # step 2: 3, 5; step 3: 4, 6; step 4: 5 in two blocks
    stored = (2 + 3) + (3 + 5) + (4 + 6) + 5
    blocks = (1 + 1) + (1 + 2) + (1 + 2) + 2
    assert use.steps == 4 and use.waste == pytest.approx(1 - stored / (4 * blocks))


def test_the_youngest_is_preempted_and_stored_again() -> None:
    # both need 3 blocks of 2 in the end, and there are 4: the second starts, then gives way
    use = simulate([(2, 5), (1, 5)], 8, 2)
    assert use.preempted > 0 and use.most == 2


def test_blocks_of_one_slot_waste_nothing() -> None:
    assert simulate([(3, 9), (5, 2), (1, 1)], 64, 1).waste == 0


@pytest.mark.parametrize("seed", range(5))
def test_random_traces_meet_the_bars(seed: int) -> None:
    check_bars(make_lengths(300, 8192, seed))


def test_a_real_trace_meets_the_bars() -> None:
    data = find_data_folder()
    if data is None:
        pytest.skip("needs FLYWEIGHT_DATA")
    path = Path(data) / "traces-azure-llm-2023" / "AzureLLMInferenceTrace_conv.csv"
    found = islice(read_trace(path), 500)
    check_bars([(r.input, r.output) for r in found if r.input + r.output <= 8192])


def check_bars(requests: list[Lengths]) -> None:
    contiguous = simulate(requests, 65_536, 8192)
    assert contiguous.waste > 0.5 and contiguous.most == 8
    for block_size in (16, 32):
        paged = simulate(requests, 65_536, block_size)
        assert paged.waste < 0.04
        assert paged.mean > 2 * contiguous.mean and paged.steps < contiguous.steps / 2


def test_lengths_are_the_same_again_and_fit() -> None:
    assert make_lengths(50, 100, 3) == make_lengths(50, 100, 3) != make_lengths(50, 100, 4)
    for longest in (2, 100, 8192):
        assert all(a >= 1 and b >= 1 and a + b <= longest for a, b in make_lengths(99, longest))


def test_the_report_leaves_out_what_does_not_fit_and_says_so() -> None:
    test = FragmentationTest(slots=64, longest=32, block_sizes=(4,))
    report = report_fragmentation(test, [(20, 5), (30, 3), (4, 4)], "a trace")
    (table,) = report.tables
    assert [row["memory"] for row in table.list_records()] == ["contiguous", "paged"]
    assert "2 requests of a trace" in table.notes[0] and "1 above 32 tokens" in table.notes[0]
    with pytest.raises(ConfigError, match=r"max_model_len = 32 .*; nearest valid: 33"):
        test.select([(30, 3), (40, 2)])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"longest": 65}, "max_model_len = 65 is out of range; allowed: a whole number, 2 to 64"),
        ({"slots": 1}, "kv_tokens = 1 is out of range"),
        ({"block_sizes": (0,)}, "block_size = 0"),
        (
            {"block_sizes": (33,)},
            "block_size = 33 is out of range; allowed: a whole number, 1 to 3",
        ),
        ({"longest": 63, "block_sizes": (20,)}, "nearest valid: 60"),
    ],
)
def test_sizes_that_hold_no_sequence_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        FragmentationTest(**{"slots": 64, "longest": 32, "block_sizes": (4,), **changes})
    assert said in str(refused.value)
