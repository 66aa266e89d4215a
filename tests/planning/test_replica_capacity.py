"""Replicas for a trace: against the theory of queues, by hand, and a sample against the whole."""

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import islice, pairwise
from math import inf
from pathlib import Path
from statistics import mean

import pytest

from flyweight.bench.serving.traces import TraceRequest, read_trace
from flyweight.config import Limits
from flyweight.errors import ConfigError
from flyweight.plan.roofline import StepShape
from flyweight.planning.capacity import LatencyTargets
from flyweight.planning.queueing import ServerShape
from flyweight.planning.replica_load import TraceLoad
from flyweight.planning.replica_points import (
    ReplicaPoint,
    ReplicaSettings,
    choose_slice,
    simulate_point,
)
from flyweight.planning.replica_run import (
    BROKEN,
    NEVER,
    REFUSED,
    UNBOUNDED,
    FailurePlan,
    QueueBound,
    ReplicaRequest,
    ReplicaRun,
    RequestOutcome,
)
from flyweight.planning.replica_search import ReplicaNumbers, ReplicaSearch, make_ladder
from flyweight.planning.replicas import TraceScale
from flyweight.routing.policies import make_policy

STEP = 0.01
LIMITS = Limits(
    max_model_len=16384, max_num_seqs=16, max_num_batched_tokens=1024, block_size=32, blocks=1024
)
SERVER = ServerShape(LIMITS, 0.2, 3.0)


def cost(seen: StepShape) -> float:
    return STEP + 0.0003 * seen.tokens


def constant(seen: StepShape) -> float:
    return STEP


def make_settings(routing: str = "prefix", **others: object) -> ReplicaSettings:
    usual = ReplicaSettings(
        SERVER, lambda: make_policy(routing), QueueBound(512, 1_000_000), LatencyTargets(0.5, 0.1)
    )
    return replace(usual, **others)  # type: ignore[arg-type]


def make_talks(count: int, turns: int, gap: float, seed: int = 5) -> list[TraceRequest]:
    """Turns of conversations in random order, each with two more blocks than the one before, behind
    a block that all have in common; random times, `gap` seconds apart on average.
    """
    rng, order = random.Random(seed), [talk for talk in range(count) for _ in range(turns)]
    rng.shuffle(order)
    held = {talk: [0] for talk in range(count)}
    found, fresh, now = [], 1, 0.0
    for talk in order:
        held[talk] += [fresh, fresh + 1]
        fresh += 2
        now += rng.expovariate(1 / gap)
        found.append(TraceRequest(now, 512 * len(held[talk]) + 100, 300, tuple(held[talk])))
    return found


def make_load(trace: list[TraceRequest], rate: float | None = None) -> TraceLoad:
    return TraceLoad.of(trace, TraceScale(16), LIMITS.max_model_len, rate)


@pytest.fixture(scope="module")
def talks() -> TraceLoad:
    return make_load(make_talks(60, 6, 0.02))


def see(replicas: int, load: TraceLoad, settings: ReplicaSettings) -> ReplicaPoint:
    found = simulate_point(replicas, load, cost, settings)
    assert found is not None
    return found


# --- the load ---


def test_a_load_is_its_trace(talks: TraceLoad) -> None:
    drawn = [*talks.draw(1.0, inf)]
    assert len(drawn) == 360 and talks.copies == 1 and talks.kept == pytest.approx(1.0)
    assert drawn[0].at == 0.0 and [one.at for one in drawn] == sorted(one.at for one in drawn)
    assert len(set(talks.talks.tolist())) == 60, "the common block names no conversation"


def test_copies_share_no_prefix_and_keep_their_times(talks: TraceLoad) -> None:
    more = make_load(make_talks(60, 6, 0.02), 3 * talks.rate)
    drawn = [*more.draw(1.0, inf)]
    assert more.copies == 3 and len(drawn) == 3 * 360
    assert more.rate == pytest.approx(3 * talks.rate)
    assert len({one.salt for one in drawn}) == 3
    spans = [[one.at for one in drawn if one.salt == salt] for salt in ("0", "1", "2")]
    assert all(len(span) == 360 and max(span) < more.span for span in spans)
    first, _, third = (
        sorted((b - a) % more.span for a, b in zip(span, span[1:] + span[:1], strict=True))
        for span in spans
    )
    assert third == pytest.approx(first, abs=1e-9), "moved, never compressed"


def test_a_larger_share_has_the_conversations_of_a_smaller(talks: TraceLoad) -> None:
    few, many = ({one.tokens for one in talks.draw(share, inf)} for share in (0.25, 0.5))
    assert few < many and 0.1 < len(few) / 360 < 0.45
    by_talk: dict[tuple[int, ...], int] = {}
    for one in talks.draw(0.5, inf):
        head = one.tokens[32:64]
        by_talk[head] = by_talk.get(head, 0) + 1
    assert set(by_talk.values()) == {6}, "conversations are whole"


def test_a_rate_below_the_trace_is_a_part_of_it(talks: TraceLoad) -> None:
    less = make_load(make_talks(60, 6, 0.02), talks.rate / 2)
    assert less.copies == 1 and less.kept == pytest.approx(0.5)
    assert len([*less.draw(1.0, inf)]) == len([*talks.draw(0.5, inf)])


def test_what_is_too_long_is_left_out() -> None:
    trace = [TraceRequest(float(i), 512 * (i + 1), 16) for i in range(10)]
    load = TraceLoad.of(trace, TraceScale(16), 32 * 4 + 1, None)
    assert (load.left_out, len(load.requests)) == (6, 4)
    assert load.measure_returns() is None, "without hashes nothing returns"
    with pytest.raises(ConfigError, match="no request for a context of 16 tokens; the shortest"):
        TraceLoad.of(trace, TraceScale(16), 16, None)
    with pytest.raises(ConfigError, match="it has no request"):
        TraceLoad.of([], TraceScale(16), 16, None)
    with pytest.raises(ConfigError, match=r"request_rate = .* is more than 100,000 copies"):
        TraceLoad.of(trace, TraceScale(16), 4096, 1e9)


# --- queues and failures ---


@pytest.mark.parametrize("busy", [0.4, 0.7])
def test_a_replica_of_four_is_the_queue_of_theory(busy: float) -> None:
    """Poisson arrivals, of which a hash gives one replica of four its quarter: one server, a
    constant service of two steps.  Requests wait busy / (2 (1 - busy)) services on average
    (Pollaczek and Khinchine).
    """
    service, rng, now = 2 * STEP, random.Random(3), 0.0
    trace = []
    for _ in range(12000):
        now += rng.expovariate(4 * busy / service)
        trace.append(TraceRequest(now, 4, 2))
    load = TraceLoad.of(trace, TraceScale(1), 100, None)
    server = ServerShape(replace(LIMITS, max_num_seqs=1, prefix_caching=False), 0.2, 3.0)
    settings = make_settings(server=server, least=1, requests=3000)
    part = choose_slice(4, load, settings)
    assert (part.simulated, part.share) == (1, 0.25)
    run = ReplicaRun((server, constant), 1, make_policy("round-robin"))
    records = run.run(load.draw(part.share, inf))
    waited = mean((one.last or 0.0) - one.at for one in records) - service
    assert waited == pytest.approx(service * busy / (2 * (1 - busy)), rel=0.12)


def count(records: list[RequestOutcome]) -> dict[str, int]:
    return {error: sum(one.error == error for one in records) for error in ("", REFUSED, BROKEN)}


def test_nothing_is_lost_unreported(talks: TraceLoad) -> None:
    """Replicas that fail every few seconds, and queues of four."""
    failures = FailurePlan(1.5, 0.5, seed=2)
    run = ReplicaRun((SERVER, cost), 2, make_policy("prefix"), failures, QueueBound(4, 1 << 20))
    records = run.run(talks.draw(1.0, inf))
    ended = count(records)
    assert sum(ended.values()) == len(records) == 360 and run.in_flight == 0
    assert all(ended.values()) and run.failed > 3, "each of them happened"
    for one in records:
        assert (one.last is not None) == (one.error == "")
        assert one.error != BROKEN or one.first is not None
        assert one.first is None or one.first > one.at
    assert any(one.retries and not one.error for one in records), "some are answered elsewhere"
    assert not run.router._requests, "the router counts none of them"


def test_a_failure_by_hand() -> None:
    """One replica fails while it answers: the first request has a token, the second has none."""

    class GivenLives(random.Random):
        lives = [0.025, 1e9]  # noqa: RUF012

        def expovariate(self, lambd: float = 1.0) -> float:
            return self.lives.pop(0)

    class GivenPlan(FailurePlan):
        def open_draws(self, replica: int) -> random.Random:
            return GivenLives()

    server = ServerShape(replace(LIMITS, max_num_seqs=1), 0.2, 3.0)
    run = ReplicaRun((server, constant), 1, make_policy("prefix"), GivenPlan(1.0, 5.0))
    requests = [ReplicaRequest(0.0, (1, 2, 3), 8), ReplicaRequest(0.001, (4, 5, 6), 2),
                ReplicaRequest(6.0, (7, 8, 9), 2)]  # fmt: skip
    first, second, third = run.run(requests)
    assert (first.error, first.first) == (BROKEN, pytest.approx(STEP))
    assert (second.error, second.retries) == (REFUSED, 1), "there is no other replica"
    assert (third.error, third.last) == ("", pytest.approx(6.0 + 2 * STEP))
    assert run.failed == 1
    assert run.replicas[0].busy == pytest.approx(0.025 + 2 * STEP), "half of a step is not counted"


def test_a_replica_that_failed_has_an_empty_cache(talks: TraceLoad) -> None:
    steady = see(2, talks, make_settings())
    failing = see(2, talks, make_settings(failures=FailurePlan(1.5, 0.3, seed=1)))
    assert failing.failed > 2 and failing.cached < steady.cached
    assert failing.retried + failing.broken > 0 == steady.retried + steady.broken


# --- points ---


def test_a_point_repeats_exactly(talks: TraceLoad) -> None:
    settings = make_settings("power-of-two", failures=FailurePlan(20.0, 1.0))
    assert see(4, talks, settings) == see(4, talks, settings)


def test_more_replicas_are_never_worse(talks: TraceLoad) -> None:
    points = [see(number, talks, make_settings()) for number in (1, 2, 4, 8)]
    met = [one.met for one in points]
    tails = [one.ttft[1] for one in points if one.ttft is not None]
    assert met == sorted(met) and met[0] < 0.9 <= met[-1]
    assert all(b <= 1.05 * a for a, b in pairwise(tails)) and len(tails) == 4
    assert [one.completed for one in points] == [360] * 4
    assert all(a.utilization > b.utilization for a, b in pairwise(points))


def test_a_sample_is_like_the_whole() -> None:
    """16 replicas simulated whole, and 4 of 16 with their share of the conversations."""
    load = make_load(make_talks(400, 5, 0.02))
    whole = see(16, load, make_settings(requests=2000))
    part = see(16, load, make_settings(requests=500))
    assert (whole.simulated, part.simulated) == (16, 4)
    assert 0.15 < part.arrived / whole.arrived < 0.35
    assert part.cached == pytest.approx(whole.cached, rel=0.1)
    assert part.utilization == pytest.approx(whole.utilization, rel=0.2)
    assert whole.ttft and part.ttft and part.ttft[0] == pytest.approx(whole.ttft[0], rel=0.2)
    assert part.met == pytest.approx(whole.met, abs=0.05)
    assert part.output_rate == pytest.approx(whole.output_rate, rel=0.2), "of all replicas"


def test_the_trace_by_prefix_and_in_turn(data: Callable[[str], Path]) -> None:
    trace = [*islice(read_trace(data("traces-mooncake/conversation_trace.jsonl")), 1000)]
    load = make_load(trace)
    server = ServerShape(replace(LIMITS, blocks=4096), 0.2, 3.0)
    by_prefix, by_turn = (
        see(4, load, make_settings(routing, server=server, requests=1000))
        for routing in ("prefix", "round-robin")
    )
    assert by_prefix.cached >= 1.5 * by_turn.cached > 0
    assert by_prefix.ttft and by_turn.ttft and by_prefix.ttft[1] <= by_turn.ttft[1]


def test_what_is_simulated_of_many_replicas(talks: TraceLoad) -> None:
    settings = make_settings(requests=100)
    few = choose_slice(4, talks, settings)
    assert few.share == 1.0 and few.seconds == pytest.approx(100 / talks.rate)
    many = choose_slice(10_000, talks, settings)
    assert (many.simulated, many.seconds) == (64, talks.span)
    some = choose_slice(10, talks, settings)
    assert some.simulated == 4 and some.seconds == pytest.approx(100 / (talks.rate * 0.4))


# --- recommendations ---


def make_search(least: int) -> tuple[ReplicaSearch, list[int]]:
    """Targets are met from so many replicas on."""
    seen = list[int]()

    def simulate(replicas: int) -> ReplicaPoint:
        seen.append(replicas)
        met = 1.0 if replicas >= least else 0.5
        return ReplicaPoint(replicas, 1, 1, 1, 1.0, 0, None, None, 0, 0, 0, 0, 0, met, 0, 0, 0)

    return ReplicaSearch(simulate), seen


@pytest.mark.parametrize("least", [1, 2, 3, 37, 600, 9999, 10_000])
def test_the_least_number_is_found(least: int) -> None:
    search, seen = make_search(least)
    found = search.find_least(ReplicaNumbers.parse("1..10000"))
    assert found is not None and least <= found <= 1.03 * least + 1
    assert (found == least or least > 50) and len(seen) == len(set(seen)) < 20


def test_a_list_has_no_numbers_between() -> None:
    search, _ = make_search(3)
    assert search.find_least(ReplicaNumbers.parse("4,2,8")) == 4
    assert search.find_least(ReplicaNumbers.parse("1,2")) is None
    assert ReplicaNumbers.parse("4,1,4") == ReplicaNumbers((1, 4), False)
    assert make_ladder(3, 120) == (3, 5, 10, 20, 50, 100, 120)


@pytest.mark.parametrize(
    "text, why",
    [
        ("", "is no number of replicas; allowed: 4, 1,2,4 or 1..10000; nearest valid: 1..10000"),
        ("1-4", "is no number of replicas"),
        ("1..", "is no number of replicas"),
        ("1..2..3", r"is no range; allowed: LOW..HIGH; nearest valid: 1..3"),
        ("9..2", r"is no range; allowed: LOW..HIGH; nearest valid: 2..9"),
        ("0..4", "replicas = 0 is out of range; allowed: 1 to 10000; nearest valid: 1"),
        ("1,20000", "20000 is out of range; allowed: 1 to 10000; nearest valid: 10000"),
    ],
)
def test_numbers_that_are_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        ReplicaNumbers.parse(text)


def test_without_requests_there_is_no_point(talks: TraceLoad) -> None:
    settings = make_settings()
    nothing = replace(talks, kept=0.0)
    run = ReplicaRun((SERVER, cost), 1, settings.make_policy(), NEVER, UNBOUNDED)
    assert run.run(nothing.draw(1.0, 1.0)) == []
