"""How far drafts are right: by position in the draft, and decayed, so that the newest count most.

Invariant: without evidence a draft is taken to be wrong; a request begins with what was found for
all.  Standard library only; knows no tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

PRIOR = 3.0  # drafts that what is found elsewhere counts as
ALIKE = 2.0  # the same for what is found at other positions
HEAVIEST = 1e100  # weight of a draft at which all are made lighter


Rates = Sequence[tuple[float, float]]  # by position: that a draft goes on, that its token is right


class DraftOutlook(NamedTuple):
    """Of one position of the next draft: that the draft is as long (`reach`), and that all its
    tokens up to there are right if it is (`right`).
    """

    reach: float
    right: float


@dataclass(frozen=True, slots=True)
class JudgedDraft:
    """`wanted` tokens were requested, and `offered`; the first `tried` of them were compared with
    the text, and `right` of these were what followed.
    """

    wanted: int
    offered: int
    tried: int
    right: int


class Acceptance:
    """Counts of one request, or of all.  With every draft, older ones lose the part 1 - `kept`."""

    def __init__(self, most: int, kept: float) -> None:
        self.kept, self.drafts = kept, 0
        self._weight = 1.0  # of the newest draft: it grows, instead of all others shrinking
        # the weight of drafts of which so many tokens were wanted, offered, tried, right
        self._counts = [[0.0] * (most + 1) for _ in range(4)]

    def record(self, draft: JudgedDraft) -> None:
        """A draft was compared.  Positions it did not reach lose evidence too: what is known of
        them is as old.
        """
        self.drafts += 1
        self._weight /= self.kept
        wanted, offered, tried, right = self._counts
        most = len(wanted) - 1
        wanted[min(draft.wanted, most)] += self._weight
        offered[min(draft.wanted, draft.offered, most)] += self._weight
        tried[min(draft.tried, draft.right + 1)] += self._weight
        right[draft.right] += self._weight
        if self._weight > HEAVIEST:
            self._counts = [[one / HEAVIEST for one in counts] for counts in self._counts]
            self._weight /= HEAVIEST

    def list_rates(self, before: Rates | None = None) -> Rates:
        """By position: how likely a draft goes on to there, and its token is right if those before
        are.  A position without evidence is like the request's others, or as it was `before`.
        """
        return list(self._find_rates(before))

    def _find_rates(self, before: Rates | None) -> Iterator[tuple[float, float]]:
        wanted, offered, tried, right = (count_beyond(counts) for counts in self._counts)
        prior, like = PRIOR * self._weight, ALIKE * self._weight
        all_tried, all_right = sum(tried), sum(right)
        known = wanted[0] if wanted else 0.0
        for i, (goes_on, likely) in enumerate(before or [(1.0, 0.0)] * len(tried)):
            alike = (all_right + prior * likely) / (all_tried + prior)
            rate = (right[i] + like * alike) / (tried[i] + like)
            longer = (offered[i] + prior * goes_on) / (min(known, wanted[i]) + prior)
            yield min(1.0, longer), rate
            known = offered[i]

    def look_ahead(self, before: Rates | None = None, least: float = 0.0) -> list[DraftOutlook]:
        """The next draft, position by position, as long as it is at least so likely right."""
        reach = right = 1.0
        found: list[DraftOutlook] = []
        for longer, rate in self._find_rates(before):
            reach, right = reach * longer, right * rate
            if right < least:
                break
            found.append(DraftOutlook(reach, right))
        return found


def count_beyond(counts: Sequence[float]) -> list[float]:
    """By position, the weight of drafts that have a token there."""
    sums = list(accumulate(reversed(counts[1:])))
    sums.reverse()
    return sums
