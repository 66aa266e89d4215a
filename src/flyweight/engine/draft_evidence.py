"""What became of drafts: of each request, and of all.

Invariant: a draft is compared with the tokens that followed it, whether it was verified or not, and
once.  Standard library only; knows no costs.
"""

from collections.abc import Hashable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from flyweight.engine.acceptance import Acceptance, DraftOutlook, JudgedDraft, Rates
from flyweight.engine.draft_limits import DraftCandidate, DraftTotals, OfferedDraft

KEPT = 0.9  # of a request's earlier drafts, with every new one
KEPT_OF_ALL = 0.98  # the same for the engine's
LEAST_RIGHT = 0.02  # tokens that are less likely are not considered
SLOW = 4  # drafts after which what is found for all is computed again


@dataclass(slots=True)
class DraftedRequest:
    """A sequence's acceptance, and the draft that its next tokens are compared with: it began at
    `start`, and `wanted` tokens were requested.  `tokens` grow with the sequence.  Totals were
    `seconds` and `plain_seconds` when it began to decode.  `read`: the drafter has read it.
    """

    acceptance: Acceptance
    seconds: float
    plain_seconds: float
    tokens: Seq[int] = ()
    start: int = 0
    wanted: int = 0
    offered: OfferedDraft | None = None
    read: bool = False


class DraftEvidence:
    """Of one engine, whose drafts have at most `most` tokens.  `width` is how many tokens a draft
    has for each step of its depth: more than one in trees.  `hopeful`: a draft was right once.
    """

    def __init__(self, most: int) -> None:
        self.most, self.width, self.hopeful = most, 1.0, False
        self.requests: dict[Hashable, DraftedRequest] = {}
        self._all = Acceptance(most, KEPT_OF_ALL)
        self._rates: Rates = ()  # of all, a few drafts old
        self._next = 0  # drafts at which they are computed again

    def judge(self, one: DraftCandidate, totals: DraftTotals) -> JudgedDraft | None:
        """Compares a request's draft with the tokens that followed; None where there is none."""
        request = self.requests.get(one.id)
        if request is None:
            known = Acceptance(self.most, KEPT)
            request = DraftedRequest(known, totals.seconds, totals.plain_seconds)
            self.requests[one.id] = request
        return self._compare(request)

    def settle(self) -> list[JudgedDraft]:
        """Compares all drafts with what has followed so far."""
        found = [self._compare(request) for request in self.requests.values()]
        return [one for one in found if one is not None]

    def _compare(self, request: DraftedRequest) -> JudgedDraft | None:
        draft = request.offered
        if draft is None or len(request.tokens) == request.start:  # none, or nothing has followed
            return None
        request.offered = None
        tried, right = compare_draft(draft, request.tokens[request.start :])
        deepest = count_depth(draft)
        if deepest:
            self.width = len(draft.tokens) / deepest
        judged = JudgedDraft(round(request.wanted / self.width), deepest, tried, right)
        self.hopeful = self.hopeful or right > 0
        request.acceptance.record(judged)
        self._all.record(judged)
        return judged

    def keep(self, one: DraftCandidate, wanted: int, draft: OfferedDraft | None) -> None:
        """A request's next tokens are compared with this."""
        request = self.requests[one.id]
        request.tokens, request.start = one.tokens, len(one.tokens)
        request.wanted, request.offered = wanted, draft
        request.read = request.read or draft is not None

    def look_ahead(self, one: DraftCandidate) -> list[DraftOutlook]:
        """A request's next draft, step by step of its depth, if its text goes on for as long."""
        if self._all.drafts >= self._next:
            self._rates, self._next = self._all.list_rates(), self._all.drafts + SLOW
        return self.requests[one.id].acceptance.look_ahead(self._rates, LEAST_RIGHT)

    def forget(self, id: Hashable) -> None:
        """A sequence ended, or starts over; what was found for it stays in what is for all."""
        request = self.requests.pop(id, None)
        if request is not None:
            self._compare(request)


def compare_draft(draft: OfferedDraft, text: Seq[int]) -> tuple[int, int]:
    """How many tokens of the text a draft was compared with, and how many it had foreseen."""
    at, right, size = -1, 0, len(draft.tokens)
    for token in text:
        if draft.parents is None:
            children: Seq[int] = range(at + 1, min(at + 2, size))
        else:
            children = [i for i, parent in enumerate(draft.parents) if parent == at]
        if not children:
            return right, right  # the draft ends
        found = next((i for i in children if draft.tokens[i] == token), None)
        if found is None:
            return right + 1, right
        at, right = found, right + 1
    return right, right


def count_depth(draft: OfferedDraft) -> int:
    """Tokens of the longest path."""
    if draft.parents is None:
        return len(draft.tokens)
    depths: list[int] = []
    for parent in draft.parents:
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
    return max(depths, default=0)
