"""Rates of peers, on simulated clocks."""

import random
from threading import Event

from hypothesis import given
from hypothesis import strategies as st

from flyweight.kv.peers.rate import BURST, KNOWN, RateLimit, TransferSpeed


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@given(seed=st.integers(0, 999), rate=st.integers(1, 10**9))
def test_no_more_is_sent_than_the_rate_allows(seed: int, rate: int) -> None:
    """Several threads reserve; each sends when its wait is over."""
    rng, clock = random.Random(seed), Clock()
    limit, sent = RateLimit(rate, clock), list[tuple[float, int]]()
    for _ in range(60):
        clock.now += rng.choice((0.0, 0.0, rng.random(), 5 * rng.random()))
        size = rng.randrange(1, max(2, 2 * rate))
        sent.append((clock.now + limit.reserve(size), size))
    sent.sort()
    for i, (first, _) in enumerate(sent):
        for j in range(i, len(sent)):
            allowed = rate * (sent[j][0] - first + BURST)
            between = sum(size for _, size in sent[i + 1 : j + 1])
            assert between <= allowed * (1 + 1e-9) + 1e-6


def test_the_rate_is_reached() -> None:
    clock = Clock()
    limit = RateLimit(1024, clock)
    waits = [limit.reserve(128) for _ in range(8)]
    assert waits == [max(0.0, (i + 1) / 8 - BURST) for i in range(8)]
    clock.now = 100.0
    assert limit.reserve(128) == 0.0, "a pause does not save up more than a burst"
    assert limit.reserve(1024) == 1.125 - BURST


def test_without_a_rate_there_is_no_wait() -> None:
    limit, stopped = RateLimit(0), Event()
    assert limit.reserve(1 << 60) == 0.0 and limit.wait(1 << 60, stopped)
    stopped.set()
    assert not limit.wait(1, stopped)


def test_a_stop_ends_a_wait() -> None:
    limit, stopped = RateLimit(1, Clock()), Event()
    stopped.set()
    assert not limit.wait(10**6, stopped)


def test_a_speed_is_measured_and_forgotten() -> None:
    clock = Clock()
    speed = TransferSpeed(clock)
    assert speed.estimate(10**9) == 0.0
    speed.record_answer(0.5)
    speed.record(1000, 2.0)
    assert speed.estimate(1000) == 0.5 + 2.0
    speed.record(0, 1.0)
    speed.record(500, 0.0)
    assert speed.estimate(1000) == 2.5, "these say nothing"
    clock.now += KNOWN
    assert speed.estimate(1000) == 0.5, "a slow peer is tried again"
    speed.record(4000, 1.0)
    assert speed.estimate(4000) == 1.5
