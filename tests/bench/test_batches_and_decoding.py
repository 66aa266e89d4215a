"""`bench batch-sweep` and `bench sampling`: what is run, what is left out, and the tables."""

import pytest

from flyweight.bench.batch_sweep import (
    BatchResult,
    BatchSweep,
    choose_best,
    measure_batches,
    plan_sizes,
)
from flyweight.bench.decoding import DecodingResult, DecodingTest, measure_decoding
from flyweight.bench.kernels import RunListener
from flyweight.bench.rows import Spread
from flyweight.errors import ConfigError
from flyweight.planning.batches import report_batches
from flyweight.planning.decoding import report_decoding


class Rounds(RunListener):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def round(self, test: str, done: int, total: int) -> None:
        self.seen.append(test)


def test_sizes_take_turns_and_need_more_memory() -> None:
    heard = Rounds()
    results = measure_batches(BatchSweep("stories", (1, 4, 2), 8, 4, rounds=2), heard)
    assert heard.seen == ["warm-up", "round 1", "round 2"]
    assert [one.size for one in results] == [1, 4, 2]
    memory = {one.size: one.memory or 0 for one in results}
    assert 0 < memory[1] < memory[2] < memory[4]
    assert all(one.rate == one.size / one.seconds for one in results if one.seconds)


def test_sizes_above_the_memory_limit_are_not_run() -> None:
    roomy = plan_sizes(BatchSweep("stories", (1, 4096), 8, 4))
    assert roomy[1] and roomy[4096]
    limit = (roomy[1] + roomy[4096]) // 2
    sweep = BatchSweep("stories", (1, 4096), 8, 4, 1, {"memory_limit": limit})
    one, many = measure_batches(sweep, RunListener())
    assert one.seconds and (many.memory, many.seconds, many.rate) == (None, None, None)
    with pytest.raises(ConfigError, match="memory_limit"):
        plan_sizes(BatchSweep("stories", (1, 2), engine={"memory_limit": 1 << 20}))


def test_the_best_size_is_named_with_the_seeds_columns() -> None:
    results = [
        BatchResult(1, 100 << 20, 0.4), BatchResult(2, 200 << 20, 0.5),
        BatchResult(4, 300 << 20, 1.1), BatchResult(8),
    ]  # fmt: skip
    assert choose_best(results).size == 2  # 2.5, 4 and 3.6 requests a second
    sweep = BatchSweep("stories", (1, 2, 4, 8))
    (table,) = report_batches(sweep, results, "80%").tables
    rows = table.list_records()
    assert rows[1] == {
        "batch": 2, "memory": 200 << 20, "latency_ms": 500, "requests_per_s": 4,
        "efficiency": pytest.approx(1.6), "seed_efficiency": 1.6,
    }  # fmt: skip
    assert rows[3]["memory"] is None and rows[3]["efficiency"] is None
    assert table.strong == {1} and "limit of 80%: 2 (4.00 requests/s)" in table.notes[0]


def test_ways_answer_the_same_prompts_with_as_many_tokens() -> None:
    heard = Rounds()
    results = measure_decoding(DecodingTest("stories", 8, 12, beam_width=3, rounds=2), heard)
    assert heard.seen == ["warm-up", "round 1", "round 2"]
    assert [one.way for one in results] == ["greedy", "top-k", "beam"]
    greedy, _, beam = results
    assert (greedy.ratio.least, greedy.ratio.median, greedy.ratio.most) == (1, 1, 1)
    assert greedy.copied == 0 < beam.copied  # beams share blocks until they write


def test_times_are_of_100_tokens_and_next_to_the_seeds() -> None:
    test = DecodingTest("stories", output_len=50)
    results = [DecodingResult("greedy", 0.1, Spread.of([1.0]), 0),
               DecodingResult("beam", 0.3, Spread.of([2.0, 3.0, 4.0]), 7)]  # fmt: skip
    (table,) = report_decoding(test, results).tables
    greedy, beam = table.list_records()
    assert greedy["ms_per_100"] == pytest.approx(200) and greedy["seed_ms"] == 400
    assert (beam["ratio"], beam["least"], beam["most"], beam["seed_ratio"]) == (3, 2, 4, 1.5)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: BatchSweep("stories", (0,)), "batch = 0 is out of range"),
        (lambda: BatchSweep("stories", (1,), rounds=0), "repetitions = 0"),
        (
            lambda: DecodingTest("stories", beam_width=0),
            "beam_width = 0 is out of range; allowed: ",
        ),
        (lambda: DecodingTest("stories", beam_width=33), "nearest valid: 32"),
        (lambda: DecodingTest("stories", top_k=0), "top_k = 0"),
    ],
)
def test_what_is_out_of_range_is_refused(make, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make()
    assert said in str(refused.value)
