"""A drafter of states that compares what it proposes with a reference."""

from collections.abc import Sequence
from typing import Protocol

from flyweight.draft.drafter import Draft, DraftRequest
from flyweight.draft.statedrafter import StateDrafter


class DraftReference(Protocol):
    def guess(self, tokens: Sequence[int], count: int) -> list[int]:
        """The draft after these tokens, of at most `count`."""
        ...


class CheckedDrafter(StateDrafter):
    """Compares the drafts of greedy requests with those of a reference, where it has one."""

    reference: DraftReference | None = None
    compared = wrong = 0

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        drafts = super().propose(requests)
        for request, draft in zip(requests, drafts, strict=True):
            params = request.sampling
            plain = params.temperature == 0 and params.options and params.options.plain
            if self.reference is not None and plain:
                expected = self.reference.guess(request.tokens, request.limit)
                self.compared += 1
                self.wrong += list(draft.tokens) != expected  # raising would only end drafting
        return drafts
