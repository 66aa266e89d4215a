"""The end of an answer says nothing of the next one: drafts that pay go on with it."""

from array import array
from typing import Any

from oracle import answer
from simulated_decoding import memory_bound
from test_drafts import make_engine

from flyweight.draft.drafter import Draft
from flyweight.draft.ngram import NgramDrafter
from flyweight.engine.draft_controller import DraftController
from flyweight.engine.draft_limits import (
    CountedStep,
    DraftCandidate,
    DraftDepth,
    FullDrafts,
    OfferedDraft,
)
from flyweight.engine.drafter_timer import DrafterTimer
from flyweight.types import Request, SamplingParams


class RightDrafter(NgramDrafter):
    """Knows the answers."""

    def __init__(self, requests: list[Request]) -> None:
        super().__init__(2, 1)
        self.answers = {one.id: (len(one.tokens), answer(one, 0)) for one in requests}

    def propose(self, requests: Any) -> list[Draft]:
        found = []
        for one in requests:
            prompt, text = self.answers[one.id[0]]
            done = len(one.tokens) - prompt
            found.append(Draft(tuple(text[done : done + one.limit])))
        return found


def test_the_next_answer_is_drafted_for_at_once() -> None:
    """Steps of 10 ms, whatever their rows; drafts take no time."""
    requests = [
        Request(f"r{i}", (3, 1 + i, 2), SamplingParams(), max_tokens=n, seed=i)
        for i, n in enumerate((90, 41, 42, 43, 44, 41))
    ]
    now, waited = [0.0], []
    engine = make_engine(RightDrafter(requests))
    engine.drafts.calls.timer = DrafterTimer(lambda: now[0])
    engine.drafts.adapt()
    submit = engine.runner.submit

    def compute(*given: Any) -> Any:
        now[0] += 0.01
        return submit(*given)

    engine.runner.submit = compute  # type: ignore[method-assign]
    for one in requests:
        engine.add(one)
        steps, before = 0, engine.metrics.drafts
        while engine.busy:
            engine.step()
            steps += engine.metrics.drafts == before
        waited.append(steps)
    assert max(waited) <= 3, waited


def make_tree(at: int) -> OfferedDraft:
    """Three right tokens, each with a wrong sibling."""
    tokens, parents = [], []
    for depth in range(3):
        tokens += [at + depth, 99]
        parents += [2 * depth - 2 if depth else -1] * 2
    return OfferedDraft(tokens, parents)


def test_a_tree_that_no_longer_fits_stops_no_drafts() -> None:
    limits, text, now = DraftController(6), array("i", [0]), 0.0

    def step(rows: int, accepted: int, limit: int) -> tuple[bool, list[DraftDepth]]:
        nonlocal now
        limits.begin(now)
        now += memory_bound(1, rows)
        text.extend(range(len(text), len(text) + 1 + accepted))
        wanted = limits.end(CountedStep(1, rows, accepted), now, now)
        depths = limits.choose([DraftCandidate("a", text, limit)], 1)
        offers = [make_tree(len(text)) if depth.tokens else None for depth in depths]
        limits.take([DraftCandidate("a", text, limit)], offers, now + 1e-5)
        return wanted, depths

    depths = [DraftDepth(0, False)]
    for _ in range(60):
        verified = depths[0].tokens if depths[0].verified else 0
        _, depths = step(1 + verified, verified // 2, 6)
    assert depths[0].verified and depths[0].tokens > 1
    limits.budget.looks = -1e9  # whatever goes on, it is not for a look
    step(7, 3, 1)
    assert limits.depths == [DraftDepth(0, False)]
    assert step(1, 0, 6) == (True, [depths[0]])


class NotingLimits(FullDrafts):
    """Keeps what it is asked: candidates, and sequences that decode."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[int, int]] = []

    def choose(self, seqs: Any, batch: int) -> list[DraftDepth]:
        self.asked.append((len(seqs), batch))
        return super().choose(seqs, batch)


def test_a_sequence_that_is_about_to_end_is_not_one_without_drafts() -> None:
    engine = make_engine(NgramDrafter(2, 1))
    engine.drafts.limits = limits = NotingLimits()
    engine.add(Request("a", (3, 1, 2), SamplingParams(), max_tokens=3, seed=1))
    while engine.busy:
        engine.step()
    assert limits.asked[0] == (1, 1) and (0, 0) in limits.asked and (0, 1) not in limits.asked
    limits.asked.clear()
    params = SamplingParams(mirostat=2)
    engine.add(Request("b", (3, 1, 2), params, max_tokens=3, seed=1))
    while engine.busy:
        engine.step()
    assert limits.asked == [(0, 1), (0, 0), (0, 0)]
