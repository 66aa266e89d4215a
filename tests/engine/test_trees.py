"""Drafts that are trees: whatever they guess, every answer is that of no drafts at all."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import test_interrupts
from oracle import VOCAB, answer
from workload import Harness, Workload, workload

from flyweight.draft.drafter import DraftRequest
from flyweight.draft.tree import follow
from flyweight.engine import batch as batch_room
from flyweight.engine import branches as branches_room
from flyweight.engine import drafts as drafts_room
from flyweight.engine import engine as engine_room
from flyweight.engine.branches import release
from flyweight.engine.sequence import Sequence as Text
from flyweight.kv.blocks import BlockPool, Copy, Table
from flyweight.types import Request
from tree_drafter import TreeDrafter

WORKLOADS = 600
PARTS = 4
ENOUGH = 200  # of them show a seeded bug


class TreeHarness(Harness):
    """A harness whose drafts are trees."""

    def _drafter(self) -> TreeDrafter:
        requests = {r.id: r for r in self.work.requests}

        def find_right(ask: DraftRequest) -> tuple[int, ...]:
            id, index = ask.id  # type: ignore[misc]
            return answer(requests[id], index)[len(ask.tokens) - len(requests[id].tokens) :]

        return TreeDrafter(find_right, range(VOCAB), self.work.seed)

    def _check_tenant(self, table: Table, start: int, stop: int, request: Request) -> None:
        super()._check_tenant(table, start, stop, request)
        seq = next(seq for seq in self.scheduler.running if seq.table is table)
        for branch in seq.branches:
            super()._check_tenant(branch.table, branch.position, branch.stop, request)


def run(seed: int) -> Counter[str]:
    work = workload(seed, searches=0.1)
    limits = replace(work.limits, draft_tokens=2 + seed % 9)
    limits = replace(limits, max_num_batched_tokens=limits.max_num_batched_tokens + seed % 17)
    limits = replace(limits, blocks=limits.blocks + seed % 3 * 5)
    harness = TreeHarness(replace(work, limits=limits))
    harness.run()
    return harness.counts


@pytest.fixture(scope="module")
def adopted() -> Counter[str]:
    return Counter()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch, adopted: Counter[str]) -> Counter[str]:
    """Counts what becomes of branches."""
    right = branches_room.keep

    def keep(pool: BlockPool, table: Table, branches: Any, accepted: int) -> None:
        before = table.blocks
        adopted["trees"] += bool(branches)
        adopted["nested"] += any(b.run.parent >= branches[0].run.first for b in branches)
        adopted["copied tail"] += any(b.copy for b in branches)
        right(pool, table, branches, accepted)
        adopted["kept"] += table.blocks is not before

    monkeypatch.setattr(branches_room, "keep", keep)
    return adopted


@pytest.mark.parametrize("part", range(PARTS))
def test_every_answer_is_the_oracles(part: int, watched: Counter[str]) -> None:
    for seed in range(part, WORKLOADS, PARTS):
        try:
            watched.update(run(seed))
        except Exception as wrong:
            raise AssertionError(f"workload({seed})") from wrong
    watched["workloads"] += WORKLOADS // PARTS


def test_everything_was_met_often_enough(adopted: Counter[str]) -> None:
    if adopted["workloads"] < WORKLOADS:
        pytest.skip("needs all parts of the fuzz in this run")
    often = ("trees", "nested", "kept", "copied tail", "accepted draft", "copy-on-write")
    assert {name: adopted[name] for name in often if adopted[name] < 100} == {}
    assert adopted["preemption"] > 20


def test_what_a_step_is_counted_as_is_what_was_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree is one sequence; prompts are apart, whatever is read of their rows."""
    said: list[tuple[int, int, int]] = []
    right = drafts_room.Drafts._describe

    def describe(self: drafts_room.Drafts, plan: Any) -> Any:
        found = right(self, plan)
        said.append((found.seqs, found.rows, found.prompts))
        return found

    monkeypatch.setattr(drafts_room.Drafts, "_describe", describe)
    planned: list[tuple[int, int, int]] = []
    found = Counter[str]()
    build = batch_room.build

    def counted(plan: Any, *rest: Any) -> Any:
        decodes = [c.count for c in plan.chunks if c.seq.decoding]
        rows = sum(decodes)
        planned.append((len(decodes), rows, sum(c.count for c in plan.chunks) - rows))
        found["trees"] += any(c.seq.branches for c in plan.chunks)
        found["scored"] += any(c.scored for c in plan.chunks)
        found["mixed"] += rows > len(decodes) and rows < sum(c.count for c in plan.chunks)
        return build(plan, *rest)

    monkeypatch.setattr(engine_room, "build", counted)
    for seed in range(40):
        run(seed)
    assert said == planned
    assert min(found["trees"], found["scored"], found["mixed"]) > 20, found


@pytest.mark.parametrize(("seed", "step"), [(11, 2), (29, 5)])
def test_an_interrupted_plan_changes_no_answer(
    seed: int, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any line that takes blocks for branches, too."""

    def with_trees(seed: int) -> Workload:
        work = workload(seed, searches=0.1)
        limits = work.limits
        most, blocks = limits.max_num_batched_tokens + 9, limits.blocks + 8
        more = replace(limits, draft_tokens=8, max_num_batched_tokens=most, blocks=blocks)
        return replace(work, limits=more)

    monkeypatch.setattr(test_interrupts, "Harness", TreeHarness)
    monkeypatch.setattr(test_interrupts, "workload", with_trees)
    files = (*test_interrupts.FILES, "engine/branches.py")
    monkeypatch.setattr(test_interrupts, "FILES", files)
    at, hit = 0, True
    while hit:
        at += 1
        _, hit = test_interrupts.run(seed, step, at, "schedule")
    assert at > 100, "the tripwire never fired"


def caught() -> bool:
    for seed in range(ENOUGH):
        try:
            run(seed)
        except AssertionError:
            return True
    return False


def test_a_wrong_parent_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The accepted path goes on from a sibling's row."""

    def astray(tokens: Sequence[int], parents: Sequence[int], drawn: Sequence[int]) -> list[int]:
        found = follow(tokens, parents, drawn)
        for i, parent in enumerate(parents):
            if found and parent == parents[found[-1]] and i != found[-1]:
                return [*found[:-1], i]
        return found

    monkeypatch.setattr(drafts_room, "follow", astray)
    assert caught()


def test_a_token_that_sees_its_sibling_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ancestors from the place before: a branch continues from its parent's neighbour."""
    right = batch_room.list_path

    def beside(parents: Sequence[int], node: int) -> list[int]:
        return [max(0, i - 1) for i in right(parents, node)]

    monkeypatch.setattr(batch_room, "list_path", beside)
    assert caught()


def test_a_position_one_too_far_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(plan: Any, *rest: Any) -> Any:
        batch = batch_room.build(plan, *rest)
        branched = sum(len(c.seq.branches) for c in plan.chunks)
        positions = batch.positions.copy()
        if branched:
            positions[-1] += 1
        return replace(batch, positions=positions)

    monkeypatch.setattr(engine_room, "build", shifted)
    assert caught()


def test_noise_of_a_place_in_the_draft_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row's position is its depth, not its place among the rows."""
    monkeypatch.setattr(Text, "find_position", lambda self, row: len(self.tokens) + row)
    assert caught()


def test_ancestors_that_are_not_copied_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_room, "list_ancestors", lambda chunks, size: None)
    assert caught()


def test_a_context_that_is_not_copied_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class Untouched(Copy):
        def __init__(self, src: int, dst: int, count: int) -> None:
            super().__init__(src, src, count)

    monkeypatch.setattr(branches_room, "Copy", Untouched)
    assert caught()


def test_an_accepted_branch_whose_blocks_are_lost_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def keep(pool: BlockPool, table: Table, branches: Any, accepted: int) -> None:
        release(pool, branches)

    monkeypatch.setattr(branches_room, "keep", keep)
    assert caught()


def test_blocks_of_branches_that_are_not_given_back_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(branches_room, "release", lambda pool, branches: branches.clear())
    assert caught()
