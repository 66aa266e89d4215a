"""Dynamic batching on a simulated clock: the founding document's timeline, and others by hand."""

import pytest

from flyweight.bench.batch_window import BatchWindow, simulate_window
from flyweight.errors import ConfigError
from flyweight.planning.window import SEED_ARRIVALS, report_window


def test_the_timeline_of_the_founding_document() -> None:
    """A window of 5 ms that ends when the fifth request arrives, and a batch that takes 1000 ms."""
    table, figures = report_window(BatchWindow(), SEED_ARRIVALS).tables
    assert [tuple(row) for row in table.rows] == [
        (0, "request 1 arrives", "wait 5 ms", "[R1]", 0),
        (2, "request 2 arrives", "wait 3 ms", "[R1, R2]", 0),
        (3, "request 3 arrives", "wait 2 ms", "[R1, R2, R3]", 0),
        (4, "request 4 arrives", "wait 1 ms", "[R1-R4]", 0),
        (5, "request 5 arrives", "start", "[R1-R5]", 5),
    ]
    rows = {row[0]: row[1:] for row in figures.rows}
    assert rows["latency of the first request, ms"] == [1005, 1005]
    assert rows["latency of the last request, ms"] == [1000, 1000]
    assert rows["mean of these two, ms"] == [1002.5, None]
    assert rows["mean latency of all, ms"] == [
        pytest.approx(1002.2),
        1001,
    ]  # 1005 1003 1002 1001 1000
    # one after the other: 400, 800 - 2, 1200 - 3, 1600 - 4, 2000 - 5
    assert rows["mean latency, one after the other, ms"][0] == pytest.approx(1197.2)
    assert rows["all answered, one after the other, ms"] == [2000, 2000]
    assert rows["time for all saved, %"] == [pytest.approx(100 * (1 - 1005 / 2000)), 50]
    assert any("1002.5" in note for note in figures.notes)


def test_a_window_ends_without_enough_requests() -> None:
    found = simulate_window(BatchWindow(5, 5), [0, 2])
    # 400 ms for one and 1000 for five: 550 for two
    assert found.starts == [5, 5] and found.ends == [555, 555] and found.latencies == [555, 553]
    assert [(e.at, e.arrived, e.started) for e in found.events] == [
        (0, (1,), 0), (2, (2,), 0), (5, (), 2),
    ]  # fmt: skip


def test_enough_requests_end_the_window_early() -> None:
    found = simulate_window(BatchWindow(5, 2, 10, 10), [0, 1, 1, 20])
    assert found.starts == [1, 1, 11, 25]  # the engine is busy from 1 to 11; 20 + 5


def test_a_busy_engine_collects_requests() -> None:
    found = simulate_window(BatchWindow(5, 3, 100, 100), [0, 50, 60, 70, 80])
    assert found.starts == [5, 105, 105, 105, 205]
    assert [event.at for event in found.events] == [0, 5, 50, 60, 70, 80, 105, 205]


def test_no_window_is_one_request_after_the_other() -> None:
    found = simulate_window(BatchWindow(0, 1, 400, 400), [0, 0, 0])
    assert found.latencies == [400, 800, 1200] and found.mean == 800 and found.last == 1200


def test_no_window_with_batches_takes_what_has_come() -> None:
    found = simulate_window(BatchWindow(0, 4, 10, 10), [0, 0, 3, 4])
    assert found.starts == [0, 0, 10, 10]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"wait": -1},
            "batch_wait_ms = -1 is out of range; allowed: milliseconds, 0 to 1000000000",
        ),
        ({"wait": -1}, "nearest valid: 0"),
        ({"wait": float("nan")}, "batch_wait_ms = nan"),
        ({"preferred": 0}, "preferred_batch = 0 is out of range"),
        ({"single": 0}, "single_ms = 0 is out of range; allowed: milliseconds, 0.001 to"),
        ({"batch": 1e10}, "nearest valid: 1000000000"),
    ],
)
def test_what_is_out_of_range_is_refused(changes: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        BatchWindow(**changes)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("arrivals", "said"),
    [
        ([], "arrivals has 0 times"),
        ([3, 1], "arrivals = 1 is earlier than the 3 ms before it"),
        ([-1], "arrivals = -1 is out of range"),
    ],
)
def test_arrivals_are_in_order(arrivals: list[float], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        simulate_window(BatchWindow(), arrivals)
    assert said in str(refused.value)
