"""What the controller of drafts decides by: how far drafts are right, and what rows cost."""

from collections import Counter

import pytest

from flyweight.engine.acceptance import Acceptance, DraftOutlook, JudgedDraft
from flyweight.engine.draft_choice import StepPrices, choose_depths
from flyweight.engine.draft_evidence import compare_draft, count_depth
from flyweight.engine.draft_limits import OfferedDraft
from flyweight.engine.step_costs import DecodeCosts


def test_a_drafts_tokens_are_compared_as_far_as_the_text_goes() -> None:
    draft = OfferedDraft([5, 6, 7])
    assert compare_draft(draft, []) == (0, 0)
    assert compare_draft(draft, [5]) == (1, 1)
    assert compare_draft(draft, [4, 6]) == (1, 0)
    assert compare_draft(draft, [5, 6, 8, 7]) == (3, 2)
    assert compare_draft(draft, [5, 6, 7, 8]) == (3, 3)


def test_a_tree_is_followed_along_its_branches() -> None:
    tree = OfferedDraft([5, 6, 7, 8], [-1, -1, 1, 2])
    assert compare_draft(tree, [6, 7, 9]) == (3, 2)
    assert compare_draft(tree, [5, 7]) == (1, 1)  # nothing follows the 5
    assert count_depth(tree) == 3
    assert count_depth(OfferedDraft([1, 2])) == 2


def test_acceptance_is_by_position_and_the_newest_count_most() -> None:
    found = Acceptance(4, 0.8)
    assert [one.right for one in found.look_ahead()] == [0, 0, 0, 0]
    for _ in range(20):
        found.record(JudgedDraft(4, 3, 3, 2))
    ahead = found.look_ahead()
    first = ahead[0]
    assert ahead[1].right > 2 * ahead[2].right > 0
    assert ahead[2].reach > 0.9 > 0.5 > ahead[3].reach  # three tokens are offered, not four
    for _ in range(20):
        found.record(JudgedDraft(4, 4, 1, 0))
    assert found.look_ahead()[0].right < 0.1 < 0.3 < first.right


def test_positions_are_looked_at_as_far_as_they_are_likely() -> None:
    found = Acceptance(24, 0.8)
    for _ in range(20):
        found.record(JudgedDraft(24, 24, 3, 2))
    ahead = found.look_ahead(None, 0.02)
    assert 2 < len(ahead) < 24 and ahead == found.look_ahead()[: len(ahead)]
    assert ahead[-1].right >= 0.02 > found.look_ahead()[len(ahead)].right


def test_the_cost_of_rows_is_read_once_for_an_offer() -> None:
    asked = Counter[float]()

    class Curve:
        def cost(self, rows: float) -> float:
            asked[rows] += 1
            return 0.03 + 0.001 * rows

        def doubt(self, rows: float) -> float:
            return 0.0

    prices = StepPrices(1, Curve(), 0.0, 0.0)  # type: ignore[arg-type]
    outlook = [DraftOutlook(1.0, 0.9**i) for i in range(1, 9)]
    assert choose_depths([outlook], prices, 1.0, 1.0).depths == [8]
    assert asked == {float(rows): 1 for rows in range(1, 10)}


def test_costs_follow_the_machine_and_are_forgotten() -> None:
    costs = DecodeCosts()
    for rows in (1, 3) * 20:
        costs.record(1, rows, 0.010 * rows)
    assert costs.find_plain(1) == pytest.approx(0.010)
    curve = costs.make_curve(1)
    assert [curve.cost(r) for r in (1, 2, 3, 5)] == pytest.approx([0.01, 0.02, 0.03, 0.05])
    for _ in range(30):  # all steps are twice as slow
        costs.record(1, 3, 0.060)
    assert costs.find_plain(1) == pytest.approx(0.020, rel=0.2)
    assert costs.find_plain(2) is None
    for _ in range(300):
        costs.record(1, 3, 0.060)
    assert costs.find_plain(1) is None


def test_numbers_of_rows_that_share_a_figure_are_apart_from_exact_ones() -> None:
    costs = DecodeCosts()
    for rows in (100, 112, 118, 115):  # 118 shares its figure with 112 to 119, beyond 116
        costs.record(100, rows, 0.001 * rows)
    curve = costs.make_curve(100)
    assert curve.rows == [100, 112, 115, 118]
    assert [curve.cost(rows) for rows in (112, 118)] == pytest.approx([0.112, 0.118], rel=0.02)


def test_one_strange_step_changes_little() -> None:
    costs = DecodeCosts()
    for _ in range(20):
        costs.record(1, 1, 0.010)
    assert costs.record(1, 1, 10.0) == pytest.approx(0.020)
    assert costs.find_plain(1) < 0.014
