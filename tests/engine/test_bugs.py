"""The fuzz's own test: bugs put in on purpose, each of which it must catch."""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from workload import Harness, Parts, workload

from flyweight.engine import beams as beams_room
from flyweight.engine import drafts as drafts_room
from flyweight.engine import engine as engine_room
from flyweight.engine import lifecycle as lifecycle_room
from flyweight.engine import prefix as prefix_room
from flyweight.engine import scheduler as scheduler_room
from flyweight.engine.batch import build
from flyweight.engine.prefix import PrefixCache
from flyweight.engine.scheduler import Scheduler
from flyweight.engine.sequence import Sequence, SequenceState
from flyweight.engine.shared_prefill import SharedPrefills
from flyweight.engine.step import Plan, Produced
from flyweight.kv.blocks import BlockPool, Copy, Table
from flyweight.kv.store import BlockStore
from flyweight.types import Event, Finish
from flyweight.wire import U8, Batch

ENOUGH = 500  # workloads; a third of what the fuzz runs


def caught(parts: Parts | None = None) -> bool:
    """Whether a check fails within ENOUGH workloads; a bug that cannot run proves nothing."""
    for seed in range(ENOUGH):
        try:
            Harness(workload(seed), parts or Parts()).run()
        except AssertionError:
            return True
    return False


class PublishesOneTooMany(BlockPool):
    def publish(self, table: Table, tokens: Seq[int], computed: int) -> None:
        known = min(len(tokens), len(table.blocks) * self.block_size)
        super().publish(table, tokens, min(computed + self.block_size, known))


class FreesShared(BlockPool):
    def _drop(self, block: int) -> None:
        self.refs[block] = 1
        super()._drop(block)


class NeverCopies(BlockPool):
    def count_needed(self, table: Table, start: int, stop: int) -> int:
        return max(0, -(-stop // self.block_size) - len(table.blocks))

    def _copy_on_write(self, table: Table, index: int, count: int) -> None:  # type: ignore[override]
        """Leaves the block shared, to be written by both."""


class CopiesTooLittle(BlockPool):
    def _copy_on_write(self, table: Table, index: int, count: int) -> Copy:
        return replace(super()._copy_on_write(table, index, count), count=count - 1)


class KeepsStaleKeys(BlockPool):
    """What a block held before it was taken again can still be found."""

    def _take(self) -> int:
        block, _ = self.free.popitem(last=False)
        self.refs[block] = 1
        return block


class ForgetsParents(BlockPool):
    """Equal blocks are taken for equal prefixes."""

    def __init__(self, blocks: int, block_size: int) -> None:
        super().__init__(blocks, block_size)
        chain = self.key
        self.key = lambda parent, tokens: chain(b"", tokens)


class NeverFreesTheTail(BlockPool):
    """Not even wrong text: one block leaks with each release."""

    def release(self, table: Table) -> None:
        self.refs[table.blocks[-1] if table.blocks else 0] += bool(table.blocks)
        super().release(table)


class KeepsComputed(Scheduler):
    """Believes that K/V survives preemption."""

    def _preempt(self, seq: Sequence, plan: Plan) -> None:
        self.lost = {**getattr(self, "lost", {}), seq: seq.computed}
        super()._preempt(seq, plan)

    def _start(self, seq: Sequence, shared: list[int], valid: int) -> Copy | None:
        copy = super()._start(seq, shared, valid)
        seq.computed = max(valid, getattr(self, "lost", {}).pop(seq, 0))
        return copy


class SharesUncomputed(PrefixCache):
    """Lets a choice share its leader's whole prompt one token too early."""

    def find(self, seq: Sequence) -> tuple[list[int], int]:
        leader = seq.leader
        if leader is not None and leader.table.blocks:
            held = len(leader.table.blocks) * self.pool.block_size
            valid = min(seq.prompt - 1, held)
            return list(leader.table.blocks[: -(-valid // self.pool.block_size)]), valid
        return super().find(seq)


class LoadsAnother(BlockStore):
    """Gives the block that was stored first for any other that is stored."""

    def load(self, key: bytes, out: U8) -> bool:
        first = next(iter(self.entries), key)
        return super().load(first if key in self.entries else key, out)


class PreemptsTheOldest(Scheduler):
    def _plan_decode(self, seq: Sequence, spare: int, plan: Plan) -> int:
        free = len(self.pool.free)
        if self.pool.count_needed(seq.table, seq.computed, seq.computed + 1) > free:
            self._preempt(self.running[0], plan)
        return super()._plan_decode(seq, spare, plan) if seq in self.running else 0


class ExceedsBudget(Scheduler):
    def _admit(self, budget: int, plan: Plan, worst: float = inf) -> None:
        super()._admit(budget + 1, plan, worst)


class NeverReleasesAborted(Scheduler):
    def abort(self, id: str, index: int | None = None) -> list[Event]:
        kept = [list(s.table.blocks) for s in self.by_id.get(id, ())]
        events = super().abort(id, index)
        for block in (b for blocks in kept for b in blocks if b in self.pool.free):
            del self.pool.free[block]
        return events


class SharesWithoutCounting(BlockPool):
    """A fork whose blocks nobody knows are held twice: `integrity` says so."""

    def share(self, table: Table, blocks: Seq[int]) -> None:
        before = list(self.refs)
        super().share(table, blocks)
        for block in blocks:
            self.refs[block] = max(1, before[block])


class ForksTooFar(Scheduler):
    """A fork that believes in one token more than its source has computed."""

    def fork(self, seq: Sequence) -> Sequence:
        new = super().fork(seq)
        new.computed += new.state is SequenceState.RUNNING
        return new


class KeepsDroppedBeams(Scheduler):
    """A beam that nothing continues keeps its blocks."""

    def drop(self, seq: Sequence) -> None:
        kept = list(seq.table.blocks)
        super().drop(seq)
        for block in (b for b in kept if b in self.pool.free):
            del self.pool.free[block]


class SeatsOneByOne(Scheduler):
    """Searches that take their seats as they go: more run than may, or they wait for ever."""

    def _count_seats(self, seq: Sequence) -> int:
        return 1


class WaitsForThoseThatEnded(SharedPrefills):
    """What was computed once is waited for until it is published, which may be never."""

    def note(self, running: Iterable[Sequence]) -> None:
        for seq in running:
            self._add(seq, seq.computed)

    def _is_computing(self, block: int, seq: Sequence) -> bool:
        return self.computing.get(seq.table.hashes[block], seq) is not seq


POOLS = (
    PublishesOneTooMany,
    FreesShared,
    NeverCopies,
    CopiesTooLittle,
    KeepsStaleKeys,
    ForgetsParents,
    NeverFreesTheTail,
    SharesWithoutCounting,
)
SCHEDULERS = (
    KeepsComputed,
    PreemptsTheOldest,
    ExceedsBudget,
    NeverReleasesAborted,
    ForksTooFar,
    KeepsDroppedBeams,
    SeatsOneByOne,
)


@pytest.mark.parametrize("pool", POOLS)
def test_a_bug_in_the_pool_is_caught(pool):
    assert caught(Parts(pool=pool))


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_bug_in_the_scheduler_is_caught(scheduler):
    assert caught(Parts(scheduler=scheduler))


def test_a_store_that_gives_another_block_is_caught():
    assert caught(Parts(store=LoadsAnother))


def test_a_prefix_that_is_shared_too_early_is_caught(monkeypatch):
    monkeypatch.setattr(lifecycle_room, "PrefixCache", SharesUncomputed)
    assert caught()


def test_a_wait_for_a_sequence_that_ended_is_caught(monkeypatch):
    monkeypatch.setattr(lifecycle_room, "SharedPrefills", WaitsForThoseThatEnded)
    assert caught()


def test_a_search_that_decides_too_early_is_caught(monkeypatch):
    """On the rows that are there, with beams still to come."""
    right = beams_room.advance

    def hasty(state, rows, rules):
        return right(state, [rows[0]] * len(rows), rules)

    monkeypatch.setattr(beams_room, "advance", hasty)
    assert caught()


def test_a_hash_without_the_salt_is_caught(monkeypatch):
    right = prefix_room.make_root_key
    monkeypatch.setattr(prefix_room, "make_root_key", lambda salt, *rest: right("", *rest))
    assert caught()


def test_a_context_one_too_short_is_caught(monkeypatch):
    def short(plan: Plan, *rest: Any) -> Batch:
        batch = build(plan, *rest)
        return replace(batch, contexts=batch.contexts - 1)

    monkeypatch.setattr(engine_room, "build", short)
    assert caught()


def test_a_slot_one_too_far_is_caught(monkeypatch):
    def shifted(plan: Plan, block_size: int, *rest: Any) -> Batch:
        batch = build(plan, block_size, *rest)
        return replace(batch, slots=batch.slots ^ 1 if block_size == 2 else batch.slots)

    monkeypatch.setattr(engine_room, "build", shifted)
    assert caught()


def test_an_unverified_draft_is_caught(monkeypatch):
    monkeypatch.setattr(drafts_room, "accept_drafts", lambda draft, sampled: list(sampled))
    assert caught()


def test_text_after_a_stop_token_is_caught(monkeypatch):
    def untrimmed(seq: Sequence, out: Produced) -> tuple[Produced, Finish | None]:
        right, finish = scheduler_room_trim(seq, out)
        return (out if finish is Finish.STOP else right), finish

    scheduler_room_trim = scheduler_room.trim
    monkeypatch.setattr(scheduler_room, "trim", untrimmed)
    assert caught()
