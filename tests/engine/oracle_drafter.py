"""A drafter for the harness that knows the answers."""

import random
from collections.abc import Hashable, Sequence

from oracle import VOCAB, answer

from flyweight.draft.drafter import Draft, DraftRequest
from flyweight.types import Request


class OracleDrafter:
    """Knows the answers, and gets some of them wrong."""

    def __init__(self, requests: Sequence[Request], seed: int) -> None:
        self.requests = {r.id: r for r in requests}
        self.rng = random.Random(seed)

    taps = ()

    def observe(self, batch: object, taps: object) -> None: ...
    def forget(self, id: Hashable) -> None: ...

    def propose(self, asks: Sequence[DraftRequest]) -> list[Draft]:
        return [self._propose(ask) for ask in asks]

    def _propose(self, ask: DraftRequest) -> Draft:
        id, index = ask.id  # type: ignore[misc]
        request, rng = self.requests[id], self.rng
        done = len(ask.tokens) - len(request.tokens)
        right = answer(request, index)[done : done + rng.randint(0, ask.limit)]
        return Draft(tuple(t if rng.random() < 0.8 else rng.randrange(VOCAB) for t in right))
