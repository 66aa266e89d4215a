"""Answers of one token are held until the blocks of their prompts are saved, and no others.

Time is simulated; blocks are saved when a test says so.
"""

import errno
import os
from types import SimpleNamespace
from typing import Any

import pytest
from mock_peers import PROMPT, World

from flyweight.server.pipe import StepEvents
from flyweight.server.worker.hosted import HostedEngine
from flyweight.server.worker.publishing import MOST_HELD, HeldAnswers
from flyweight.types import Request, SamplingParams

OTHER = tuple(reversed(PROMPT))


class Prefills:
    """An engine with a store, whose events go through `HeldAnswers`."""

    def __init__(self, listens: bool = True) -> None:
        self.world = World([])
        if listens:
            server: Any = SimpleNamespace(sent=0, refused=0)
            self.world.external.server = server
        block_size = self.world.scheduler.limits.block_size
        self.held = HeldAnswers(self.world.external, block_size, lambda: self.world.now)

    def step(self) -> list[str]:
        """The ids of the answers that end in this step and are sent at once."""
        events = self.world.engine.step(planned=self.held.note)
        news = self.held.hold([StepEvents.of(event) for event in events])
        return [one.id for one in news if one.finish]

    def finish(self) -> list[str]:
        ended: list[str] = []
        while self.world.engine.busy:
            ended += self.step()
        return ended

    def take_ready(self) -> list[str]:
        return [one.id for one in self.held.take_ready()]

    def count_stored(self, tokens: tuple[int, ...]) -> int:
        """Blocks of a prompt that a peer finds."""
        scheduler = self.world.scheduler
        request = self.world.add(f"look up {tokens[:3]}", tokens)
        [seq] = scheduler.by_id[request.id]
        full = len(tokens) // scheduler.limits.block_size
        scheduler.pool.extend_keys(seq.table, tokens, full)
        found = self.world.store.count_stored(seq.table.hashes[:full])
        self.world.engine.abort(request.id)
        return found


def test_an_answer_of_one_token_waits_for_all_whole_blocks() -> None:
    engine = Prefills()
    whole = len(PROMPT) // engine.world.scheduler.limits.block_size
    engine.world.add("prefill", PROMPT, most=1)
    assert engine.finish() == [] and engine.held
    for saved in range(whole):
        assert engine.take_ready() == [] and engine.count_stored(PROMPT) == saved
        engine.held.save()
    assert engine.take_ready() == ["prefill"] and not engine.held
    assert engine.count_stored(PROMPT) == whole


def test_its_blocks_are_saved_before_those_of_others() -> None:
    engine = Prefills()
    engine.world.add("ordinary", OTHER, most=2)
    assert engine.finish() == ["ordinary"], "it does not wait"
    engine.world.add("prefill", PROMPT, most=1)
    engine.finish()
    while engine.held:
        engine.held.save()
        engine.take_ready()
    assert engine.count_stored(PROMPT) == len(PROMPT) // 4 and engine.count_stored(OTHER) == 0
    engine.world.save()
    assert engine.count_stored(OTHER) == len(OTHER) // 4


def test_steps_of_others_go_on_while_it_waits() -> None:
    engine = Prefills()
    engine.world.add("prefill", PROMPT, most=1)
    engine.world.add("ordinary", OTHER, most=3)
    assert engine.finish() == ["ordinary"] and engine.held
    assert engine.world.store.entries == {}, "no step saves blocks"


def test_a_prompt_that_is_saved_already_is_not_held() -> None:
    engine = Prefills()
    for id in ("first", "again"):
        engine.world.add(id, PROMPT, most=1)
        sent = engine.finish()
        engine.world.save()
        assert sent == ([] if id == "first" else ["again"])
        engine.take_ready()


def test_nothing_is_held_where_no_peers_are_served() -> None:
    engine = Prefills(listens=False)
    engine.world.add("one token", PROMPT, most=1)
    assert engine.finish() == ["one token"]
    assert HeldAnswers(None, 4).take_ready() == []


def test_it_is_sent_unsaved_when_the_time_is_up() -> None:
    engine = Prefills()
    engine.world.add("prefill", PROMPT, most=1)
    engine.finish()
    engine.world.now += 0.99 * MOST_HELD
    assert engine.take_ready() == []
    engine.world.now += 0.02 * MOST_HELD
    assert engine.take_ready() == ["prefill"]


def test_a_full_disk_means_that_it_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    engine = Prefills()
    engine.world.add("prefill", PROMPT, most=1)
    engine.finish()
    monkeypatch.setattr(os, "pwrite", fail)
    engine.held.save()
    assert engine.take_ready() == ["prefill"]
    engine.world.add("later", OTHER, most=1)
    assert engine.finish() == ["later"]


def test_a_client_that_leaves_is_forgotten() -> None:
    engine = Prefills()
    engine.world.add("prefill", PROMPT, most=1)
    engine.finish()
    engine.held.drop("prefill", 1)
    engine.held.drop("another", None)
    assert engine.held
    engine.held.drop("prefill", 0)
    assert not engine.held


def test_a_cache_that_is_emptied_holds_nothing() -> None:
    engine = Prefills()
    engine.world.add("prefill", PROMPT, most=1)
    engine.finish()
    engine.world.engine.reset_prefix_cache()
    assert engine.take_ready() == ["prefill"]


def make_request(id: str, tokens: tuple[int, ...], most: int) -> Request:
    return Request(id, tokens, SamplingParams(max_tokens=most), max_tokens=most)


class NoTask:
    """A background task with nothing to do."""

    wanted = False

    def step(self) -> None:
        """Nothing."""


def test_a_server_sends_it_once_the_blocks_are_saved() -> None:
    """The same through the server's loop: saving a block is a step of its own."""
    engine, sent = Prefills(), list[Any]()
    world, limits = engine.world, engine.world.scheduler.limits
    loaded: Any = SimpleNamespace(
        engine=world.engine, limits=limits, moving=NoTask(), ahead=NoTask()
    )
    begin: Any = SimpleNamespace(
        target_step_time=0.1, max_prefill_delay=3.0, fault=None, settings={"backend": "cuda"}
    )
    hosted = HostedEngine(loaded, begin, sent.append)
    for id, tokens, most in (("ordinary", OTHER, 2), ("prefill", PROMPT, 1)):
        hosted.driver.add(make_request(id, tokens, most))
    found: dict[str, int] = {}
    while hosted.busy:
        hosted.run_step()
        for news in (one for report in sent for one in report.news if one.finish):
            found.setdefault(news.id, len(world.store.entries))
        sent.clear()
    assert found == {"ordinary": 0, "prefill": len(PROMPT) // limits.block_size}
