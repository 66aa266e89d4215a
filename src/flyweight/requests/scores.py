"""The log-probabilities of an answer as they come, in packed columns.

Invariant: 8 bytes a candidate, however many tokens there are.  Knows no text.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from flyweight.outputs import PositionLogprobs
from flyweight.types import ALL, TokenLogprobs


@dataclass(slots=True)
class ScoreColumns:
    """Log-probabilities as they come, in `PositionLogprobs`' arrays: `best` with each token's, or
    (not `ranked`) those of as many ids that were listed.
    """

    best: int
    ranked: bool = True
    ids: "array[int]" = field(default_factory=lambda: array("i"))
    values: "array[float]" = field(default_factory=lambda: array("f"))
    ranks: "array[int]" = field(default_factory=lambda: array("i"))

    def add(self, token: int, scored: TokenLogprobs) -> None:
        if self.best == ALL:
            self.best = len(scored.top_ids)
        missing = self.best - len(scored.top_ids)
        self.ids.append(token)
        self.ids.extend(scored.top_ids)
        self.ids.extend((-1,) * missing)
        self.values.append(scored.chosen)
        self.values.extend(scored.top)
        self.values.extend((0.0,) * missing)
        self.ranks.append(scored.rank)

    def to_logprobs(self, spell: Callable[[int], str]) -> PositionLogprobs:
        return PositionLogprobs(
            self.ids, self.values, self.ranks, 1 + max(self.best, 0), spell, self.ranked
        )
