"""Drafters that make states put off what a draft needs: what waits is bounded, nothing is computed
without a draft, and a late draft is what the layer's arithmetic says.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checked_drafts import CheckedDrafter
from small_engine import ROOMY, drain, make_engine, make_model, make_prompts, make_requests
from test_eagle import Reference, make_drafter, make_tensors, write

from flyweight.draft import slotstates
from flyweight.draft.drafter import Draft, DraftRequest
from flyweight.draft.latepairs import LatePairs
from flyweight.draft.slotstates import StateStore
from flyweight.draft.statedrafter import StateDrafter
from flyweight.engine.draft_limits import CountedStep, FullDrafts
from flyweight.models.decoder import Decoder
from flyweight.ops.reference import ReferenceOps
from flyweight.types import Request, SamplingParams
from flyweight.wire import F32, Batch

PROMPTS = make_prompts(6)


@pytest.fixture(scope="module")
def model() -> Decoder:
    return make_model(ReferenceOps("f32"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "eagle", make_tensors())


class Seldom(FullDrafts):
    """Wants drafts after each `every`th step, none where that is 0."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every, self.step = every, 0

    def end(self, shape: CountedStep, ended: float, now: float) -> bool:
        self.step += 1
        return bool(self.every) and self.step % self.every == 0


class CountingDrafter(CheckedDrafter):
    """Notes how many pairs are computed at once; drafts of no tokens are not compared."""

    sizes: list[int]
    empty = 0

    def count(self) -> None:
        self.sizes, compute = [], self.model.compute_states

        def counted(batch: Batch, states: F32, kv: Any) -> Any:
            self.sizes.append(len(batch.tokens))
            return compute(batch, states, kv)

        self.model.compute_states = counted  # type: ignore[method-assign]

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        before = self.wrong
        drafts = super().propose(requests)
        none = sum(not draft.tokens for draft in drafts)
        self.empty += none
        self.wrong = max(before, self.wrong - none)
        return drafts


def make_counting(folder: Path, model: Decoder, limits: Any, budget: int = 2048) -> CountingDrafter:
    drafter = make_drafter(folder, model, limits)
    drafter.late = LatePairs(limits.block_size, budget)
    drafter.__class__ = CountingDrafter
    assert isinstance(drafter, CountingDrafter)
    drafter.count()
    return drafter


def run(model: Decoder, drafter: StateDrafter, limits: Any, every: int, **params: Any) -> Any:
    """The tokens with drafts after each `every`th step; they are those without drafts."""
    settings = SamplingParams(temperature=0.0, max_tokens=40, **params)
    requests = [
        Request(f"r{i}", tuple(prompt), settings, max_tokens=40, seed=i)
        for i, prompt in enumerate(PROMPTS)
    ]
    engine = make_engine(model, limits, drafter)
    engine.drafts.limits = Seldom(every)
    assert drain(engine, requests) == drain(make_engine(model, limits), requests)
    assert not engine.metrics.drafting_ended and not engine.drafts.calls.ended
    return engine.metrics


def test_nothing_is_computed_while_no_draft_is_wanted(
    model: Decoder, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = make_counting(folder, model, ROOMY)
    stored: list[int] = []
    store = StateStore._store
    monkeypatch.setattr(StateStore, "_store", lambda *rest: (stored.append(1), store(*rest)))
    run(model, drafter, ROOMY, 0)
    assert drafter.sizes == []
    assert len(stored) < 10  # of some 90 steps


@pytest.mark.parametrize("every", [1, 3, 7, 20])
@pytest.mark.parametrize(
    "limits", [ROOMY, replace(ROOMY, max_chunk=5, prefix_caching=False), replace(ROOMY, blocks=40)]
)
def test_late_drafts_are_what_the_layer_says(
    model: Decoder, folder: Path, every: int, limits: Any
) -> None:
    drafter = make_counting(folder, model, limits)
    drafter.reference = Reference(model, make_tensors())
    run(model, drafter, limits, every)
    assert drafter.compared - drafter.empty > 5 and drafter.wrong == 0 and drafter.empty == 0


def test_a_pair_that_is_left_out_is_caught(
    model: Decoder, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = make_counting(folder, model, ROOMY)
    drafter.reference = Reference(model, make_tensors())
    claim = LatePairs.claim

    def forgetful(self: LatePairs, row: Any, held: Any, stop: int, most: Any = None) -> Any:
        if most is None:  # along with a draft: only the last
            self._done[row.request.id] = stop - 1
        return claim(self, row, held, stop, most)

    monkeypatch.setattr(LatePairs, "claim", forgetful)
    run(model, drafter, ROOMY, 7)
    assert drafter.wrong > 0


def test_no_more_than_the_budget_is_computed_at_once(model: Decoder, folder: Path) -> None:
    """Requests that are still behind have no draft, and one when they are not."""
    limits = replace(ROOMY, max_num_seqs=2, prefix_caching=False)
    drafter = make_counting(folder, model, limits, budget=8)
    drafter.reference = Reference(model, make_tensors())
    run(model, drafter, limits, 2)
    assert max(drafter.sizes) == 8
    assert drafter.empty > 5 and drafter.compared - drafter.empty > 10 and drafter.wrong == 0


def test_where_nothing_is_known_there_are_no_drafts(
    model: Decoder, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions without a state: the drafter saw no step."""
    drafter = make_counting(folder, model, ROOMY)
    monkeypatch.setattr(StateStore, "add", lambda self, batch, taps: None)
    metrics = run(model, drafter, ROOMY, 3)
    assert drafter.sizes == [] and metrics.proposed == 0 < drafter.empty


def test_choices_of_one_prompt_have_its_pairs_computed_once(model: Decoder, folder: Path) -> None:
    sizes = []
    for choices in (1, 3):
        drafter = make_counting(folder, model, ROOMY)
        prompt = tuple(np.random.default_rng(4).integers(0, 40, 38).tolist())
        params = SamplingParams(n=choices, temperature=0.0, max_tokens=8)
        engine = make_engine(model, ROOMY, drafter)
        engine.drafts.limits = Seldom(3)
        drain(engine, [Request("r", prompt, params, max_tokens=8)])
        sizes.append(drafter.sizes[0])
    alone, shared = sizes
    assert alone > 36 and shared <= alone + 6


def test_a_failure_while_pairs_are_computed_leaves_none_that_count(
    model: Decoder, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests after it have the drafts that they should."""
    drafter = make_counting(folder, model, ROOMY)
    drafter.reference = Reference(model, make_tensors())
    compute, calls = drafter.model.compute_states, [0]

    def fail_once(batch: Batch, states: F32, kv: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            raise ZeroDivisionError
        return compute(batch, states, kv)

    drafter.model.compute_states = fail_once  # type: ignore[method-assign]
    engine = make_engine(model, ROOMY, drafter)
    requests = make_requests(PROMPTS, 12)
    assert drain(engine, requests) == drain(make_engine(model, ROOMY), requests)
    assert engine.drafts.calls.ended == set() and "ZeroDivisionError" in caplog.text
    assert drafter.compared > 5 and drafter.wrong == 0


class RepeatingDrafter(CountingDrafter):
    """Is asked for the first draft twice before all are asked for, the first one among them."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        for _ in range(2):
            super().propose(requests[:1])
        return super().propose(requests)


def test_drafts_of_one_text_are_the_same_each_time(model: Decoder, folder: Path) -> None:
    """Alone, and in one call with requests that are asked for the first time."""
    drafter = make_counting(folder, model, ROOMY)
    drafter.__class__ = RepeatingDrafter
    drafter.reference = Reference(model, make_tensors())
    params = SamplingParams(temperature=0.0, max_tokens=8)
    requests = [
        Request(f"r{i}", tuple(prompt), params, max_tokens=8)
        for i, prompt in enumerate(PROMPTS[:2])
    ]
    engine = make_engine(model, ROOMY, drafter)
    assert drain(engine, requests) == drain(make_engine(model, ROOMY), requests)
    assert not engine.metrics.drafting_ended and not engine.drafts.calls.ended
    assert drafter.compared > 8 and drafter.wrong == drafter.empty == 0


class Plain:
    """A model whose states are what it taps."""

    hidden, taps, ops = 2, (-1,), ReferenceOps("f32")
    make_first: Callable[[Mapping[int, Any]], Any] = staticmethod(lambda taps: taps[-1])


def make_step(slots: Sequence[int], value: float, position: int = 0, **more: Any) -> Any:
    count = len(slots)
    batch = Batch(
        tokens=np.zeros(count, np.int32),
        positions=np.arange(position, position + count, dtype=np.int32),
        slots=np.array(slots, np.int32),
        starts=np.array([0, count], np.int32),
        contexts=np.array([position + count], np.int32),
        tables=np.zeros((1, 1), np.int32),
        rows=np.zeros(0, np.int32),
        sampling=None,  # type: ignore[arg-type]
        **more,
    )
    return batch, {-1: np.full((count, 2), value, np.float32)}


def make_store(slots: int = 8) -> StateStore:
    return StateStore(Plain(), slots)  # type: ignore[arg-type]


def test_a_slot_has_the_state_that_was_computed_last() -> None:
    store = make_store()
    store.add(*make_step([3, 4], 1.0))
    store.add(*make_step([4, 5], 2.0, 6))
    assert store.held.states[3:6, 0].tolist() == [1, 2, 2]
    assert store.held.positions[2:6].tolist() == [-1, 0, 6, 7]
    store.held.nexts[4] = 9
    store.add(*make_step([4], 3.0, 6))
    assert store.held.states[4, 0] == 3 and store.held.nexts[4] == -1


def test_a_copy_of_slots_takes_the_steps_before_it_along(model: Decoder, folder: Path) -> None:
    drafter = make_drafter(folder, model)
    one = np.ones((1, 32), np.float32)
    drafter.observe(make_step([3], 0.0)[0], {-1: one})
    drafter.copy_slots(np.array([3], np.int32), np.array([5], np.int32))
    drafter.observe(make_step([3], 0.0)[0], {-1: 2 * one})
    assert drafter.held.states[[3, 5], 0].tolist() == [2, 1]


def test_branches_see_copies_of_their_own_step() -> None:
    store = make_store()
    store.add(*make_step([1], 1.0))
    moves = np.array([1], np.int32), np.array([6], np.int32)
    store.add(*make_step([1], 2.0, ancestors=moves))
    store.add(*make_step([1], 3.0))
    assert store.held.states[[1, 6], 0].tolist() == [3, 2]


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slotstates, "WAITING", 10 * 8)  # ten tokens
    store, expected = make_store(64), np.full(64, -1)
    waiting = []
    for i, slots in enumerate([range(4), range(2, 6), range(8), [9], [9], range(40), [3, 4]]):
        store.add(*make_step(slots, i))
        expected[list(slots)] = i
        waiting.append(store._count)
    assert waiting == [4, 8, 8, 9, 10, 0, 2]
    known = store.held.positions >= 0
    assert np.where(known, store.held.states[:, 0], -1).tolist() == expected.tolist()


def test_where_states_cannot_be_stored_there_are_none() -> None:
    store = make_store()
    store.add(*make_step([3], 1.0))
    assert store.held.positions[3] == 0
    store.add(*make_step([3, 4], 2.0))

    def fail(taps: Mapping[int, Any]) -> Any:
        raise ZeroDivisionError

    store.model.make_first = fail  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        _ = store.held
    assert store.held.positions[3:5].tolist() == [-1, -1]
