"""Which type each tensor gets under a budget of bytes: the multiple-choice knapsack problem.

Invariant: the choice meets the budget, and its cost is within the stated gap of the least there is.
Dynamic programming over bytes in units; where the unit divides every size, the choice is optimal.
The bound is that of the linear relaxation (Sinha and Zoltners, 1979).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from math import gcd

import numpy as np

from flyweight.errors import ConfigError
from flyweight.quantize.costs import TypeCost

MOST_UNITS = 1 << 14  # of the budget: tables stay small
Costs = Mapping[str, Sequence[TypeCost]]


@dataclass(frozen=True, slots=True)
class Allocation:
    """A type for each tensor: its bytes, its cost (the sum of divergences), and the least cost that
    any choice within the budget could have.
    """

    types: Mapping[str, str]
    nbytes: int
    cost: float
    bound: float

    @property
    def gap(self) -> float:
        """By how much of its cost it may be above the optimum."""
        return max(0.0, (self.cost - self.bound) / self.cost) if self.cost > 0 else 0.0


def allocate(costs: Costs, budget: int) -> Allocation:
    """The types with the least cost within a budget of bytes.  Raises `ConfigError` where even the
    smallest types are larger.
    """
    names = list(costs)
    least = sum(min(one.nbytes for one in costs[name]) for name in names)
    if least > budget:
        raise ConfigError(
            f"leaves {budget} bytes for matrices, which need {least} in their smallest types",
            "target_size",
            hint=f"nearest valid: {least - budget} bytes more",
        )
    smallest = {name: min(one.nbytes for one in costs[name]) for name in names}
    unit = _choose_unit(costs, smallest, budget - least)
    space = (budget - least) // unit
    best = np.zeros(space + 1)
    chosen: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
    for name in names:
        table = np.full((len(costs[name]), space + 1), np.inf)
        for row, one in zip(table, costs[name], strict=True):
            extra = -(-(one.nbytes - smallest[name]) // unit)
            if extra <= space:
                row[extra:] = best[: space + 1 - extra] + one.divergence
        chosen.append(table.argmin(axis=0))
        best = table.min(axis=0)
    types: dict[str, str] = {}
    nbytes, cost, at = 0, 0.0, space
    for name, picks in zip(reversed(names), reversed(chosen), strict=True):
        one = costs[name][int(picks[at])]
        types[name], nbytes, cost = one.kind, nbytes + one.nbytes, cost + one.divergence
        at -= -(-(one.nbytes - smallest[name]) // unit)
    return Allocation(types, nbytes, cost, bound_cost(costs, budget))


def allocate_cost(costs: Costs, limit: float) -> Allocation:
    """The smallest choice whose cost is at most `limit`, to one in 1000 of its bytes.  Raises
    `ConfigError` where even the best types cost more.
    """
    low = sum(min(one.nbytes for one in each) for each in costs.values())
    high = sum(max(one.nbytes for one in each) for each in costs.values())
    best = allocate(costs, high)
    if best.cost > limit:
        raise ConfigError(
            "cannot be met by any of the types", "max_kld", value=limit,
            hint=f"nearest valid: {best.cost:.4g}",
        )  # fmt: skip
    while high - low > max(1, high // 1000):
        middle = (low + high) // 2
        found = allocate(costs, middle)
        if found.cost <= limit:
            best, high = found, middle
        else:
            low = middle
    return best


def bound_cost(costs: Costs, budget: int) -> float:
    """The least cost where a tensor may be split between types."""
    spent, cost = 0, 0.0
    steps: list[tuple[float, int, float]] = []
    for each in costs.values():
        hull = _find_hull(each)
        spent, cost = spent + hull[0].nbytes, cost + hull[0].divergence
        for a, b in pairwise(hull):
            saved, extra = a.divergence - b.divergence, b.nbytes - a.nbytes
            steps.append((-saved / extra, extra, saved))
    for _, extra, saved in sorted(steps):
        part = min(1.0, (budget - spent) / extra)
        if part <= 0:
            break
        spent, cost = spent + extra, cost - part * saved
        if part < 1:
            break
    return cost


def _find_hull(each: Sequence[TypeCost]) -> list[TypeCost]:
    """The types on the lower convex hull of cost over bytes, up to the least cost."""
    hull: list[TypeCost] = []
    for one in sorted(each, key=lambda one: (one.nbytes, one.divergence)):
        if hull and one.divergence >= hull[-1].divergence:
            continue
        while len(hull) > 1 and _is_above(hull[-2], hull[-1], one):
            hull.pop()
        if hull and hull[-1].nbytes == one.nbytes:
            hull.pop()
        hull.append(one)
    return hull


def _is_above(a: TypeCost, b: TypeCost, c: TypeCost) -> bool:
    """Whether b is on or above the line from a to c."""
    left = (b.divergence - a.divergence) * (c.nbytes - a.nbytes)
    return left >= (c.divergence - a.divergence) * (b.nbytes - a.nbytes)


def _choose_unit(costs: Costs, smallest: Mapping[str, int], space: int) -> int:
    """The greatest common divisor of what types cost more than the smallest, or a larger unit where
    the budget has too many of it.
    """
    extras = [one.nbytes - smallest[name] for name, each in costs.items() for one in each]
    exact = reduce(gcd, extras, 0) or 1
    return max(exact, -(-space // MOST_UNITS), 1)
