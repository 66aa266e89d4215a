"""The draft tokens of a plan as the sampler verifies them by rejection sampling, with what each was
drawn from.

Invariant: trees, and drafts that were not drawn at random, are left to the coupled verifier: it
keeps the distribution whatever a draft was made of, and a text of the same seed may depend on the
numbers that this one accepts with.  Probabilities are of the newest drafts only.
"""

from array import array
from collections.abc import Hashable

import numpy as np

from flyweight.draft.drafter import Draft
from flyweight.engine.step import Plan
from flyweight.wire import F32, Proposals


class DraftProbs:
    """What draft tokens were drawn from, by sequence; nothing for those that were not drawn."""

    def __init__(self, vocab: int) -> None:
        self.vocab = vocab
        self.known: dict[Hashable, F32] = {}

    def take(self, id: Hashable, draft: Draft) -> None:
        """Keeps those of a draft, in place of the sequence's last ones.  Raises `ValueError`."""
        self.known.pop(id, None)
        if draft.probs is not None:
            count, width = draft.probs.shape
            if count != len(draft.tokens):
                raise ValueError(f"{count} rows of probs for {len(draft.tokens)} tokens")
            probs, more = draft.probs[:, : self.vocab], self.vocab - width
            if more > 0:  # ids that only one of the models has
                probs = np.pad(probs, ((0, 0), (0, more)))
            self.known[id] = probs

    def forget(self, id: Hashable) -> None:
        self.known.pop(id, None)

    def list_proposals(self, plan: Plan) -> Proposals | None:
        """The draft tokens of a plan that were drawn at random; None where it has none."""
        rows, tokens, starts = array("i"), array("i"), array("i", (0,))
        probs: list[F32] = []
        for chunk in plan.chunks:
            count, seq = len(chunk.drawn) - 1, chunk.seq
            known = self.known.get((seq.request.id, seq.index))
            if count < 1 or seq.parents is not None or known is None:
                continue
            rows.extend(range(chunk.drawn.start, chunk.drawn.stop - 1))
            tokens.extend(seq.draft[:count])
            starts.append(len(rows))
            probs.append(known[:count])
        if not rows:
            return None
        return Proposals(
            np.frombuffer(rows, np.int32),
            np.frombuffer(tokens, np.int32),
            np.frombuffer(starts, np.int32),
            np.concatenate(probs),
        )
