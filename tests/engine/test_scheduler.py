"""Policy, one rule at a time: limits, order, refusals, and steps that overlap."""

from collections import deque
from dataclasses import replace

import pytest
from oracle import MockRunner, answer
from workload import Harness, workload

from flyweight.config import Limits
from flyweight.engine.batch import build, list_moves
from flyweight.engine.prefix import KeyBase
from flyweight.engine.scheduler import Scheduler
from flyweight.engine.step import UNLIMITED, Plan, Produced, StepBudget
from flyweight.errors import ConfigError, RequestError
from flyweight.kv.blocks import BlockPool
from flyweight.types import Finish, Request, SamplingParams

LIMITS = Limits(max_model_len=32, max_num_seqs=3, max_num_batched_tokens=8, block_size=4, blocks=16)


def scheduler(**changes) -> Scheduler:
    limits = replace(LIMITS, **changes)
    return Scheduler(limits, BlockPool(limits.blocks, limits.block_size))


def request(id: str, prompt: int, max_tokens: int = 4, n: int = 1, **rest) -> Request:
    tokens = tuple(100 * (1 + ord(id[-1])) + i for i in range(prompt))
    return Request(id, tokens, SamplingParams(n=n), max_tokens=max_tokens, **rest)


def shape(plan: Plan) -> list[tuple[str, int, int]]:
    return [(c.seq.request.id, c.start, c.count) for c in plan.chunks]


def commit(s: Scheduler, plan: Plan, token: int = 1):
    return s.commit(plan, [Produced([token] * min(1, c.rows)) for c in plan.chunks])


def test_decodes_come_before_prefill_chunks_and_older_before_younger():
    s = scheduler()
    s.add(request("a", 3))
    plan = s.schedule()
    assert shape(plan) == [("a", 0, 3)]
    commit(s, plan)
    s.add(request("b", 9))
    s.add(request("c", 9))
    plan = s.schedule()
    assert shape(plan) == [("a", 3, 1), ("b", 0, 7)]
    commit(s, plan)
    assert shape(s.schedule()) == [("a", 4, 1), ("b", 7, 2), ("c", 0, 5)]


def test_decodes_skip_every_second_step_where_the_budget_allows_it():
    s = scheduler(max_num_seqs=8, blocks=32)
    s.add(request("a", 3))
    commit(s, s.schedule())
    budget = StepBudget(8, prefill_tokens=7)
    for id in "bc":
        s.add(request(id, 12, 2))
    expected = [
        [("b", 0, 7)],  # prefill_tokens
        [("a", 3, 1), ("b", 7, 5), ("c", 0, 2)],
        [("c", 2, 7)],
        [("a", 4, 1), ("b", 12, 1), ("c", 9, 3)],
        [("a", 5, 1), ("c", 12, 1)],  # no prompt is left: no decode skips it
    ]
    prefill_only = []
    for shapes in expected:
        plan = s.schedule(budget)
        assert shape(plan) == shapes
        prefill_only.append(plan.prefill_only)
        commit(s, plan)
    assert prefill_only == [True, False, True, False, False]


def test_no_decode_skips_a_step_for_prompts_of_worse_priority():
    s = scheduler(max_num_seqs=8, blocks=32)
    s.add(request("a", 3))
    commit(s, s.schedule())
    s.add(request("b", 20, priority=1))
    for expected in ([("a", 3, 1), ("b", 0, 7)], [("a", 4, 1), ("b", 7, 7)]):
        plan = s.schedule(StepBudget(8, prefill_tokens=8))
        assert shape(plan) == expected and not plan.prefill_only
        commit(s, plan)


def test_no_decode_skips_a_step_for_prompts_that_cannot_begin():
    s = scheduler(max_num_seqs=1)
    s.add(request("a", 3))
    commit(s, s.schedule())
    s.add(request("b", 9))
    assert s.load().startable == 0
    plan = s.schedule(StepBudget(8, prefill_tokens=8))
    assert shape(plan) == [("a", 3, 1)] and not plan.prefill_only


def test_what_could_start_now_is_bound_by_seats_blocks_and_priority():
    s = scheduler(max_num_seqs=3, blocks=4)
    assert s.load().startable == 0
    s.add(request("a", 3, 4))
    assert s.load().startable == 3
    commit(s, s.schedule())
    s.add(request("b", 5))
    assert s.load().startable == 5
    s.add(request("c", 6, priority=1))
    assert s.load().startable == 5, "no step of a's is given for one of worse priority"
    s.add(request("d", 9))
    assert s.load().startable == 12, "three blocks are free"
    s.add(request("e", 9))
    assert s.load().startable == 12, "and two seats"


def test_lower_priority_numbers_go_first():
    s = scheduler(max_num_seqs=1)
    s.add(request("a", 2, priority=1))
    s.add(request("b", 2, priority=0))
    assert shape(s.schedule()) == [("b", 0, 2)]


def test_the_last_in_rank_is_preempted_and_comes_back():
    s = scheduler(blocks=5, prefix_caching=False)
    s.add(request("a", 8, 9, priority=1))
    s.add(request("b", 4, 9, priority=0))
    seen = []
    while s.busy:
        plan = s.schedule()
        seen += [seq.request.id for seq in plan.preempted]
        commit(s, plan)
        s.pool.check_integrity([seq.table for seq in s.running])
    assert seen and set(seen) == {"a"}


def test_blocks_of_rejected_drafts_are_free_again():
    s = scheduler(block_size=2, draft_tokens=6)
    s.add(request("a", 3, 9))
    commit(s, s.schedule())
    (seq,) = s.running
    seq.draft = [7] * 6
    plan = s.schedule()
    assert shape(plan) == [("a", 3, 7)] and len(seq.table.blocks) == 5
    commit(s, plan)  # only the first row's token is accepted
    assert len(seq.tokens) == 5 and len(seq.table.blocks) == 3
    s.pool.check_integrity([seq.table])


def test_drafts_take_no_block_that_another_sequence_needs_next():
    s = scheduler(block_size=2, blocks=6, draft_tokens=6)
    s.add(request("a", 3, 9))
    s.add(request("b", 3, 9))
    commit(s, s.schedule())
    a, _ = s.running
    a.draft = [7] * 6
    plan = s.schedule()  # two blocks are free, and two sequences may each need one
    assert shape(plan) == [("a", 3, 1), ("b", 3, 1)]
    commit(s, plan)
    a.draft = [7] * 6
    plan = s.schedule()
    assert shape(plan) == [("a", 4, 1), ("b", 4, 1)] and not plan.preempted
    commit(s, plan)
    a.draft = [7] * 6
    assert shape(s.schedule()) == [("a", 5, 1), ("b", 5, 1)]  # of its own block it may use all


def test_drafts_give_way_to_other_sequences():
    s = scheduler(max_num_batched_tokens=3)
    for id in "abc":
        s.add(request(id, 1, 8))
    commit(s, s.schedule())
    for seq in s.running:
        seq.draft = [7, 7, 7]
    assert [c.count for c in s.schedule().chunks] == [1, 1, 1]


def list_prompt_chunks(draft: int, budget: int | None) -> list[list[tuple[str, int, int]]]:
    """Chunks of prompts, step by step, next to two sequences with drafts that come to nothing."""
    s = scheduler(
        max_model_len=512, max_num_seqs=4, max_num_batched_tokens=64, blocks=256,
        draft_tokens=24,
    )  # fmt: skip
    for id in "ab":
        s.add(request(id, 3, 99))
    commit(s, s.schedule())
    for id, prompt in (("c", 100), ("d", 90)):
        s.add(request(id, prompt, 1))
    found = []
    for _ in range(20):
        for seq in s.running:
            if seq.decoding:
                seq.draft = [7] * draft
        plan = s.schedule(StepBudget(len(s.running) + budget) if budget else UNLIMITED)
        assert sum(c.count for c in plan.chunks) <= 64
        found.append([c for c in shape(plan) if c[0] in "cd"])
        commit(s, plan)
    return found


@pytest.mark.parametrize("budget", [16, 40, 60, None])
@pytest.mark.parametrize("draft", [1, 8, 24])
def test_prompts_are_computed_as_quickly_with_drafts(draft, budget):
    expected = list_prompt_chunks(0, budget)
    assert list_prompt_chunks(draft, budget) == expected
    assert max(count for chunks in expected for _, _, count in chunks) > 15


def test_drafts_take_what_prompts_leave_of_a_step():
    s = scheduler(
        max_model_len=512, max_num_seqs=3, max_num_batched_tokens=64, blocks=256,
        draft_tokens=24,
    )  # fmt: skip
    s.add(request("a", 3, 99))
    commit(s, s.schedule())

    def plan_draft(budget=UNLIMITED):
        s.running[0].draft = [7] * 24
        plan = s.schedule(budget)
        commit(s, plan)
        return shape(plan)

    assert plan_draft(StepBudget(17)) == [("a", 3, 25)]  # whole, whatever fits the target time
    s.add(request("b", 100, 9))
    assert plan_draft() == [("a", 4, 1), ("b", 0, 63)]
    assert plan_draft() == [("a", 5, 25), ("b", 63, 37)]
    s.add(request("c", 50, 9))
    assert plan_draft() == [("a", 6, 13), ("b", 100, 1), ("c", 0, 50)]
    s.add(request("d", 50, 9))  # has no seat
    assert plan_draft() == [("a", 7, 25), ("b", 101, 1), ("c", 50, 1)]


def test_a_prompt_is_refused_only_if_it_could_never_fit():
    s = scheduler(blocks=5)  # 20 slots; the 21st token needs none
    s.add(request("a", 17, 4))
    with pytest.raises(RequestError, match=r"= 5 is .* 17 tokens it is 22, .* 5 blocks of 4 .*: 4"):
        s.add(request("b", 17, 5))
    with pytest.raises(RequestError, match=r"prompt has 21 tokens, .* nearest valid: 20 tokens"):
        s.add(request("b", 21, 1))
    with pytest.raises(RequestError, match=r"max_model_len = 32; nearest valid: 2"):
        scheduler().add(request("b", 30, 3))
    with pytest.raises(RequestError, match="in use"):
        s.add(request("a", 1))
    with pytest.raises(RequestError, match="0 tokens"):
        s.add(request("b", 0))
    with pytest.raises(RequestError, match="max_tokens = 0"):
        s.add(request("b", 1, 0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_num_batched_tokens": 2}, "max_num_batched_tokens = 2 .* nearest valid: 3"),
        ({"block_size": 0}, "block_size = 0 .* 1 to 1024; nearest valid: 1"),
        ({"blocks": 0}, "blocks = 0"),
        ({"blocks": 2**30}, "blocks"),
        ({"max_chunk": 0}, "max_chunk = 0"),
        ({"max_num_seqs": 1.5}, "max_num_seqs = 1.5"),
        ({"draft_tokens": -1}, "draft_tokens = -1"),
    ],
)
def test_limits_refuse_what_makes_no_sense(change, message):
    with pytest.raises(ConfigError, match=message):
        replace(LIMITS, **change)


def test_an_abort_frees_at_once_in_every_state():
    s = scheduler(max_num_seqs=2)
    for id, prompt in (("a", 2), ("b", 20), ("c", 3)):
        s.add(request(id, prompt))
    commit(s, s.schedule())  # a decodes, b is at its prompt, c waits
    plan = s.schedule()
    for id in "abc":
        (event,) = s.abort(id)
        assert event.finish is Finish.ABORT
        s.pool.check_integrity([seq.table for seq in s.running])
    assert not s.busy and len(s.pool.free) == LIMITS.blocks
    assert commit(s, plan) == []
    assert s.abort("a") == []


def test_one_choice_can_be_aborted_alone():
    s = scheduler()
    s.add(request("a", 2, n=3))
    commit(s, s.schedule())
    assert [e.index for e in s.abort("a", 0)] == [0]
    ended = []
    while s.busy:
        ended += [e.index for e in commit(s, s.schedule()) if e.finish]
    assert ended == [1, 2]


def test_choices_share_the_prompt_and_copy_its_partial_block():
    s = scheduler(prefix_caching=False)
    s.add(request("a", 6, n=3))
    plan = s.schedule()
    assert shape(plan) == [("a", 0, 6)]
    commit(s, plan)
    plan = s.schedule()
    assert [(c.seq.index, c.start, c.count) for c in plan.chunks] == [
        (0, 6, 1),
        (1, 5, 1),
        (2, 5, 1),
    ]
    assert [c.copy.count for c in plan.chunks if c.copy] == [1, 1]
    first, *others = (c.seq.table.blocks for c in plan.chunks)
    assert all(b[0] == first[0] and b[1] != first[1] for b in others)


def test_min_tokens_keeps_a_stop_token_from_ending():
    s = scheduler()
    params = SamplingParams(min_tokens=2, max_tokens=4)
    s.add(Request("a", (5,), params, stop_ids=frozenset({1}), max_tokens=4))
    finishes = [commit(s, s.schedule())[0].finish for _ in range(3)]
    assert finishes == [None, None, Finish.STOP]


def test_accepted_tokens_end_at_a_stop_token():
    s = scheduler()
    s.add(replace(request("a", 3, 9), stop_ids=frozenset({1})))
    commit(s, s.schedule(), token=2)
    s.running[0].draft = [3, 1, 4]
    (event,) = s.commit(s.schedule(), [Produced([3, 1, 4, 5])])
    assert (event.tokens, event.finish, event.stop_token) == ((3, 1), Finish.STOP, 1)
    assert event.timings is not None


def test_an_interrupted_step_is_computed_again():
    work = workload(7)
    h = Harness(work)
    submit, calls = h.engine.runner.submit, iter(range(10**6))

    def interrupted(*given):
        # Not for ever: what must be computed in one go (a mean) would never come to its end.
        if (call := next(calls)) % 3 == 1 and call < 300:
            raise KeyboardInterrupt
        return submit(*given)

    h.engine.runner.submit = interrupted
    for r in work.requests:
        h.engine.add(r)
    while h.engine.busy:
        try:
            for event in h.engine.step():
                h._take(event)
        except KeyboardInterrupt:
            h._check_pool()
    h._check_end()


def test_two_plans_may_be_in_flight():
    """As where steps overlap: a plan is made, and run, before the one before it is committed."""
    for seed in range(150):
        work = workload(seed)
        limits = work.limits
        s = Scheduler(limits, BlockPool(limits.blocks, limits.block_size))
        runner, texts = MockRunner(limits.blocks, limits.block_size), {}
        requests = [r for r in work.requests if r.pooling is None]
        for r in requests:
            s.add(r)
        pending = deque()
        while s.busy:
            plan = s.schedule()
            if plan.chunks:
                batch = build(plan, limits.block_size)
                pending.append((plan, runner.submit(batch, list_moves(plan, limits.block_size))))
            if len(pending) == 2 or not plan.chunks:
                done, ticket = pending.popleft()
                drawn = iter(runner.wait(ticket).tokens.tolist())
                rows = [[next(drawn) for _ in range(c.rows)] for c in done.chunks]
                made = [
                    Produced(own[len(c.scored) :]) for c, own in zip(done.chunks, rows, strict=True)
                ]
                for event in s.commit(done, made):
                    texts.setdefault((event.id, event.index), []).extend(event.tokens)
                s.pool.check_integrity([seq.table for seq in s.running])
        for r in requests:
            for i in range(r.params.n):
                assert tuple(texts[r.id, i]) == answer(r, i), f"workload({seed}): {r.id}/{i}"


def test_a_secret_is_of_one_process_and_can_be_given():
    """So that nobody computes keys beforehand."""
    roots = []
    for secret in (None, None, b"x", b"x"):
        s = Scheduler(
            LIMITS, BlockPool(LIMITS.blocks, LIMITS.block_size), keys=KeyBase(secret=secret)
        )
        s.add(request("a", 3))
        roots.append(s.by_id["a"][0].table.root)
    assert len(set(roots)) == 3 and roots[2] == roots[3]
