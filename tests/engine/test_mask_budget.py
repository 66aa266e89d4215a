"""Whose masks are made in a step: what that costs, and that everybody gets on."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf

import pytest

from flyweight.engine.grammars import Key, MaskBudget

ALLOWED = 50.0


class Played:
    """Turns under a clock that only masks move."""

    def __init__(self, cost: Mapping[str, float], after: float = 0.0) -> None:
        self.cost, self.after = cost, after
        self.budget = MaskBudget()

    def step(self, names: Sequence[str]) -> list[str]:
        """Who was served."""
        keys: list[Key] = [(name, 0) for name in names]
        found = []
        for i in self.budget.select(keys, ALLOWED):
            found.append(names[i])
            self.budget.record_mask(keys[i], self.cost[names[i]])
        for name in found:
            self.budget.record_tokens((name, 0), self.after)
        return found


@pytest.mark.parametrize("dear", [10.0, 24.0, 49.0, 200.0])
def test_a_step_keeps_its_budget_and_all_requests_progress(dear: float) -> None:
    names = [f"dear{i}" for i in range(32)] + [f"cheap{i}" for i in range(8)]
    cost = {name: dear if name.startswith("dear") else 0.5 for name in names}
    played, served = Played(cost), Counter[str]()
    for step in range(96):
        found = played.step(names)
        served.update(found)
        spent = sum(cost[name] for name in found)
        assert spent <= ALLOWED + max(ALLOWED, dear)
        late = len(names)  # steps in which some are new to it: nothing is known of them
        if step > late:
            assert set(found) >= {name for name in names if name.startswith("cheap")}
    turns = [served[name] for name in names if name.startswith("dear")]
    assert min(turns) >= 2 and max(turns) - min(turns) <= 1


def test_no_request_waits_where_all_fit() -> None:
    names = [f"a{i}" for i in range(64)]
    played = Played(dict.fromkeys(names, 0.5))
    for _ in range(3):
        assert sorted(played.step(names)) == sorted(names)


def test_what_is_taken_afterwards_counts() -> None:
    """A mask costs nothing here, taking a token all of the allowance."""
    names = ["a", "b", "c", "d"]
    played = Played(dict.fromkeys(names, 0.0), after=ALLOWED)
    assert played.step(names) == names
    found = [played.step(names) for _ in range(8)]
    assert found == [[name] for name in names * 2]


def test_without_an_allowance_all_are_served() -> None:
    budget, keys = MaskBudget(), [("a", 0), ("a", 1), ("b", 0)]
    for _ in range(3):
        order = []
        for i in budget.select(keys, inf):
            budget.record_mask(keys[i], 1e9)
            order.append(i)
        assert sorted(order) == [0, 1, 2]


def test_a_forgotten_request_leaves_nothing() -> None:
    played = Played({"a": 1.0})
    played.step(["a"])
    played.budget.forget(("a", 0))
    assert not played.budget._cost and not played.budget._last
