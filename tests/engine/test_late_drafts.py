"""A drafter that reads a prompt once a draft is wanted: what that takes is no part of a draft's
price, and it is paid from what looks may cost.  All times are the test's; nothing is measured.
"""

import pytest
from simulated_decoding import SimulatedDecoding, memory_bound
from test_draft_controller import likely

from flyweight.engine.draft_controller import DraftController

PLAIN = memory_bound(1, 1)


def test_drafts_that_pay_begin_after_a_prompt_that_was_read_late() -> None:
    """As soon as the text is as long as the first draft."""
    machine = SimulatedDecoding(DraftController(10), likely(0.95), late=10 * PLAIN)
    machine.run([1] * 60)
    assert next(i for i, rows in enumerate(machine.verified) if rows) < 15
    assert sum(machine.verified[30:]) > 60


@pytest.mark.parametrize("steps", [500, 2000])
def test_what_is_read_late_in_vain_is_paid_from_looks(steps: int) -> None:
    """At the next look, the prompt is read already."""
    machine = SimulatedDecoding(DraftController(10), likely(0.0), late=2 * PLAIN)
    pace = machine.run([1] * steps)
    assert machine.calls > 1 and sum(machine.verified) == 0
    assert pace > 0.985 / PLAIN / (1 + 2 / steps)
