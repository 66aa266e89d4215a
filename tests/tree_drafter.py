"""A drafter of trees: the tokens that are right somewhere among wrong ones."""

import random
from collections.abc import Callable, Hashable, Sequence

from flyweight.draft.drafter import Draft, DraftRequest


class TreeDrafter:
    """`find_right` gives the tokens that follow a request's.  They are on one path of a tree of
    `limit` tokens; the others are drawn from `vocabulary`.  Parents come before their children,
    the rest of the order is random.
    """

    taps = ()

    def __init__(
        self,
        find_right: Callable[[DraftRequest], Sequence[int]],
        vocabulary: Sequence[int],
        seed: int = 0,
    ) -> None:
        self.find_right, self.vocabulary = find_right, vocabulary
        self.rng = random.Random(seed)

    def observe(self, batch: object, taps: object) -> None: ...
    def forget(self, id: Hashable) -> None: ...

    def propose(self, asks: Sequence[DraftRequest]) -> list[Draft]:
        return [self._propose(ask) for ask in asks]

    def _propose(self, ask: DraftRequest) -> Draft:
        rng, right = self.rng, self.find_right(ask)
        tokens: list[int] = []
        parents: list[int] = []
        path = [-1]  # the places of the right tokens
        while len(tokens) < ask.limit:
            follows = path[-1] if rng.random() < 0.6 else rng.randrange(-1, len(tokens))
            depth = len(path) - 1
            if follows == path[-1] and depth < len(right) and rng.random() < 0.7:
                path.append(len(tokens))
                tokens.append(right[depth])
            else:
                tokens.append(rng.choice(self.vocabulary))
            parents.append(follows)
        return Draft(tuple(tokens), tuple(parents))
