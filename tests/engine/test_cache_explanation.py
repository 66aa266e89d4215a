"""Why a prompt was not found in the prefix cache: each reason, through the whole engine."""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from oracle import MockRunner

from flyweight.config import Limits
from flyweight.engine import prefix
from flyweight.engine.engine import Engine
from flyweight.engine.metrics import EngineMetrics
from flyweight.engine.prefix import Known, count_common
from flyweight.engine.scheduler import Scheduler
from flyweight.kv.blocks import BlockPool
from flyweight.types import Request, Reuse, SamplingParams

LIMITS = Limits(
    max_model_len=64, max_num_seqs=4, max_num_batched_tokens=16, block_size=4, blocks=32
)
LONG = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3)  # four blocks, and two tokens


class World:
    """An engine over the mock model, that answers one request after the other."""

    def __init__(self, **changes: Any) -> None:
        limits = replace(LIMITS, **changes)
        self.pool = BlockPool(limits.blocks, limits.block_size)
        self.scheduler = Scheduler(limits, self.pool)
        runner = MockRunner(limits.blocks, limits.block_size)
        self.engine = Engine(self.scheduler, runner, None, EngineMetrics())
        self.count = 0

    def add(self, tokens: Sequence[int], salt: str = "", explain: bool = True, **more: Any) -> str:
        id = f"r{self.count}"
        self.count += 1
        length, priority = more.pop("max_tokens", 2), more.pop("priority", 0)
        self.engine.add(
            Request(
                id, tuple(tokens), SamplingParams(**more), max_tokens=length, salt=salt,
                explain=explain, priority=priority,
            )
        )  # fmt: skip
        return id

    def finish(self) -> dict[str, list[Reuse | None]]:
        reported: dict[str, list[Reuse | None]] = {}
        while self.engine.busy:
            for event in self.engine.step():
                reported.setdefault(event.id, []).append(event.reuse)
        return reported

    def ask(self, tokens: Sequence[int], salt: str = "", **more: Any) -> Reuse:
        id = self.add(tokens, salt, **more)
        found = [one for one in self.finish()[id] if one is not None]
        assert found and all(one == found[0] for one in found)
        return found[0]


def test_nothing_like_it_was_seen_then_all_of_it() -> None:
    world = World()
    assert world.ask(LONG) == Reuse(0, "never_seen", 0)
    assert world.ask(LONG) == Reuse(16, "", None)


def test_where_prompts_part_is_reported_to_the_token() -> None:
    world = World()
    world.ask(LONG)
    other = (*LONG[:10], 9, *LONG[11:])
    assert world.ask(other) == Reuse(8, "never_seen", 10, LONG[10:18])
    found = world.ask(other[:11] + LONG[:7])
    assert found == Reuse(8, "never_seen", 11, found.expected)
    assert found.expected[:7] == other[11:18] and found.block_size == 4


def test_the_known_tokens_may_be_of_an_answer() -> None:
    """The prompt goes on with the first of the tokens that the model wrote, then with others."""
    world = World()
    id = world.add(LONG, max_tokens=6)
    answer: list[int] = []
    while world.engine.busy:
        for event in world.engine.step():
            assert event.id == id
            answer += event.tokens
    computed = answer[:-1]  # the last one is never computed
    other = (*LONG, computed[0], (computed[1] + 1) % 16, *LONG)
    assert world.ask(other) == Reuse(16, "never_seen", 19, tuple(computed[1:]), True)


def test_a_chance_beginning_shows_no_tokens() -> None:
    """Three tokens may be BOS and a mark of the chat template; four are a beginning."""
    world = World()
    world.ask(LONG)
    assert world.ask((*LONG[:3], 9, *LONG)) == Reuse(0, "never_seen", 3)
    assert world.ask((*LONG[:4], 9, *LONG)) == Reuse(4, "never_seen", 4, LONG[4:12])


def test_those_of_a_request_that_is_under_way() -> None:
    world = World()
    world.add(LONG, max_tokens=9)
    world.engine.step()
    other = world.add((*LONG[:6], 9, *LONG))
    found = next(one for one in world.finish()[other] if one is not None)
    assert found == Reuse(4, "never_seen", 6, LONG[6:14])


def test_requests_without_explain_get_no_explanation() -> None:
    world = World()
    id = world.add(LONG, explain=False)
    assert set(world.finish()[id]) == {None}


def test_caching_off() -> None:
    world = World(prefix_caching=False)
    world.ask(LONG)
    assert world.ask(LONG) == Reuse(0, "caching_off", None)
    assert not world.scheduler.prefix.known.ended


def test_a_prompt_of_one_block_is_too_short() -> None:
    world = World()
    world.ask(LONG)
    assert world.ask(LONG[:4]) == Reuse(0, "short", None)
    assert world.ask(LONG[:5]) == Reuse(4, "", None)


def test_a_new_salt_and_a_known_one() -> None:
    world = World()
    world.ask(LONG)
    assert world.ask(LONG, "mine") == Reuse(0, "new_salt", 0)
    assert world.ask(LONG, "mine") == Reuse(16, "", None)
    assert world.ask(LONG[::-1], "mine").reason == "never_seen"


def test_prompts_of_another_salt_are_never_explained() -> None:
    """The answer is the same whether another tenant has sent the same, or nothing."""
    first = LONG[:12] + (7,) * 6
    answers = []
    for theirs in (LONG, LONG[::-1], None):
        world = World()
        world.ask(first, "mine")
        if theirs is not None:
            world.ask(theirs, "theirs")
            world.add(theirs, "theirs", max_tokens=9)  # and is still at it
            world.engine.step()
        answers.append(world.ask(LONG, "mine"))
    known = answers[0].expected
    assert answers == [Reuse(12, "never_seen", 12, known)] * 3 and known[:6] == first[12:]


def test_evicted() -> None:
    world = World(blocks=8)
    world.ask(LONG)
    world.ask(tuple(6 + i for i in range(26)))  # takes seven of eight blocks
    found = world.ask(LONG)
    assert found.reason == "evicted" and found.hit < 16 and found.diverged is None


def test_an_evicted_key_is_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix, "KEYS", 2)
    memory = Known(BlockPool(4, 4))
    for key in (b"a", b"b", b"c"):
        memory.forget(key)
    assert list(memory.lost) == [b"b", b"c"]


def test_ended_prompts_are_bounded_by_number_and_by_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    monkeypatch.setattr(prefix, "PROMPTS", 3)
    for i in range(5):
        world.ask((10 + i,) * 6)
    assert len(world.scheduler.prefix.known.ended) == 3
    monkeypatch.setattr(prefix, "TOKENS", 20)
    world.ask((20,) * 8)
    assert sum(len(tokens) for _, (tokens, _) in world.scheduler.prefix.known.ended) <= 20


@pytest.mark.parametrize(
    "priority, expected", [(-1, Reuse(4, "not_yet", None)), (0, Reuse(16, "", None))]
)
def test_not_yet_where_another_of_worse_priority_is_computing_it(
    priority: int, expected: Reuse
) -> None:
    """One of the same priority is waited for."""
    world = World(max_chunk=4)
    world.add(LONG)
    world.engine.step()
    second = world.add(LONG, priority=priority)
    found = next(one for one in world.finish()[second] if one is not None)
    assert found == expected


def test_log_probabilities_of_the_prompt_need_its_rows() -> None:
    world = World()
    world.ask(LONG)
    assert world.ask(LONG, prompt_logprobs=1) == Reuse(0, "rows_wanted", None)


def test_choices_share_one_explanation() -> None:
    world = World()
    world.ask(LONG)
    assert world.ask(LONG, n=3) == Reuse(16, "", None)


def test_a_preempted_request_keeps_its_first_explanation() -> None:
    world = World(blocks=8)
    world.ask(LONG[:9])
    ids = [world.add(LONG[:9], max_tokens=20), world.add(LONG[:9][::-1], max_tokens=20)]
    reported = world.finish()
    assert world.engine.metrics.preempted
    assert {one for one in reported[ids[0]] if one} == {Reuse(8, "", None)}
    assert {one.reason for one in reported[ids[1]] if one} == {"never_seen"}


@pytest.mark.parametrize("same", [0, 1, 2, 3, 7, 8])
def test_common_beginnings(same: int) -> None:
    a = array("i", range(8))
    b = array("i", [*range(same), *[99] * (9 - same)])
    assert count_common(a, b) == count_common(b, a) == same
