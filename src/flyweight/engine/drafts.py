"""Speculative decoding: drafts for the next step, and which of their tokens are accepted.

Invariant: a wrong draft costs time, never text.  Knows no concrete drafter.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq

from flyweight.draft.drafter import Drafter, DraftRequest, DraftSampling, StoringDrafter
from flyweight.engine.metrics import EngineMetrics
from flyweight.engine.scheduler import Scheduler
from flyweight.engine.sequence import Sequence
from flyweight.wire import Batch, Sampled

Cut = Callable[[Sequence, list[int]], list[int]]


class Drafts:
    """Drafts of one engine.  `places` counts accepted draft tokens by their place in the draft."""

    def __init__(
        self, drafter: Drafter | None, scheduler: Scheduler, metrics: EngineMetrics
    ) -> None:
        self.drafter, self.scheduler, self.metrics = drafter, scheduler, metrics
        self.places: list[int] = []
        self.stores = isinstance(drafter, StoringDrafter)

    def accept(self, draft: Seq[int], drawn: Seq[int]) -> list[int]:
        """The accepted part of the tokens drawn at a draft's rows."""
        proposed = len(drawn) - 1
        accepted = accept_drafts(draft[:proposed], drawn)
        self.metrics.drafts += 1
        self.metrics.proposed += proposed
        self.metrics.accepted += len(accepted) - 1
        self.places += [0] * (proposed - len(self.places))
        for place in range(len(accepted) - 1):
            self.places[place] += 1
        return accepted

    def propose(self, batch: Batch, sampled: Sampled, cut: Cut) -> None:
        """After a step: fills the drafts of sequences about to decode, each as far as `cut` leaves
        it.
        """
        if self.drafter is None:
            return
        self.drafter.observe(batch, sampled.taps or {})
        most = self.scheduler.limits.draft_tokens
        seqs: list[Sequence] = []
        requests: list[DraftRequest] = []
        for seq in self.scheduler.running:
            limit = min(most, seq.tokens_left - 1)  # the target adds one token of its own
            if limit > 0 and seq.options.drafts and seq.computed + 1 == len(seq.tokens):
                if self.stores and not (limit := self._reserve(seq, limit)):
                    continue
                seqs.append(seq)
                requests.append(make_draft_request(seq, limit))
        for seq, request, draft in zip(seqs, requests, self.drafter.propose(requests), strict=True):
            assert draft.parents is None, "tree drafts are not verified yet"
            seq.draft = cut(seq, list(draft.tokens[: request.limit]))

    def _reserve(self, seq: Sequence, limit: int) -> int:
        """For how many draft tokens the sequence has slots to write, from its newest token's on,
        once it was given blocks that nobody needs: one is left for each sequence that runs.  None
        while the newest token's block is shared; the next step takes a copy of it.
        """
        pool, table, start = self.scheduler.pool, seq.table, seq.computed
        held = len(table.blocks)
        if start < held * pool.block_size and pool.count_needed(table, start, start + 1):
            return 0
        spare = max(0, len(pool.free) - len(self.scheduler.running))
        most = min(limit, (held + spare) * pool.block_size - start)
        if most > 0:
            pool.grow(table, start, start + most)
        return max(0, most)

    def forget(self, ids: Seq[tuple[str, int]]) -> None:
        """Sequences that ended, or lost their blocks."""
        if self.drafter is not None:
            for id in ids:
                self.drafter.forget(id)


def make_draft_request(seq: Sequence, limit: int) -> DraftRequest:
    """What a drafter is told of a sequence."""
    request = seq.request
    return DraftRequest(
        (request.id, seq.index),
        seq.tokens,
        seq.table.blocks,
        limit,
        DraftSampling.of(seq.options),
        request.salt,
        request.adapter,
    )


def accept_drafts(draft: Seq[int], sampled: Seq[int]) -> list[int]:
    """The tokens the target itself drew, as far as they were drawn after the right tokens.

    `sampled[i]` is the target's token at the row that has seen draft[:i]: k+1 of them for k drafts.
    Row i is worth something only if draft[:i] is what the target drew, so the list ends with the
    first sample that differs from its draft.
    """
    assert len(sampled) == len(draft) + 1, f"{len(sampled)} samples for {len(draft)} drafts"
    kept = 0
    while kept < len(draft) and draft[kept] == sampled[kept]:
        kept += 1
    return list(sampled[: kept + 1])
