"""Speculative decoding: drafts for the next step, and which of their tokens are accepted.

Invariant: a wrong draft costs time, never text, and a drafter that fails ends drafting, nothing
else.  Knows no concrete drafter.
"""

import logging
from collections.abc import Callable, Hashable
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import partial
from operator import index as to_index

from flyweight.draft.drafter import (
    Draft,
    Drafter,
    DraftRequest,
    DraftSampling,
    ReadingDrafter,
    StatefulDrafter,
    StoringDrafter,
)
from flyweight.draft.tree import cut_tree, follow, put_in_order
from flyweight.engine.draft_controller import DraftController
from flyweight.engine.draft_limits import (
    CountedStep,
    DraftCandidate,
    DraftDepth,
    DraftLimits,
    FullDrafts,
    OfferedDraft,
)
from flyweight.engine.drafter_timer import DrafterTimer
from flyweight.engine.metrics import EngineMetrics
from flyweight.engine.proposals import DraftProbs
from flyweight.engine.scheduler import Scheduler
from flyweight.engine.sequence import Sequence
from flyweight.speculation import SpeculationConfig
from flyweight.types import Event
from flyweight.wire import I32, Batch, Sampled

Cut = Callable[[Sequence, list[int]], list[int]]
LOG = logging.getLogger("flyweight")


class Drafts:
    """Drafts of one engine.  `places` counts accepted draft tokens by their place in the draft;
    `limits` decides how many tokens each may have, `ended` are the sequences whose drafter failed.
    With `probs`, tokens are verified by rejection sampling.  `on_end` is called where drafting ends
    for all.
    """

    def __init__(
        self, drafter: Drafter | None, scheduler: Scheduler, metrics: EngineMetrics
    ) -> None:
        self.drafter, self.scheduler, self.metrics = drafter, scheduler, metrics
        self.limits: DraftLimits = FullDrafts()
        self.places: list[int] = []
        self.stores = isinstance(drafter, StoringDrafter)
        self.ended: set[Hashable] = set()
        self.vocab = scheduler.limits.vocab
        self.probs: DraftProbs | None = None
        self.timer = DrafterTimer()
        self.on_end: Callable[[], None] = lambda: None
        self._produced = 0  # tokens, up to the newest step

    def configure(self, config: SpeculationConfig) -> None:
        """Chooses how drafts are limited and verified."""
        if config.adaptive:
            self.adapt()
        if config.verifier == "rejection":
            self.reject()

    def adapt(self) -> None:
        """From now on drafts are limited to what pays."""
        self.limits = DraftController(self.scheduler.limits.draft_tokens)

    def reject(self) -> None:
        """From now on drafts are verified by rejection sampling."""
        self.probs = DraftProbs(self.vocab)

    def copy(self, moves: tuple[I32, I32] | None) -> None:
        """Before a step that copies slots: the drafter's states go along."""
        if moves is not None and isinstance(self.drafter, StatefulDrafter):
            try:
                self.drafter.copy_slots(*moves)
            except Exception as error:
                self._end_all(error)

    def begin(self) -> None:
        """A step begins."""
        self.timer.begin()
        self.limits.begin()

    def accept(self, draft: Seq[int], drawn: Seq[int]) -> list[int]:
        """The accepted part of the tokens drawn at a draft's rows."""
        proposed = len(drawn) - 1
        accepted = accept_drafts(draft[:proposed], drawn)
        self._count(proposed, len(accepted) - 1)
        return accepted

    def accept_path(self, seq: Sequence, drawn: Seq[int]) -> list[int]:
        """The accepted path of a draft that is a tree, of which the rows' tokens were drawn."""
        assert seq.parents is not None, "a path in a chain"
        proposed = len(drawn) - 1
        path = follow(seq.draft[:proposed], seq.parents[:proposed], drawn)
        self._count(proposed, len(path))
        return path

    def _count(self, proposed: int, accepted: int) -> None:
        self.metrics.drafts += 1
        self.metrics.proposed += proposed
        self.metrics.accepted += accepted
        self.places += [0] * (proposed - len(self.places))
        for place in range(accepted):
            self.places[place] += 1

    def propose(self, batch: Batch, sampled: Sampled, cut: Cut) -> None:
        """After a step: fills the drafts of sequences about to decode, each as far as `cut` leaves
        it.  Where this fails, the step is done all the same.
        """
        if self.drafter is None:
            return
        self._clear()  # those of sequences that skipped the step
        try:
            wanted = self.limits.end(self._describe(batch))
            self.timer.end()
            self._observe(self.drafter, batch, sampled)
            if wanted:
                self._fill(cut)
                self._read_prompts()
            else:
                self.limits.skip()
        except Exception as error:
            self._end_all(error)
        totals = self.limits.totals
        self.metrics.decode_us = int(1e6 * totals.seconds)
        self.metrics.undrafted_us = int(1e6 * totals.plain_seconds)

    def _observe(self, drafter: Drafter, batch: Batch, sampled: Sampled) -> None:
        """Lets the drafter see a step.  Where that fails, drafting ends for all sequences that run:
        whatever it knows of them may be half of it.
        """
        began = self.timer.clock()
        try:
            drafter.observe(batch, sampled.taps or {})
            why = self.timer.judge(began)
        except Exception as error:
            why = describe_failure(error)
        if why:
            ids: list[Hashable] = [(s.request.id, s.index) for s in self.scheduler.running]
            self._end(ids, why)
            for id in ids:
                drafter.forget(id)

    def _fill(self, cut: Cut) -> None:
        """A draft for each sequence about to decode, where one is wanted."""
        decoding = [s for s in self.scheduler.running if s.computed + 1 == len(s.tokens)]
        most = self.scheduler.limits.draft_tokens
        seqs: list[Sequence] = []
        candidates: list[DraftCandidate] = []
        for seq in decoding:
            limit = min(most, seq.tokens_left - 1)  # the target adds one token of its own
            id = (seq.request.id, seq.index)
            if limit > 0 and seq.options.drafts and id not in self.ended:
                seqs.append(seq)
                candidates.append(DraftCandidate(id, seq.tokens, limit))
        depths = self.limits.choose(candidates, len(decoding))
        drafts = self._request(seqs, depths)
        for seq, depth, draft in zip(seqs, depths, drafts, strict=True):
            if draft is not None and depth.verified:
                seq.draft, seq.parents = self._keep(seq, draft, cut)
        self.limits.take(candidates, drafts)

    def _read_prompts(self) -> None:
        """Lets a drafter that reads texts by itself read what is computed of prompts.  Where that
        fails, drafting ends for their sequences.
        """
        drafter = self.drafter
        if not isinstance(drafter, ReadingDrafter):
            return
        requests = [
            replace(made, tokens=seq.tokens[: seq.computed])
            for seq in self.scheduler.running
            if 0 < seq.computed < len(seq.tokens) - 1
            and seq.tokens_left > 1
            and seq.options.drafts
            and seq.request.pooling is None
            and (made := make_draft_request(seq, 0)).id not in self.ended
        ]
        if not requests:
            return
        began = self.timer.clock()
        try:
            drafter.read(requests)
            why = self.timer.judge(began)
        except Exception as error:
            why = describe_failure(error)
        if why:
            self._end([request.id for request in requests], why)

    def _keep(self, seq: Sequence, draft: OfferedDraft, cut: Cut) -> OfferedDraft:
        """The part of a draft that is verified.  By rejection sampling, the first token that a
        grammar refuses, or that ends the text, is too: leaving it out would depend on what was
        drawn, and the target's draw in its place would not be from the residual.
        """
        kept = cut_draft(*draft, partial(cut, seq))
        constrained = seq.request.params.structured_outputs is not None
        if self.probs is None or draft.parents is not None or not constrained:
            return kept
        return OfferedDraft(draft.tokens[: len(kept.tokens) + 1])

    def _request(self, seqs: Seq[Sequence], depths: Seq[DraftDepth]) -> list[OfferedDraft | None]:
        """A draft for each sequence that is to have one, and has room for it."""
        requests: list[DraftRequest] = []
        places: list[int] = []
        for place, (seq, depth) in enumerate(zip(seqs, depths, strict=True)):
            limit = depth.tokens
            if self.stores and limit:
                limit = self._reserve(seq, limit)
            if limit:
                places.append(place)
                requests.append(make_draft_request(seq, limit))
        drafts: list[OfferedDraft | None] = [None] * len(seqs)
        for place, draft in zip(places, self._call(requests), strict=True):
            drafts[place] = draft
        return drafts

    def _describe(self, batch: Batch) -> CountedStep:
        produced, self._produced = self._produced, self.metrics.produced
        seqs = len(batch.contexts) - batch.branches
        rows, drawn = len(batch.tokens), len(batch.rows)
        return CountedStep(seqs, rows, drawn, self._produced - produced)

    def _reserve(self, seq: Sequence, limit: int) -> int:
        """The draft tokens that the sequence has slots for, from its newest token's on, with free
        blocks as long as one is left for each running sequence.  0 while the newest token's block
        is shared; the next step copies it.
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

    def add_speedup(self, events: Seq[Event]) -> None:
        """Adds what drafts gained to the timings of sequences that end."""
        for event in events:
            if event.finish is not None and event.timings is not None:
                speedup = self.limits.measure((event.id, event.index))
                event.timings = replace(event.timings, draft_speedup=speedup)

    def forget(self, ids: Seq[tuple[str, int]]) -> None:
        """Sequences that ended, or lost their blocks."""
        for id in ids:
            if self.drafter is not None:
                try:
                    self.drafter.forget(id)
                except Exception as error:
                    self._end_all(error)
            self.limits.forget(id)
            if self.probs is not None:
                self.probs.forget(id)
            live = self.scheduler.by_id.get(id[0], ())
            if id in self.ended and all(seq.index != id[1] for seq in live):
                self.ended.remove(id)

    def _call(self, requests: Seq[DraftRequest]) -> list[OfferedDraft]:
        """A draft for each request.  Where the drafter fails, it is called for each request
        alone, and ends for those that it fails for.
        """
        if not requests or self.drafter is None:
            return []
        began = self.timer.clock()
        try:
            drafts = self.drafter.propose(requests)
            why = self.timer.judge(began)
            if why:
                self._end([request.id for request in requests], why)
            pairs = zip(requests, drafts, strict=True)
            return [self._read(draft, request) for request, draft in pairs]
        except Exception as error:
            if len(requests) > 1:
                return [draft for request in requests for draft in self._call([request])]
            self._end([requests[0].id], describe_failure(error))
            return [OfferedDraft([])]

    def _read(self, draft: Draft, request: DraftRequest) -> OfferedDraft:
        """The first tokens of a draft.  Raises for those that the model could not compute."""
        limit, vocab = request.limit, self.vocab
        tokens = [to_index(token) for token in draft.tokens[:limit]]
        if self.probs is not None:
            self.probs.take(request.id, draft)
        if tokens and (min(tokens) < 0 or max(tokens) >= vocab):
            raise ValueError(f"draft tokens {tokens} are not all in 0 to {vocab - 1}")
        if draft.parents is None:
            return OfferedDraft(tokens)
        return OfferedDraft(*put_in_order(tokens, draft.parents[:limit]))

    def _end(self, ids: Seq[Hashable], why: str) -> None:
        """No more drafts for these sequences."""
        new = [str(id) for id in ids if id not in self.ended]
        self.ended.update(ids)
        if new:
            many = "sequences" if len(new) > 1 else "sequence"
            LOG.warning("drafting ends for %s %s: %s", many, ", ".join(new), why)

    def _clear(self) -> None:
        for seq in self.scheduler.running:
            if not seq.in_flight:
                seq.draft, seq.parents = [], None

    def _end_all(self, error: Exception) -> None:
        """No more drafts; those that are not computed yet are dropped."""
        self.drafter = None
        self.metrics.drafting_ended = 1
        self._clear()
        self.on_end()
        LOG.warning("drafting ends for all requests: %s", describe_failure(error))


def describe_failure(error: Exception) -> str:
    """An error on one line, cut."""
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def make_draft_request(seq: Sequence, limit: int) -> DraftRequest:
    """What a drafter may know of a sequence."""
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


def cut_draft(
    tokens: list[int], parents: list[int] | None, cut: Callable[[list[int]], list[int]]
) -> OfferedDraft:
    """A draft, each token as far as `cut` lets what leads to it go on."""
    return (
        OfferedDraft(cut(tokens))
        if parents is None
        else OfferedDraft(*cut_tree(tokens, parents, cut))
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
