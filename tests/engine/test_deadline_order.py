"""The order in which requests with deadlines start, and that others start too."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import count
from math import inf
from random import Random

import pytest
from workload import Harness, Parts, workload

from flyweight.config import Limits
from flyweight.engine.deadline_admission import DeadlineAdmission
from flyweight.engine.scheduler import Scheduler
from flyweight.engine.step import Produced
from flyweight.kv.blocks import BlockPool
from flyweight.types import Request, SamplingParams

LIMITS = Limits(
    max_model_len=64, max_num_seqs=1, max_num_batched_tokens=64, block_size=4, blocks=64
)
NOW, PATIENCE = 100.0, 10.0


class Clock:
    """A clock that a test sets."""

    now = NOW

    def __call__(self) -> float:
        return self.now


def request(id: str, start_by: float = inf, answer: int = 1, n: int = 1, priority: int = 0,
            arrival: float = NOW) -> Request:  # fmt: skip
    tokens = tuple(100 * (1 + ord(id[0])) + i for i in range(3))
    return Request(id, tokens, SamplingParams(n=n), max_tokens=answer, start_by=start_by,
                   priority=priority, arrival=arrival)  # fmt: skip


def scheduler(clock: Clock) -> Scheduler:
    """With one seat, and with the policy that is tested."""
    admission = DeadlineAdmission(PATIENCE, clock)
    return Scheduler(LIMITS, BlockPool(64, 4), clock=clock, admission=admission)


def step(s: Scheduler) -> str:
    """The ids of what one step computed."""
    plan = s.schedule()
    s.commit(plan, [Produced([1] * min(1, c.rows)) for c in plan.chunks])
    return "".join(chunk.seq.request.id for chunk in plan.chunks)


def run(requests: Iterable[Request]) -> str:
    """The ids of requests that wait together, in the order in which they were computed."""
    s, found = scheduler(Clock()), ""
    for one in requests:
        s.add(one)
    while s.busy:
        found += step(s)
    return found


def test_without_deadlines_the_order_is_that_of_arrival() -> None:
    assert run(request(id) for id in "cab") == "cab"


@pytest.mark.parametrize(
    ("start", "order"),
    [
        ({"a": 108.0, "b": 102.0, "c": 105.0}, "bca"),  # the least slack first
        ({"a": 100.0, "b": 100.0}, "ab"),  # just in time, both
        ({"a": 99.0, "b": 104.0}, "ba"),  # the first is too late
        ({"a": 99.0, "b": 98.0, "c": 104.0}, "cab"),  # what is too late keeps its order
        ({"a": inf, "b": 109.0}, "ba"),  # one without a deadline waits, as if its own were 110
        ({"a": inf, "b": 111.0}, "ab"),
        ({"a": inf, "b": 99.0}, "ab"),  # what is too late does not pass others
        ({"a": inf, "b": 109.0, "c": inf, "d": 104.0}, "dbac"),
    ],
)
def test_what_can_still_meet_its_deadline_goes_first(start: dict[str, float], order: str) -> None:
    assert run(request(id, at) for id, at in start.items()) == order


def test_priorities_come_before_deadlines() -> None:
    assert run([request("a", 101.0, priority=1), request("b"), request("c", 103.0)]) == "cba"


@pytest.mark.parametrize("start_by", [inf, 50.0])
def test_a_stream_of_deadlines_starves_no_request(start_by: float) -> None:
    """One with a deadline arrives in each second: it goes first until the other's patience ends."""
    clock = Clock()
    s = scheduler(clock)
    s.add(request("a", start_by))
    found = ""
    for second in range(12):
        clock.now = NOW + second
        s.add(request("bcdefghijklm"[second], clock.now + 3, arrival=clock.now))
        found += step(s)
    assert found == "bcdefghi" + "a" + "jkl"


def test_what_has_begun_stays_first() -> None:
    """Preempted, or another choice of one that has begun; though it is too late by then."""
    clock = Clock()
    s = scheduler(clock)
    s.add(request("a", 101.0, answer=3))
    s.add(request("b", 300.0))
    assert step(s) == "a"
    clock.now = 200.0
    s.requeue(s.running[0])
    assert [step(s) for _ in range(3)] == ["a", "a", "b"]
    clock.now = NOW
    s.add(request("c", 101.0, n=2))
    s.add(request("d", 300.0))
    assert step(s) == "c"
    clock.now = 200.0
    assert [step(s) for _ in range(2)] == ["c", "d"]


def test_random_workloads_have_the_oracles_answers() -> None:
    """Whatever the order: under preemption, drafts, aborts, choices and searches."""
    counts: Counter[str] = Counter()
    for seed in range(150):
        rng, work = Random(seed), workload(seed)
        given = {
            at: [replace(one, start_by=rng.choice((inf, rng.uniform(0, 60)))) for one in arrivals]
            for at, arrivals in work.arrivals.items()
        }
        ticks = count()
        policy = DeadlineAdmission(5.0, partial(next, ticks))
        parts = Parts(scheduler=partial(Scheduler, admission=policy))
        harness = Harness(replace(work, arrivals=given), parts, slowness=3)
        harness.run()
        counts += harness.counts
    assert min(counts[name] for name in ("preemption", "search", "accepted draft")) >= 10
