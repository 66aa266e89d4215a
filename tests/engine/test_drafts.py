"""A drafter that fails, or stalls, ends drafting and nothing else: texts are the same."""

import logging
from collections.abc import Callable, Hashable, Sequence
from itertools import count
from typing import Any

import pytest
from oracle import VOCAB, MockRunner

from flyweight.config import Limits
from flyweight.draft.drafter import Draft, DraftRequest
from flyweight.draft.ngram import NgramDrafter
from flyweight.engine.draft_controller import DraftController
from flyweight.engine.draft_limits import (
    CountedStep,
    DraftCandidate,
    DraftDepth,
    DraftLimits,
    FullDrafts,
    OfferedDraft,
)
from flyweight.engine.drafter_timer import DrafterTimer
from flyweight.engine.engine import Engine
from flyweight.engine.hook import Hook
from flyweight.engine.metrics import EngineMetrics
from flyweight.engine.scheduler import Scheduler
from flyweight.engine.step import StepBudget
from flyweight.kv.blocks import BlockPool
from flyweight.types import Request, SamplingParams

LIMITS = Limits(128, 4, 64, 4, 64, draft_tokens=3, vocab=VOCAB)
BAD = "bad"


class FailingDrafter(NgramDrafter):
    """Prompt lookup that goes wrong for the request `bad`, in a way that is given."""

    def __init__(self, fail: Callable[[], Any], where: str = "propose") -> None:
        super().__init__(2, 1)
        self.fail, self.where = fail, where
        self.asked: list[Hashable] = []

    def observe(self, batch: Any, taps: Any) -> None:
        if self.where == "observe":
            self.fail()

    def forget(self, id: Hashable) -> None:
        super().forget(id)
        if self.where == "forget":
            self.fail()

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self.asked += [request.id for request in requests]
        bad = [request.id[0] == BAD for request in requests]  # type: ignore[index]
        if self.where == "propose" and any(bad):
            return self.fail()  # type: ignore[no-any-return]
        drafts = super().propose(requests)
        if self.where == "draft":
            drafts = [self.fail() if b else d for b, d in zip(bad, drafts, strict=True)]
        return drafts


def make_engine(drafter: NgramDrafter | None) -> Engine:
    scheduler = Scheduler(LIMITS, BlockPool(LIMITS.blocks, LIMITS.block_size))
    runner = MockRunner(LIMITS.blocks, LIMITS.block_size)
    return Engine(scheduler, runner, drafter, EngineMetrics())


def run(
    drafter: NgramDrafter | None, limits: DraftLimits | None = None, *hooks: Hook
) -> tuple[dict[str, list[int]], EngineMetrics]:
    engine = make_engine(drafter)
    engine.drafts.limits = limits or engine.drafts.limits
    for hook in hooks:
        engine.add_hook(hook)
    texts: dict[str, list[int]] = {}
    for id in ("good", BAD, "other"):
        tokens = tuple((len(id) * i) % VOCAB for i in range(9))
        engine.add(Request(id, tokens, SamplingParams(), max_tokens=24, seed=len(id)))
        texts[id] = []
    while engine.busy:
        for event in engine.step():
            texts[event.id] += event.tokens
    assert not engine.drafts.calls.ended
    return texts, engine.metrics


def raise_error() -> None:
    raise RuntimeError("a tensor\nof the wrong shape")


NONSENSE = {
    "nothing": lambda: None,
    "no drafts": list,
    "an id above the vocabulary": lambda: Draft((VOCAB,)),
    "an id below 0": lambda: Draft((0, -1)),
    "half a token": lambda: Draft((0, 1.5)),  # type: ignore[arg-type]
    "text": lambda: Draft("ab"),  # type: ignore[arg-type]
    "a parent after its child": lambda: Draft((0, 1), (-1, 1)),
    "a parent too few": lambda: Draft((0, 1), (-1,)),
}


@pytest.mark.parametrize("fail", [raise_error, *NONSENSE.values()], ids=["raises", *NONSENSE])
@pytest.mark.parametrize("where", ["propose", "draft"])
def test_one_request_goes_on_without(fail, where: str, caplog: pytest.LogCaptureFixture) -> None:
    expected, _ = run(None)
    drafter = FailingDrafter(fail, where)
    with caplog.at_level(logging.WARNING, "flyweight"):
        texts, metrics = run(drafter)
    assert texts == expected
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("drafting ends for sequence ('bad', 0): ") and "\n" not in said
    assert 1 <= sum(id[0] == BAD for id in drafter.asked) <= 2  # type: ignore[index]
    assert metrics.accepted > 0  # of the others


def test_a_failure_in_forget_ends_drafting_for_all(caplog: pytest.LogCaptureFixture) -> None:
    expected, _ = run(None)
    with caplog.at_level(logging.WARNING, "flyweight"):
        texts, metrics = run(FailingDrafter(raise_error, "forget"))
    assert texts == expected and metrics.drafting_ended == 1
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == ("drafting ends for all requests: RuntimeError: a tensor of the wrong shape")


def test_a_failure_in_catch_up_ends_drafting_for_its_requests() -> None:
    class Late(NgramDrafter):
        asked = 0

        def catch_up(self, requests: Sequence[DraftRequest]) -> None:
            raise_error()

        def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
            self.asked += len(requests)
            return super().propose(requests)

    drafter = Late(2, 1)
    assert run(drafter)[0] == run(None)[0]
    assert not drafter.asked


class FailingCut(Hook):
    """A grammar of the request `bad` that raises when it is asked about a draft."""

    def wants(self, request: Request) -> bool:
        return request.id == BAD

    def cut(self, seq: Any, draft: list[int]) -> list[int]:
        raise RuntimeError("a bug in a matcher")


def test_a_grammar_that_fails_on_a_draft_ends_drafting_for_its_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected, _ = run(None)
    with caplog.at_level(logging.WARNING, "flyweight"):
        texts, metrics = run(NgramDrafter(2, 1), None, FailingCut())
    assert texts == expected and metrics.accepted > 0 == metrics.drafting_ended
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == "drafting ends for sequence ('bad', 0): RuntimeError: a bug in a matcher"


def ask(engine: Engine, id: str) -> list[int]:
    """The tokens of a request that is alone."""
    engine.add(Request(id, (1, 2, 1, 2, 1), SamplingParams(), max_tokens=24, seed=1))
    text: list[int] = []
    while engine.busy:
        for event in engine.step():
            text += event.tokens
    return text


class OnceFailing(NgramDrafter):
    """Does something in the first call of one kind."""

    def __init__(self, where: str, act: Callable[[], Any]) -> None:
        super().__init__(2, 1)
        self.left, self.act = [where], act
        self.forgot: list[Hashable] = []

    def _reach(self, where: str) -> None:
        if where in self.left:
            self.left.remove(where)
            self.act()

    def observe(self, batch: Any, taps: Any) -> None:
        self._reach("observe")

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self._reach("propose")
        return super().propose(requests)

    def forget(self, id: Hashable) -> None:
        super().forget(id)
        self.forgot.append(id)


def test_a_failure_in_observe_ends_drafting_for_those_that_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    drafter = OnceFailing("observe", raise_error)
    engine = make_engine(drafter)
    with caplog.at_level(logging.WARNING, "flyweight"):
        first = ask(engine, "a")
        assert engine.metrics.drafts == 0 and drafter.forgot[0] == ("a", 0)
        assert ask(engine, "b") == first
    assert engine.metrics.drafts > 0 == engine.metrics.drafting_ended
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == (
        "drafting ends for sequence ('a', 0): RuntimeError: a tensor of the wrong shape"
    )


@pytest.mark.parametrize("where", ["observe", "propose"])
@pytest.mark.parametrize(("step", "taken"), [(0.01, 1.5), (0.1, 1.9), (0.001, 0.9)])
def test_a_drafter_that_stalls_ends_drafting_for_its_requests(
    where: str, step: float, taken: float, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]

    def pass_time() -> None:
        now[0] += taken

    engine = make_engine(OnceFailing(where, pass_time))
    engine.drafts.calls.timer = DrafterTimer(lambda: now[0])
    submit = engine.runner.submit

    def compute(*given: Any) -> Any:
        now[0] += step
        return submit(*given)

    engine.runner.submit = compute  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING, "flyweight"):
        first = ask(engine, "a")
        early = engine.metrics.drafts
        assert ask(engine, "b") == first
    stalled = step == 0.01
    assert engine.metrics.drafts > early
    assert (early <= 1) == stalled
    said = [record.getMessage() for record in caplog.records]
    why = "the drafter took 1.5 s after a step of 0.01 s"
    assert said == ([f"drafting ends for sequence ('a', 0): {why}"] if stalled else [])


class FailingLimits(FullDrafts):
    """Raises at the place that is given."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def _reach(self, where: str) -> None:
        if where == self.where:
            raise ZeroDivisionError("float division by zero")

    def end(self, shape: CountedStep, ended: float, now: float) -> bool:
        self._reach("end")
        return True

    def choose(self, seqs: Any, batch: int) -> list[DraftDepth]:
        self._reach("choose")
        return super().choose(seqs, batch)

    def take(self, seqs: Any, drafts: Any, now: float, late: float = 0.0) -> None:
        self._reach("take")


@pytest.mark.parametrize("where", ["end", "choose", "take"])
def test_limits_that_fail_end_drafting_and_no_step(where, caplog: pytest.LogCaptureFixture) -> None:
    expected, _ = run(None)
    with caplog.at_level(logging.WARNING, "flyweight"):
        texts, metrics = run(NgramDrafter(2, 1), FailingLimits(where))
    assert texts == expected and metrics.drafts == 0
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == "drafting ends for all requests: ZeroDivisionError: float division by zero"


class Look(FullDrafts):
    """Drafts are compared, and not verified."""

    def choose(self, seqs: Any, batch: int) -> list[DraftDepth]:
        return [DraftDepth(one.limit, False) for one in seqs]


def test_a_draft_that_is_only_compared_is_made_anew() -> None:
    """What a drafter says of its newest draft would be taken for the older one's."""
    engine = make_engine(NgramDrafter(2, 1))
    engine.add(Request("a", (1, 2, 1, 2, 1), SamplingParams(), max_tokens=24, seed=1))
    engine.step()
    (seq,) = engine.scheduler.running
    assert seq.draft
    engine.drafts.limits = Look()
    engine.add(Request("b", (3,) * 9, SamplingParams(), max_tokens=4, seed=2))
    engine.step(StepBudget(64, prefill_tokens=8))
    assert engine.metrics.prefill_only == 1 and not seq.in_flight
    assert seq.draft == []


def test_a_draft_is_kept_by_a_sequence_that_skips_a_step() -> None:
    """Nothing followed: the drafter would say the same again."""
    engine = make_engine(drafter := FailingDrafter(raise_error, "never"))
    engine.add(Request("a", (1, 2, 1, 2, 1), SamplingParams(), max_tokens=24, seed=1))
    engine.step()
    (seq,) = engine.scheduler.running
    before, drafter.asked = seq.draft, []
    engine.add(Request("b", (3,) * 9, SamplingParams(), max_tokens=4, seed=2))
    engine.step(StepBudget(64, prefill_tokens=8))
    assert engine.metrics.prefill_only == 1 and not seq.in_flight
    assert seq.draft == before != [] and ("a", 0) not in drafter.asked
    assert engine.metrics.drafts == 0
    engine.step()
    assert seq.draft != before and engine.metrics.drafts == 2  # that of b's, too


def test_a_draft_that_nothing_followed_was_not_in_vain() -> None:
    limits = DraftController(3)
    for _ in range(3):
        limits.begin(0.0)
        limits.end(CountedStep(1, 1), 1.0, 1.0)
    one = DraftCandidate("a", [1, 2, 3], 3)
    for _ in range(3):
        assert limits.choose([one], 1) == [DraftDepth(3, False)]
        limits.take([one], [OfferedDraft([4, 5, 6])], 1.0)
    assert limits.budget.vain == 0
    one.tokens.append(9)  # type: ignore[attr-defined]
    limits.choose([one], 1)
    assert limits.budget.vain == 1


def test_the_time_of_steps_without_drafts_is_reported() -> None:
    """Of such steps few are timed, and stand for the others; the drafter is not called."""
    engine = make_engine(drafter := FailingDrafter(raise_error, "never"))
    engine.drafts.calls.timer.clock = map(float, count()).__next__
    engine.drafts.limits = controller = DraftController(3)
    controller.budget.looks = -1e9  # nothing is drafted for long
    engine.add(Request("a", (1, 2, 3), SamplingParams(), max_tokens=99, seed=1))
    steps = 0
    while engine.busy:
        engine.step()
        steps += 1
    assert engine.metrics.decode_us == int(1e6 * controller.totals.seconds) > 0
    assert controller.costs.step == 1 + 64 and steps == 99
    assert not drafter.asked


def test_a_drafter_that_learns_of_steps_sees_every_one() -> None:
    seen: list[int] = []

    class Watcher(NgramDrafter):
        def observe(self, batch: Any, taps: Any) -> None:
            seen.append(len(batch.tokens))

    engine = make_engine(Watcher(2, 1))
    engine.drafts.limits = controller = DraftController(3)
    controller.budget.looks = -1e9
    engine.add(Request("a", (1, 2, 3), SamplingParams(), max_tokens=99, seed=1))
    while engine.busy:
        engine.step()
    assert seen == [3] + [1] * 98
