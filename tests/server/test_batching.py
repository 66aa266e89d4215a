"""Dynamic batching on a simulated clock: which requests are held together, and for how long."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from flyweight.bench.batch_window import LEAST_MS, BatchWindow, TimelineEvent, simulate_window
from flyweight.errors import ConfigError
from flyweight.planning.window import SEED_ARRIVALS
from flyweight.server.admission.batching import RequestBatcher
from flyweight.server.settings import ServerSettings
from simulated_timers import Clock


class Engine:
    """Counts how often it got requests together."""

    def __init__(self) -> None:
        self.batches = 0

    @contextmanager
    def send_together(self) -> Iterator[None]:
        self.batches += 1
        yield


class Trace:
    """Requests that arrive at given times, in whole ms, and when each is submitted."""

    def __init__(self, wait: int = 5, preferred: int = 5) -> None:
        self.clock, self.engine = Clock(), Engine()
        settings = ServerSettings(batch_wait_ms=wait, preferred_batch=preferred)
        self.batcher = RequestBatcher(settings, self.clock)
        self.arrivals: dict[int, int] = {}
        self.starts: dict[int, float] = {}
        self.withdraw: dict[int, Callable[[], None]] = {}

    @property
    def ms(self) -> float:
        return round(1000 * self.clock.now, 6)

    def arrive(self, at: int, count: int = 1) -> TimelineEvent:
        """One request at a time, after what was due before."""
        self.clock.run_before(at / 1000)
        number = len(self.arrivals) + 1
        self.arrivals[number] = at
        before = len(self.starts)
        waiting = [one for one in self.withdraw if one not in self.starts]
        queue = (*waiting, number)
        self.withdraw[number] = self.batcher.hold(
            self.engine, count, lambda: self.starts.update({number: self.ms})
        )
        waited = at - self.arrivals[queue[0]]
        return TimelineEvent(at, (number,), queue, waited, len(self.starts) - before)

    def end(self) -> list[float]:
        """When each was submitted, once all were."""
        self.clock.run_before(1e9)
        assert not self.batcher.count_held(self.engine)
        return [self.starts[number] for number in sorted(self.starts)]


def test_the_timeline_of_the_founding_document() -> None:
    """A window of 5 ms, which the fifth request ends."""
    trace = Trace()
    events = [trace.arrive(int(at)) for at in SEED_ARRIVALS]
    simulated = simulate_window(BatchWindow(5, 5), SEED_ARRIVALS)
    assert events == simulated.events
    assert [event.started for event in events] == [0, 0, 0, 0, 5]
    assert trace.starts == dict.fromkeys(range(1, 6), 5.0) and trace.engine.batches == 1
    assert trace.end() == simulated.starts


def test_other_timelines_are_those_of_the_simulation() -> None:
    for seed in range(100):
        rng = random.Random(seed)
        wait, preferred = rng.randint(1, 9), rng.randint(2, 5)
        arrivals = sorted(rng.sample(range(40), rng.randint(1, 20)))
        trace = Trace(wait, preferred)
        for at in arrivals:
            trace.arrive(at)
        window = BatchWindow(wait, preferred, LEAST_MS, LEAST_MS)  # an engine that is free again
        assert trace.end() == simulate_window(window, arrivals).starts, seed


def test_a_window_ends_without_enough_requests() -> None:
    trace = Trace()
    trace.arrive(0)
    trace.arrive(2)
    assert trace.end() == [5, 5] and trace.engine.batches == 1


def test_each_prompt_of_a_request_counts() -> None:
    trace = Trace()
    trace.arrive(0, 3)
    trace.arrive(1, 4)
    assert trace.end() == [1, 1]
    trace = Trace()
    trace.arrive(0, 7)
    assert trace.starts == {1: 0}


def test_engines_have_batches_of_their_own() -> None:
    trace = Trace(preferred=2)
    first, second = trace.engine, Engine()
    trace.arrive(0)
    trace.engine = second
    trace.arrive(1)
    assert not trace.starts
    trace.arrive(2)
    assert sorted(trace.starts) == [2, 3] and (first.batches, second.batches) == (0, 1)
    assert trace.batcher.count_held(first) == 1


def test_the_wait_is_that_of_the_oldest_that_is_left() -> None:
    trace = Trace()
    for at in (0, 2, 3):
        trace.arrive(at)
    trace.withdraw[1]()  # its client has gone
    assert trace.batcher.count_held(trace.engine) == 2
    trace.withdraw[3]()
    trace.withdraw[3]()
    assert trace.end() == [7], "5 ms after the second"


def test_nothing_is_left_of_a_batch_that_all_have_left() -> None:
    trace = Trace()
    trace.arrive(0)
    trace.withdraw[1]()
    assert not trace.batcher.count_held(trace.engine) and all(t.over for t in trace.clock.timers)
    trace.arrive(9)
    trace.clock.run_before(0.0135)
    assert not trace.starts, "the window of the first is over"
    assert trace.end() == [14]
    trace.withdraw[2]()  # as every group does at its end


def test_a_server_that_ends_holds_nothing() -> None:
    trace = Trace()
    trace.arrive(0)
    trace.arrive(1)
    trace.batcher.submit_all()
    assert trace.starts == {1: 1, 2: 1}
    trace.batcher.submit_all()
    assert trace.engine.batches == 1


@pytest.mark.parametrize(
    "given, message",
    [
        (
            {"batch_wait_ms": -1},
            "batch_wait_ms = -1 is out of range; allowed: a whole number, 0 to",
        ),
        ({"batch_wait_ms": 5, "preferred_batch": 1}, "nearest valid: 2"),
        ({"preferred_batch": 8}, "preferred_batch = 8 has no effect without a time to wait; give"),
    ],
)
def test_what_makes_no_batch_is_refused(given: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ServerSettings(**given)
    assert message in str(refused.value)


def test_nothing_is_held_by_default() -> None:
    assert not RequestBatcher(ServerSettings()).enabled
