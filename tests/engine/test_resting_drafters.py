"""Drafters that take time to see each step, and do not see all of them while drafts do not pay; on
a simulated machine.  All times are the test's; nothing is measured.
"""

from collections.abc import Callable

import pytest
from simulated_decoding import SimulatedDecoding, memory_bound, tiny
from test_draft_controller import likely

from flyweight.engine.draft_controller import DraftController
from flyweight.engine.draft_limits import FullDrafts

Foresee = Callable[[int, int, int], int]
PLAIN = tiny(4, 4)  # seconds of a step of four sequences
STEPS = [4] * 6000
SLOW = {"cost": tiny, "observing": 0.09 * PLAIN, "drafting": 0.3 * PLAIN, "length": 200}


def simulate(foresee: Foresee, rests: bool, **options: object) -> SimulatedDecoding:
    sim = SimulatedDecoding(FullDrafts(), foresee, **{**SLOW, **options})  # type: ignore[arg-type]
    sim.limits = DraftController(sim.most, rests=rests)
    return sim


def measure_plain(batches: list[int], **options: object) -> float:
    """Tokens a second without a drafter."""
    sim = SimulatedDecoding(
        FullDrafts(), likely(0), most=0, cost=tiny, length=200, **options  # type: ignore[arg-type]
    )  # fmt: skip
    return sim.run(batches)


@pytest.mark.parametrize("share", [0.01, 0.04, 0.09, 0.3])
@pytest.mark.parametrize("chance", [0.0, 0.1])
def test_states_that_no_draft_needs_cost_less_than_two_per_cent(
    share: float, chance: float
) -> None:
    sim = simulate(likely(chance), True, observing=share * PLAIN)
    assert sim.run(STEPS) / measure_plain(STEPS) > 0.98
    assert 0 < sim.seen < len(STEPS)
    if share > 0.02:
        assert simulate(likely(chance), False, observing=share * PLAIN).run(STEPS) < sim.run(STEPS)


@pytest.mark.parametrize("share", [0.3, 0.5, 1.0])
@pytest.mark.parametrize("chance", [0.3, 0.5])
def test_drafts_that_gain_less_than_states_take_are_given_up(share: float, chance: float) -> None:
    """States are kept while drafts are verified, too."""
    options = {"cost": memory_bound, "observing": share * memory_bound(1, 1), "drafting": 30e-6}
    sim = simulate(likely(chance), True, **options)
    assert sim.run([1] * 2000) * memory_bound(1, 1) > 0.98


def test_states_that_take_little_time_are_always_kept() -> None:
    sim = simulate(likely(0), True, cost=memory_bound, observing=20e-6)
    sim.run(STEPS)
    assert sim.seen == len(STEPS)


def test_drafts_that_pay_are_never_given_up() -> None:
    sim = simulate(likely(0.95), True)
    sim.run(STEPS)
    assert sim.seen == sum(1 for _ in sim.verified)
    assert simulate(likely(0.95), False).run(STEPS) == pytest.approx(sim.run(STEPS), rel=0.05)


def test_drafts_that_begin_to_pay_are_found_by_sequences_that_begin() -> None:
    """Nothing is foreseen in the first half; in the second, drafts gain most of what they would
    without rests.
    """
    gains = []
    for rests in (True, False):
        sim = simulate(likely(0), rests)
        sim.run(STEPS)
        sim.foresee = likely(0.95)
        gains.append(sim.run(STEPS))
    assert gains[0] > 0.8 * gains[1] > measure_plain(STEPS)


def test_a_rest_does_not_end_before_a_sequence_begins() -> None:
    sim = simulate(likely(0), True, length=1 << 30)
    sim.run(STEPS)
    seen = sim.seen
    assert sim.limits.resting
    sim.run(STEPS)
    assert sim.seen == seen and sim.limits.resting


def test_batches_that_change_are_no_reason_to_rest() -> None:
    """Steps that pass while looks wait are counted, also where the batch changes after them."""
    cost = 0.0015 * memory_bound(4, 4)
    sim = simulate(likely(0), True, cost=memory_bound, observing=cost)
    changing = [4 - i // 20 % 2 for i in range(6000)]
    sim.run(changing)
    assert sim.seen == len(changing) and not sim.limits.resting


def test_a_rest_begins_though_drafts_paid_for_a_sequence_that_ended() -> None:
    right = likely(0.95)
    sim = simulate(lambda seq, at, n: right(seq, at, n) if seq else 0, True, length=1 << 30)
    sim.run([1] * 3000)
    seen = sim.seen
    assert sim.limits.resting
    sim.run([2] * 200)  # the second begins, and is drafted for
    assert sim.seen == seen + 200 and sum(sim.verified[-100:]) > 100
    sim.run([1] * 3000)
    assert sim.limits.resting and sim.seen < seen + 500


def test_times_of_steps_that_differ_do_not_keep_it_from_waking() -> None:
    changing = [(1, 1, 8, 8)[i % 4] for i in range(12000)]
    sim = simulate(likely(0), True, length=100)
    sim.run(changing)
    assert 0.02 < sim.seen / len(changing) < 0.5
