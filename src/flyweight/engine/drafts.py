"""Speculative decoding in the engine: drafts for the next step, and which of their tokens stand.

Invariant: a wrong draft costs time, never text.  Knows no concrete drafter.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq

from flyweight.draft.drafter import Drafter, DraftRequest
from flyweight.engine.metrics import EngineMetrics
from flyweight.engine.scheduler import Scheduler
from flyweight.engine.sequence import Sequence
from flyweight.sampling.verify import accept
from flyweight.wire import Batch

Cut = Callable[[Sequence, list[int]], list[int]]


class Drafts:
    """One engine's.  `places` counts how often a draft token stood, by its place in the draft."""

    def __init__(
        self, drafter: Drafter | None, scheduler: Scheduler, metrics: EngineMetrics
    ) -> None:
        self.drafter, self.scheduler, self.metrics = drafter, scheduler, metrics
        self.places: list[int] = []

    def accept(self, draft: Seq[int], drawn: Seq[int]) -> list[int]:
        """What stands of tokens drawn after a draft's."""
        proposed = len(drawn) - 1
        stood = accept(draft[:proposed], drawn)
        self.metrics.drafts += 1
        self.metrics.proposed += proposed
        self.metrics.accepted += len(stood) - 1
        self.places += [0] * (proposed - len(self.places))
        for place in range(len(stood) - 1):
            self.places[place] += 1
        return stood

    def propose(self, batch: Batch, cut: Cut) -> None:
        """After a step: fills the drafts of sequences about to decode, each as far as `cut` leaves
        it.
        """
        if self.drafter is None:
            return
        self.drafter.observe(batch, {})
        most = self.scheduler.limits.draft_tokens
        seqs: list[Sequence] = []
        asks: list[DraftRequest] = []
        for seq in self.scheduler.running:
            limit = min(most, seq.room - 1)  # the target adds one token of its own
            if limit > 0 and seq.options.drafts and seq.computed + 1 == len(seq.tokens):
                seqs.append(seq)
                asks.append(
                    DraftRequest((seq.request.id, seq.index), seq.tokens, seq.table.blocks, limit)
                )
        for seq, ask, draft in zip(seqs, asks, self.drafter.propose(asks), strict=True):
            assert draft.parents is None, "tree drafts are not verified yet"
            seq.draft = cut(seq, list(draft.tokens[: ask.limit]))

    def forget(self, ids: Seq[tuple[str, int]]) -> None:
        """Sequences that ended, or lost their blocks."""
        if self.drafter is not None:
            for id in ids:
                self.drafter.forget(id)
