"""How far drafts are right: by position in the draft, and decayed, so that the newest count most.

Invariant: without evidence a draft is taken to be wrong; a request begins with what was found for
all.  Standard library only; knows no tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

PRIOR = 1.5  # drafts that what is found elsewhere counts as
ALIKE = 3.0  # the same for what is found at other positions


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
        self.wanted = [0.0] * most
        self.offered = [0.0] * most
        self.tried = [0.0] * most
        self.right = [0.0] * most

    def record(self, draft: JudgedDraft) -> None:
        """A draft was compared.  Positions it did not reach lose evidence too: what is known of
        them is as old.
        """
        self.drafts += 1
        compared, kept = min(draft.tried, draft.right + 1), self.kept
        for counts, seen in (
            (self.wanted, draft.wanted),
            (self.offered, min(draft.wanted, draft.offered)),
            (self.tried, compared),
            (self.right, draft.right),
        ):
            counts[:seen] = [kept * count + 1.0 for count in counts[:seen]]
            counts[seen:] = [kept * count for count in counts[seen:]]

    def list_rates(self, before: Rates | None = None) -> Rates:
        """By position: how likely a draft goes on to there, and its token is right if those before
        are.  A position without evidence is like the request's others, or as it was `before`.
        """
        tried, right = sum(self.tried), sum(self.right)
        found: list[tuple[float, float]] = []
        for i, (goes_on, likely) in enumerate(before or [(1.0, 0.0)] * len(self.tried)):
            alike = (right + PRIOR * likely) / (tried + PRIOR)
            rate = (self.right[i] + ALIKE * alike) / (self.tried[i] + ALIKE)
            known = self.offered[i - 1] if i else self.wanted[0]
            longer = (self.offered[i] + PRIOR * goes_on) / (min(known, self.wanted[i]) + PRIOR)
            found.append((min(1.0, longer), rate))
        return found

    def look_ahead(self, before: Rates | None = None) -> list[DraftOutlook]:
        """The next draft, position by position."""
        reach = right = 1.0
        found: list[DraftOutlook] = []
        for longer, rate in self.list_rates(before):
            reach, right = reach * longer, right * rate
            found.append(DraftOutlook(reach, right))
        return found
