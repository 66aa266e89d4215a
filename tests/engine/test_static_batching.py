"""Static and continuous batching: which sequences may start, and how many steps they take."""

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
from workload import Harness, Parts, workload

from flyweight.config import Limits, Settings
from flyweight.engine.admission import ADMISSIONS, StaticAdmission
from flyweight.engine.scheduler import Scheduler
from flyweight.engine.step import Produced
from flyweight.errors import ConfigError
from flyweight.kv.blocks import BlockPool
from flyweight.params.tasks import BeamSearchParams
from flyweight.types import Request, SamplingParams

LIMITS = Limits(
    max_model_len=64, max_num_seqs=2, max_num_batched_tokens=64, block_size=4, blocks=64
)


def scheduler(kind: str, **changes: int) -> Scheduler:
    limits = replace(LIMITS, **changes)
    pool = BlockPool(limits.blocks, limits.block_size)
    return Scheduler(limits, pool, admission=ADMISSIONS[kind](limits.max_num_seqs))


def request(id: str, answer: int, **rest: object) -> Request:
    tokens = tuple(100 * (1 + ord(id[-1])) + i for i in range(3))
    return Request(id, tokens, SamplingParams(n=rest.pop("n", 1)), max_tokens=answer, **rest)


def step(s: Scheduler) -> list[str]:
    """Ids of what one step computed."""
    plan = s.schedule()
    s.commit(plan, [Produced([1] * min(1, c.rows)) for c in plan.chunks])
    return [chunk.seq.request.id for chunk in plan.chunks]


def count_steps(kind: str, answers: list[int], **changes: int) -> int:
    s = scheduler(kind, **changes)
    for i, answer in enumerate(answers):
        s.add(request(chr(97 + i), answer))
    steps = 0
    while s.busy:
        assert step(s)
        steps += 1
    return steps


@pytest.mark.parametrize(
    "answers, seats, static, continuous",
    [
        # the first step of an answer of m tokens computes its prompt, so it takes m steps
        ([2, 8, 2, 8, 2, 8], 2, 8 + 8 + 8, 18),  # seats end at 2, 4, 12, 12 and 8, 10, 18
        ([1, 1, 1, 9], 2, 1 + 9, 10),  # 1, 1 | 1, 9: the long one starts second in both
        ([9, 1, 1, 1, 1, 1, 1, 1], 2, 9 + 1 + 1 + 1, 9),  # seven short ones next to the long one
        ([5, 5, 5, 5], 2, 10, 10),  # nothing to gain where all are as long
        ([4], 2, 4, 4),
    ],
)
def test_static_batches_take_as_many_steps_as_their_longest_answers(
    answers: list[int], seats: int, static: int, continuous: int
) -> None:
    assert count_steps("static", answers, max_num_seqs=seats) == static
    assert count_steps("continuous", answers, max_num_seqs=seats) == continuous


def test_nothing_new_starts_within_a_batch() -> None:
    s = scheduler("static", max_num_seqs=3)
    for id in "ab":
        s.add(request(id, 2 if id == "a" else 4))
    assert step(s) == ["a", "b"]
    s.add(request("c", 1, priority=-1))  # a seat is free, and its priority better
    assert s.load().startable == 0
    assert [step(s) for _ in range(4)] == [["a", "b"], ["b"], ["b"], ["c"]]


def test_a_batch_whose_prompts_need_several_steps_is_still_one() -> None:
    s = scheduler("static", max_num_seqs=3, max_num_batched_tokens=4)
    for id in "abcd":
        s.add(request(id, 2))
    assert step(s) == ["a", "b"] and step(s) == ["a", "b", "c"]
    s.abort("b")
    assert [step(s) for _ in range(3)] == [["c"], ["c"], ["d"]]  # its prompt's rest, then one more


def test_a_request_id_that_is_used_again_is_another_request() -> None:
    s = scheduler("static")
    s.add(request("a", 1))
    s.add(request("b", 3))
    assert step(s) == ["a", "b"]
    s.add(request("a", 1))
    assert [step(s) for _ in range(3)] == [["b"], ["b"], ["a"]]


def test_choices_and_beams_take_seats() -> None:
    waits = StaticAdmission(4)

    def batch(*requests: Request) -> list[str]:
        s = scheduler("continuous", max_num_seqs=4)
        for each in requests:
            s.add(each)
        waits.batch = []
        return [seq.request.id for seq in waits.choose(s.waiting, s.by_id)]

    beam = BeamSearchParams(beam_width=3)
    assert batch(request("a", 2, n=3), request("b", 2), request("c", 2)) == ["a", "a", "a", "b"]
    assert batch(request("a", 2), request("b", 2, n=4)) == ["a"]
    assert batch(request("a", 2, n=6), request("b", 2)) == ["a"] * 6
    assert batch(request("a", 2, beam=beam), request("b", 2), request("c", 2)) == ["a", "b"]


def test_random_workloads_have_the_oracles_answers() -> None:
    """Under preemption, drafts, aborts, choices and searches."""
    counts: Counter[str] = Counter()
    for seed in range(150):
        work = workload(seed)
        static = StaticAdmission(work.limits.max_num_seqs)
        harness = Harness(work, Parts(scheduler=partial(Scheduler, admission=static)))
        harness.run()
        counts += harness.counts
    assert min(counts[name] for name in ("preemption", "search", "accepted draft")) >= 10


def test_other_names_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"^scheduler = 'statik' .* static \(did you mean 'static"
    ):
        Settings.of(scheduler="statik")
