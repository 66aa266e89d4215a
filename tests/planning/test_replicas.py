"""Replicas in virtual time: against one engine, by hand, and policies on conversations."""

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import quantiles

import pytest

from flyweight.bench.serving.traces import TraceRequest, read_trace
from flyweight.config import Limits
from flyweight.errors import ConfigError
from flyweight.plan.roofline import StepShape
from flyweight.planning.queueing import ArrivalLoad, QueueSimulator, ServerShape
from flyweight.planning.replicas import (
    ReplicaRequest,
    ReplicaSimulator,
    RoutedTimes,
    TraceScale,
    spread_arrivals,
)
from flyweight.routing.policies import make_policy

LIMITS = Limits(
    max_model_len=16384, max_num_seqs=16, max_num_batched_tokens=1024, block_size=32, blocks=1024
)


def cost(seen: StepShape) -> float:
    return 0.01 + 0.0003 * seen.tokens


def serve(
    requests: list[ReplicaRequest], policy: str, replicas: int = 4, blocks: int = 1024
) -> RoutedTimes:
    server = ServerShape(replace(LIMITS, blocks=blocks), 0.2, 3.0)
    return ReplicaSimulator(server, cost, replicas).run(requests, make_policy(policy))


def find_p99(found: RoutedTimes) -> float:
    return quantiles(found.ttft, n=100, method="inclusive")[98]


# --- traces ---


def test_requests_of_one_time_are_spread_up_to_the_next() -> None:
    trace = [TraceRequest(at, 512, 16) for at in (0.0, 0.0, 0.0, 3.0, 4.0, 4.0)]
    assert [at for at, _ in spread_arrivals(trace)] == [0.0, 1.0, 2.0, 3.0, 4.0, 4.5]
    assert [one for _, one in spread_arrivals(trace)] == trace
    assert [at for at, _ in spread_arrivals(trace[:2])] == [0.0, 0.0]


def test_a_trace_in_small() -> None:
    """512 tokens of a hash become 2; the third request has no hashes."""
    trace = [
        TraceRequest(0.0, 1300, 600, (0, 5, 6)),
        TraceRequest(4.0, 100, 3, (0,)),
        TraceRequest(6.0, 1024, 256),
    ]
    assert TraceScale(256, 2.0).make_requests(trace) == [
        ReplicaRequest(0.0, (2, 2, 7, 7, 8), 2),
        ReplicaRequest(2.0, (2,), 1),
        ReplicaRequest(3.0, (-3, -3, -3, -3), 1),
    ]
    with pytest.raises(
        ConfigError, match=r"factor = 48 does not divide the 512.*nearest valid: 32"
    ):
        TraceScale(48)


# --- one replica ---


def test_one_replica_is_one_engine() -> None:
    limits = replace(LIMITS, prefix_caching=False)
    server = ServerShape(limits, 0.2, 3.0)
    load = ArrivalLoad(prompt=300, output=12, count=60, seed=4)
    arrivals = load.draw_arrivals(6.0)
    served = QueueSimulator(server, cost).serve(load, arrivals)
    requests = [ReplicaRequest(at, (1,) * load.prompt, load.output) for at in arrivals]
    found = ReplicaSimulator(server, cost, 1).run(requests, make_policy("prefix"))
    assert (found.ttft, found.e2el, found.seconds) == (served.ttft, served.e2el, served.seconds)
    assert found.cached == (0,) * 60


def test_a_repeated_prompt_is_cached_for_its_tenant_alone() -> None:
    tokens = tuple(range(100))
    salts = "a", "a", "b", "b"
    requests = [ReplicaRequest(10.0 * i, tokens, 2, salt) for i, salt in enumerate(salts)]
    found = serve(requests, "prefix", 1)
    assert found.cached == found.expected == (0, 96, 0, 96)
    assert found.cached_share == found.expected_share == 192 / 400
    assert found.ttft[1] == pytest.approx(0.01 + 0.0003 * 4)


def test_replicas_work_at_the_same_time() -> None:
    """Four prompts at once, whose steps take as long as that of one alone."""
    requests = [ReplicaRequest(1.0, (i,) * 16, 3) for i in range(4)]
    found = serve(requests, "round-robin")
    step, token = 0.01 + 0.0003 * 16, 0.01 + 0.0003
    assert found.placed == (0, 1, 2, 3)
    assert found.ttft == pytest.approx((step,) * 4)
    assert found.e2el == pytest.approx((step + 2 * token,) * 4)
    assert found.busy == pytest.approx((step + 2 * token,) * 4)
    assert (found.busiest_share, found.utilization) == pytest.approx((0.25, 1.0))
    assert len(found.decisions) == 4
    with pytest.raises(ConfigError, match="replicas = 0 is out of range"):
        serve([], "prefix", 0)


def test_requests_that_arrive_together_share_a_step() -> None:
    requests = [ReplicaRequest(1.0, (i,) * 16, 1) for i in range(2)]
    assert serve(requests, "round-robin", 1).ttft == pytest.approx((0.01 + 0.0003 * 32,) * 2)


# --- policies ---


def test_a_conversation_alone_stays_where_it_is() -> None:
    """The work of all its turns, had they not finished, would be above the bound."""
    talk = [range(1000 * i, 1000 * i + 32) for i in range(100)]
    turns = [(*(token for block in talk[: i + 1] for token in block), 9) for i in range(100)]
    requests = [ReplicaRequest(10.0 * i, turn, 1) for i, turn in enumerate(turns)]
    found = serve(requests, "prefix")
    assert found.placed == (0,) * 100
    assert found.cached == (0, *(32 * i for i in range(1, 100)))


def make_conversations(count: int, turns: int) -> list[TraceRequest]:
    """Turns of `count` conversations in random order, each with two more blocks than the one
    before, behind a block that all have in common.
    """
    rng, order = random.Random(5), [talk for talk in range(count) for _ in range(turns)]
    rng.shuffle(order)
    held = {talk: [0] for talk in range(count)}
    found, fresh = [], 1
    for number, talk in enumerate(order):
        held[talk] += [fresh, fresh + 1]
        fresh += 2
        blocks = (*held[talk], fresh + 1_000_000)
        found.append(TraceRequest(0.5 * number, 512 * len(held[talk]) + 100, 300, blocks))
    return found


@pytest.fixture(scope="module")
def conversations() -> list[ReplicaRequest]:
    return TraceScale(speed=4.0).make_requests(make_conversations(40, 8))


def test_a_run_repeats_exactly(conversations: list[ReplicaRequest]) -> None:
    for policy in ("prefix", "power-of-two"):
        assert serve(conversations, policy) == serve(conversations, policy)


def test_conversations_are_cached_where_they_are_sent(conversations: list[ReplicaRequest]) -> None:
    by_turn, by_prefix = (serve(conversations, name) for name in ("round-robin", "prefix"))
    assert by_prefix.cached_share > 1.5 * by_turn.cached_share
    assert find_p99(by_prefix) <= find_p99(by_turn)
    assert by_prefix.busiest_share < 0.4
    for found in by_turn, by_prefix:
        assert len(found.ttft) == len(conversations) and min(found.ttft) > 0
        assert set(found.placed) == {0, 1, 2, 3}
        assert all(a < b for a, b in zip(found.cached, found.prompts, strict=True))
    assert set(by_turn.expected) == {0}


def test_the_beginning_of_the_conversation_trace(data: Callable[[str], Path]) -> None:
    trace = islice(read_trace(data("traces-mooncake/conversation_trace.jsonl")), 800)
    requests = TraceScale(speed=2.5).make_requests(trace)
    names = "round-robin", "power-of-two", "prefix"
    found = {name: serve(requests, name, blocks=4096) for name in names}
    others = found["round-robin"], found["power-of-two"]
    assert found["prefix"].cached_share > 1.5 * max(one.cached_share for one in others)
    assert find_p99(found["prefix"]) <= find_p99(found["round-robin"])
    assert found["prefix"].busiest_share < 0.4
