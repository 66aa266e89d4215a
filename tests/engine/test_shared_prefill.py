"""Requests with one prefix that arrive together: it is computed once, and none waits in vain."""

from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import pytest
from oracle import MockRunner, answer

from flyweight.config import Limits
from flyweight.engine.engine import Engine
from flyweight.engine.metrics import EngineMetrics
from flyweight.engine.scheduler import Scheduler
from flyweight.engine.sequence import Sequence
from flyweight.engine.step import Plan, Produced
from flyweight.kv.blocks import BlockPool, make_chain_key
from flyweight.params.tasks import PoolingParams
from flyweight.types import Event, Request, SamplingParams

LIMITS = Limits(
    max_model_len=128, max_num_seqs=16, max_num_batched_tokens=64, block_size=4, blocks=256
)
PREFIX = tuple(range(48))  # requests begin with 40 tokens of it, ten blocks


def request(id: str, prefix: int = 40, own: int = 2, **more: Any) -> Request:
    """The first tokens of `PREFIX`, then tokens that no other request has."""
    n, scores = more.pop("n", 1), more.pop("prompt_logprobs", None)
    tokens = PREFIX[:prefix] + tuple(100 * ord(id[-1]) + i for i in range(own))
    params = SamplingParams(n=n, prompt_logprobs=scores)
    return Request(id, tokens, params, max_tokens=more.pop("max_tokens", 2), **more)


def scheduler(**changes: Any) -> Scheduler:
    limits = replace(LIMITS, **changes)
    return Scheduler(limits, BlockPool(limits.blocks, limits.block_size))


def step(s: Scheduler) -> list[tuple[str, int, int]]:
    """What one step computed: request, first token, tokens."""
    plan = s.schedule()
    commit(s, plan)
    return [(c.seq.request.id, c.start, c.count) for c in plan.chunks]


def commit(s: Scheduler, plan: Plan) -> list[Event]:
    return s.commit(plan, [Produced([1] * len(c.drawn)) for c in plan.chunks])


def compute(requests: Seq[Request], **changes: Any) -> tuple[dict[str, list[int]], EngineMetrics]:
    """Answers of requests that arrive together, and what was counted."""
    limits, metrics = replace(LIMITS, **changes), EngineMetrics()
    s = scheduler(**changes)
    engine = Engine(s, MockRunner(limits.blocks, limits.block_size), None, metrics)
    for one in requests:
        engine.add(one)
    answers: dict[str, list[int]] = {one.id: [] for one in requests}
    while engine.busy:
        for event in engine.step():
            answers[event.id] += event.tokens
        s.pool.check_integrity([seq.table for seq in s.running])
    return answers, metrics


@pytest.mark.parametrize("chunk", [None, 3])
def test_one_prefix_of_many_requests_is_computed_once(chunk: int | None) -> None:
    requests = [request(id, 41, 5, max_tokens=1) for id in "abcdefgh"]
    answers, metrics = compute(requests, max_chunk=chunk)
    # 40 tokens of the prefix are whole blocks, the 41st is computed by each
    assert metrics.computed == 46 + 7 * 6
    assert metrics.awaited == metrics.cached == 7 * 40
    assert answers == {one.id: list(answer(one, 0)) for one in requests}


def test_without_prefix_caching_each_computes_it() -> None:
    requests = [request(id, 41, 5, max_tokens=1) for id in "abcdefgh"]
    answers, metrics = compute(requests, prefix_caching=False)
    assert (metrics.computed, metrics.awaited) == (8 * 46, 0)
    assert answers == {one.id: list(answer(one, 0)) for one in requests}


def test_those_behind_start_and_the_others_follow_in_the_next_step() -> None:
    s = scheduler()
    for one in (request("a"), request("b"), request("c", 0, 9)):
        s.add(one)
    assert step(s) == [("a", 0, 42), ("c", 0, 9)]
    assert step(s) == [("a", 42, 1), ("c", 9, 1), ("b", 40, 2)]


def test_one_that_arrives_later_waits_for_the_rest_of_a_prompt() -> None:
    s = scheduler(max_chunk=16)
    s.add(request("a"))
    assert step(s) == [("a", 0, 16)]
    s.add(request("b"))
    assert s.load().startable == 42, "whom it waits for is known when it is to be admitted"
    assert step(s) == [("a", 16, 16)] and s.load().startable == 0
    assert step(s) == [("a", 32, 10)]
    assert step(s) == [("a", 42, 1), ("b", 40, 2)]


def test_it_waits_for_the_common_blocks_only() -> None:
    s = scheduler(max_chunk=16)
    s.add(request("a"))
    s.add(request("b", 23))  # five blocks in common, and three tokens
    assert step(s) == [("a", 0, 16)]
    assert step(s) == [("a", 16, 16)], "the fifth block is not computed yet"
    assert step(s) == [("a", 32, 10), ("b", 20, 5)]


def test_less_than_a_block_in_common_is_not_waited_for() -> None:
    s = scheduler()
    s.add(request("a", 3, 9))
    s.add(request("b", 3, 9))
    assert step(s) == [("a", 0, 12), ("b", 0, 12)]


@pytest.mark.parametrize(
    "other",
    [
        {"salt": "x"},
        {"adapter": "x"},
        {"priority": -1},  # does not wait for one of worse priority
        {"prompt_logprobs": 0},  # wants all rows
        {"pooling": PoolingParams("mean")},
    ],
)
def test_what_would_not_be_found_or_is_of_worse_priority_is_not_waited_for(other: Any) -> None:
    s = scheduler(max_chunk=16)
    s.add(request("a"))
    step(s)
    s.add(request("b", **other))
    expected = 16 if "priority" in other else 0
    assert ("b", expected, 16) in step(s)


def test_a_vector_of_the_last_token_waits() -> None:
    s = scheduler(max_chunk=16)
    s.add(request("a"))
    step(s)
    s.add(request("b", pooling=PoolingParams("last")))
    assert step(s) == [("a", 16, 16)]


def test_a_prompt_whose_rows_are_wanted_is_waited_for() -> None:
    s = scheduler(max_chunk=16)
    s.add(request("a", prompt_logprobs=0))
    s.add(request("b"))
    assert [step(s) for _ in range(3)] == [[("a", 0, 16)], [("a", 16, 16)], [("a", 32, 10)]]
    assert ("b", 40, 2) in step(s)


def seq_of(s: Scheduler, id: str) -> Sequence:
    return s.by_id[id][0]


@pytest.mark.parametrize("end", ["abort", "preempt", "recover"])
def test_the_wait_ends_with_the_other(end: str) -> None:
    s = scheduler(max_chunk=16)
    s.add(request("a"))
    s.add(request("b"))
    assert step(s) == [("a", 0, 16)]
    if end == "abort":
        s.abort("a")
        assert step(s) == [("b", 16, 16)]
    elif end == "preempt":
        s.requeue(seq_of(s, "a"))
        with s.admit_only("b"):
            assert step(s) == [("b", 16, 16)]
        # the other way round it does not wait: it is the first in order
        assert step(s) == [("b", 32, 10), ("a", 32, 10)]
    else:
        s.recover()
        assert step(s) == [("a", 16, 16)]


def test_one_that_finishes_at_its_prompt_ends_the_wait() -> None:
    s = scheduler()
    s.add(request("a", max_tokens=1))
    s.add(request("b"))
    assert step(s) == [("a", 0, 42)]
    assert not s.running and step(s) == [("b", 40, 2)]


def test_choices_wait_for_their_leader_and_it_for_another_request() -> None:
    requests = [request("a", 41, 5, n=3, max_tokens=1), request("b", 41, 5, n=3, max_tokens=1)]
    answers, metrics = compute(requests)
    # the first choice has ended, so the others find its eleven blocks, and compute two tokens
    assert metrics.computed == 46 + 2 * 2 + 6 + 2 * 2
    assert metrics.awaited == 40
    for one in requests:
        assert sorted(answers[one.id]) == sorted(answer(one, i)[0] for i in range(3))


def test_keys_are_made_once_however_long_it_waits() -> None:
    made: list[bytes] = []

    def make(parent: bytes, tokens: Seq[int]) -> bytes:
        made.append(parent)
        return make_chain_key(parent, tokens)

    limits = replace(LIMITS, max_chunk=3)
    s = Scheduler(limits, BlockPool(limits.blocks, limits.block_size, make))
    s.add(request("a"))
    s.add(request("b"))
    steps = [step(s) for _ in range(14)]
    assert steps[:13] == [[("a", 3 * i, 3)] for i in range(13)]
    assert steps[13] == [("a", 39, 3)] and len(made) == 20
    assert ("b", 40, 2) in step(s)


def test_two_plans_in_flight_share_a_prefix_too() -> None:
    """The second is made before the first is committed."""
    s = scheduler()
    s.add(request("a"))
    s.add(request("b"))
    first, second = s.schedule(), s.schedule()
    assert [c.seq.request.id for c in first.chunks] == ["a"] and not second.chunks
    commit(s, first)
    commit(s, second)
    assert ("b", 40, 2) in step(s)
