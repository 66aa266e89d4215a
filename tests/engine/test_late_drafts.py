"""A drafter that reads a text once a draft is wanted: what that takes is no part of a draft's
price, and has an account of its own.  All times are the test's; nothing is measured.
"""

import pytest
from simulated_decoding import SimulatedDecoding, memory_bound
from test_draft_controller import likely

from flyweight.engine.draft_controller import DraftController

PLAIN = memory_bound(1, 1)


def run_texts(machine: SimulatedDecoding, texts: int, steps: int = 100) -> float:
    """Texts of so many steps, one after the other; the share of the time that is left without
    what drafts took.
    """
    for _ in range(texts):
        machine.run([1] * steps)
        machine.limits.forget(0)
        machine.texts.clear()
        machine.depths.clear()
        machine.begun.clear()
    return texts * steps * PLAIN / machine.now


def test_drafts_that_pay_begin_after_a_prompt_that_was_read_late() -> None:
    """As soon as the text is as long as the first draft."""
    machine = SimulatedDecoding(DraftController(10), likely(0.95), late=10 * PLAIN)
    machine.run([1] * 60)
    assert next((i for i, rows in enumerate(machine.verified) if rows), 60) < 15
    assert sum(machine.verified[30:]) > 60


def test_a_text_that_was_read_is_looked_at_again_soon() -> None:
    """As the drafter need not read it again: looks are as often as those of one that reads none."""
    calls = []
    for late in (0.0, 10 * PLAIN):
        machine = SimulatedDecoding(DraftController(10), likely(0.0), late=late)
        machine.run([1] * 400)
        calls.append(machine.calls)
    assert calls[0] == calls[1] > 2


@pytest.mark.parametrize("late", [0.5, 2.0, 8.0])
def test_reading_in_vain_takes_a_small_share(late: float) -> None:
    machine = SimulatedDecoding(DraftController(10), likely(0.0), late=late * PLAIN)
    left = run_texts(machine, 100)
    assert machine.calls > 5 and sum(machine.verified) == 0
    assert left > 0.98


def test_of_two_texts_the_one_that_was_read_is_looked_at() -> None:
    machine = SimulatedDecoding(DraftController(10), likely(0.0), late=6 * PLAIN)
    machine.run([1] * 50)
    assert machine.begun == {0}
    machine.run([2] * 400)
    assert machine.begun == {0} and machine.calls > 3
    machine.run([2] * 5000)
    assert machine.begun == {0, 1}


@pytest.mark.parametrize("kind", ["late", "index"])
@pytest.mark.parametrize(("share", "length"), [(5, 12), (20, 12), (20, 30)])
def test_reading_texts_that_are_short_costs_little_though_drafts_are_right(
    kind: str, share: int, length: int
) -> None:
    """Whether the drafter tells what it takes, or not: what drafts gain does not pay for it."""
    options = {kind: share * PLAIN}
    machine = SimulatedDecoding(DraftController(10), likely(0.95), length=length, **options)
    assert machine.run([1] * 1500) * PLAIN > 0.98


@pytest.mark.parametrize("kind", ["late", "index"])
def test_what_drafts_gain_pays_for_reading_the_next_text(kind: str) -> None:
    options = {kind: 20 * PLAIN}
    machine = SimulatedDecoding(DraftController(10), likely(0.95), length=400, **options)
    machine.run([1] * 60)
    assert machine.run([1] * 1500) * PLAIN > 3
    assert machine.limits.budget.reading > 0  # type: ignore[attr-defined]


def test_no_text_is_read_while_the_account_is_overdrawn() -> None:
    """Whether drafts are verified or not."""
    for right, verifying in ((0.0, False), (0.95, True)):
        machine = SimulatedDecoding(DraftController(10), likely(right))
        machine.run([1] * 60)
        limits = machine.limits
        assert isinstance(limits, DraftController)
        assert limits._verifying == verifying
        before = limits.budget.reading
        assert before > 0 and limits.may_read
        limits.depths = []
        limits.take([], [], machine.now, 10 * PLAIN)
        assert limits.budget.reading == pytest.approx(before - 10 * PLAIN)
        assert not limits.may_read
        machine.run([2] * 4)
        assert machine.begun == {0}  # the other was not read
        machine.run([2] * 100)
        assert (1 in machine.begun) == verifying  # drafts have gained enough
