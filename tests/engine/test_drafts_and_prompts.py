"""The controller where steps compute prompts too, on a simulated machine: what drafts lose there is
charged like any loss.  All times are the test's; nothing is measured.
"""

from typing import Any

import pytest
from simulated_decoding import Cost, SimulatedDecoding, compute_bound, memory_bound, tiny, wide

from flyweight.engine.draft_controller import DraftController
from flyweight.engine.draft_limits import CountedStep, FullDrafts

STEPS = 600


class Lure:
    """Foresees everything while no draft is verified, and nothing while one is."""

    sim: SimulatedDecoding

    def __call__(self, seq: int, place: int, tokens: int) -> int:
        return 0 if any(depth.verified for depth in self.sim.limits.depths) else tokens


class WrongWithPrompts:
    """Foresees everything, but nothing in steps with tokens of prompts."""

    sim: SimulatedDecoding

    def __call__(self, seq: int, place: int, tokens: int) -> int:
        prompts = self.sim.prompts
        return 0 if prompts[len(self.sim.verified) % len(prompts)] else tokens


def simulate(foresee: Any, cost: Cost, prompts: tuple[int, ...], most: int) -> SimulatedDecoding:
    sim = SimulatedDecoding(FullDrafts(), foresee, cost, noise=0.05, prompts=prompts, most=most)
    foresee.sim = sim
    return sim


@pytest.mark.parametrize(
    ("kind", "cost", "batch", "prompts"),
    [
        (WrongWithPrompts, memory_bound, 16, (0, 16, 16, 16)),
        (WrongWithPrompts, compute_bound, 16, (0, 16, 16, 16)),
        (WrongWithPrompts, compute_bound, 1, (0, *[64] * 9)),
        (Lure, memory_bound, 1, (0, *[16] * 30)),
        (Lure, memory_bound, 4, (0, *[16] * 30)),
        (Lure, wide, 4, (0, 0, 0, *[64] * 30)),
        (Lure, wide, 16, (0, *[64] * 9)),
        (Lure, tiny, 16, (0, *[16] * 30)),
    ],
)
def test_drafts_never_cost_two_per_cent_where_steps_have_prompts(
    kind: Any, cost: Cost, batch: int, prompts: tuple[int, ...]
) -> None:
    """Nor do they where a row costs more with prompts than alone, as on a `wide` machine."""
    sim = simulate(kind(), cost, prompts, 10)
    sim.limits = DraftController(sim.most)
    plain = simulate(kind(), cost, prompts, 0)
    assert sim.run([batch] * STEPS) >= 0.98 * plain.run([batch] * STEPS)
    assert any(sim.verified)


def make_controller(rows: int) -> DraftController:
    """Knows the costs of a sequence with so many rows."""
    limits = DraftController(10)
    for step in (1, rows) * 10:
        finish(limits, CountedStep(1, step), memory_bound(1, step))
    return limits


def finish(limits: DraftController, shape: CountedStep, seconds: float) -> float:
    """How the first account changes, without its share of the time."""
    limits.budget.loss = 0.05
    limits.begin(0.0)
    limits.end(shape, seconds, seconds)
    return limits.budget.loss - 0.05 - 0.006 * seconds


def test_a_draft_in_a_step_with_a_prompt_costs_its_rows_less_what_was_accepted() -> None:
    limits, plain = make_controller(6), memory_bound(1, 1)
    usual = memory_bound(1, 6 + 64)
    wrong = finish(limits, CountedStep(1, 6, 0, 64), usual)
    assert wrong == pytest.approx(plain - memory_bound(1, 6), rel=0.01)
    one = finish(limits, CountedStep(1, 6, 1, 64), usual)
    assert one == pytest.approx(plain + wrong, rel=0.01)
    slow = finish(limits, CountedStep(1, 6, 0, 64), plain + 0.010 * 69)
    assert slow == pytest.approx(-0.050, rel=0.01)  # of 69 tokens of 10 ms, five
    assert finish(limits, CountedStep(1, 1, 0, 64), usual) == pytest.approx(0, abs=1e-9)
    assert finish(limits, CountedStep(0, 0, 0, 64), usual) == -0.006 * usual  # nothing decodes


def test_sequences_that_give_no_token_are_no_loss() -> None:
    """As beams do not, and rows that are computed again: a step without drafts has them too."""
    limits = DraftController(10)
    for rows in (2, 12) * 10:
        finish(limits, CountedStep(2, rows), memory_bound(2, rows))
    before = limits.totals.plain_seconds
    finish(limits, CountedStep(2, 12, 4), memory_bound(2, 12))
    assert limits.totals.plain_seconds - before == pytest.approx(3 * memory_bound(2, 2), rel=0.01)
