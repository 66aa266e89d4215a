"""Speculative decoding: drafts for the next step, and which of their tokens are accepted.

Invariant: a wrong draft costs time, never text.  A step of which no draft is wanted costs a few
attribute reads.  Knows no concrete drafter.
"""

from collections.abc import Callable, Collection, Hashable
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import partial

from flyweight.draft.drafter import Drafter, DraftRequest, DraftSampling
from flyweight.draft.tree import cut_tree, follow
from flyweight.engine.draft_controller import DraftController
from flyweight.engine.draft_limits import (
    CountedStep,
    DraftCandidate,
    DraftDepth,
    DraftLimits,
    FullDrafts,
    OfferedDraft,
)
from flyweight.engine.drafter_calls import DrafterCalls, describe_failure
from flyweight.engine.metrics import EngineMetrics
from flyweight.engine.proposals import DraftProbs
from flyweight.engine.scheduler import Scheduler
from flyweight.engine.sequence import Sequence
from flyweight.engine.step import Plan
from flyweight.speculation import SpeculationConfig
from flyweight.types import Event
from flyweight.wire import Batch, Sampled

Cut = Callable[[Sequence, list[int]], list[int]]
HeldDrafts = dict[Hashable, OfferedDraft]


class Drafts:
    """Drafts of one engine, from its drafter's `calls`.  `places` counts accepted draft tokens by
    their place in the draft; `limits` decides how many tokens each may have.  With `probs`, tokens
    that were drawn at random are verified by rejection sampling.
    """

    def __init__(
        self, drafter: Drafter | None, scheduler: Scheduler, metrics: EngineMetrics
    ) -> None:
        self.calls = DrafterCalls(drafter, scheduler.limits.vocab, metrics)
        self.scheduler, self.metrics = scheduler, metrics
        self.limits: DraftLimits = FullDrafts()
        self.places: list[int] = []
        self.probs: DraftProbs | None = None
        self._accepted = 0  # draft tokens, before the step
        self._filled = False  # some sequences have drafts
        self._idle = self._passed = 0  # steps that are not looked at: to come, and since the last
        self._seqs = 0  # of such a step
        self._since = 0  # steps since the limits were given one

    def configure(self, config: SpeculationConfig) -> None:
        """Chooses how drafts are limited and verified."""
        if config.adaptive:
            self.adapt(probes=config.probs)
        if config.verifier == "rejection":
            self.reject()

    def adapt(self, *, probes: bool = False) -> None:
        """From now on drafts are limited to what pays."""
        most = self.scheduler.limits.draft_tokens
        self.limits = DraftController(most, probes, rests=self.calls.rests)

    def reject(self) -> None:
        """From now on drafts are verified by rejection sampling."""
        self.probs = DraftProbs(self.scheduler.limits.vocab)
        self.calls.take = self.probs.take

    def begin(self) -> None:
        """A step begins."""
        if self.limits.resting:
            self._wake()
        if not self._idle and self.calls.drafter is not None:
            self._accepted = self.metrics.accepted
            self.limits.begin(self.calls.timer.begin())

    def _wake(self) -> None:
        """Ends a rest that was long enough: once a sequence may begin, for a drafter that needs all
        of its steps.
        """
        begins = self.scheduler.waiting or not self.calls.needs_all_steps
        if begins and self.limits.wake():
            self.calls.wake(self._list_running())
            self._idle = self._passed = 0

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

    def propose(self, plan: Plan, batch: Batch, sampled: Sampled, cut: Cut) -> None:
        """After a step: fills the drafts of sequences about to decode, each as far as `cut` leaves
        it; one that skipped the step may keep its draft.  Where this fails, the step is done all
        the same.
        """
        held = self._take_held() if self._filled else {}
        if self.calls.drafter is None:
            return
        if self._idle:
            self._pass(batch, sampled)
            return
        ended = self.calls.timer.end()
        try:
            self._observe(batch, sampled)
            shape = self._describe(plan)
            if self.limits.end(shape, ended, self.calls.timer.clock()):
                self._fill(cut, held, self._read_prompts())
            if self.limits.resting and self.calls.observes:
                self.calls.rest()
            self._idle, self._seqs = self.limits.idle, shape.seqs
        except Exception as error:
            self.calls.end_all(error)
            self._take_held()
        totals = self.limits.totals
        self.metrics.decode_us = int(1e6 * totals.seconds)
        self.metrics.undrafted_us = int(1e6 * totals.plain_seconds)

    def _pass(self, batch: Batch, sampled: Sampled) -> None:
        """A step that is not looked at, unless it is of another shape than the one before: from
        then on all are.
        """
        self._idle -= 1
        self._passed += 1
        self._since += 1
        if not len(batch.tokens) == len(batch.contexts) == self._seqs:
            self._idle = self._passed = 0
        self._observe(batch, sampled)

    def _observe(self, batch: Batch, sampled: Sampled) -> None:
        if self.calls.observes:
            self.calls.observe(batch, sampled.taps or {}, self._list_running)

    def _list_running(self) -> list[tuple[str, int]]:
        return [(seq.request.id, seq.index) for seq in self.scheduler.running]

    def _fill(self, cut: Cut, held: HeldDrafts, reading: float) -> None:
        """A draft for each sequence about to decode, where one is wanted, after so many seconds in
        which the drafter read prompts.
        """
        decoding = [s for s in self.scheduler.running if s.computed + 1 == len(s.tokens)]
        most = self.scheduler.limits.draft_tokens
        seqs: list[Sequence] = []
        candidates: list[DraftCandidate] = []
        for seq in decoding:
            limit = min(most, seq.tokens_left - 1)  # the target adds one token of its own
            id = (seq.request.id, seq.index)
            known = id not in self.calls.ended and id not in self.calls.missed
            if limit > 0 and seq.options.drafts and known:
                seqs.append(seq)
                candidates.append(DraftCandidate(id, seq.tokens, limit))
        # what is about to end says nothing of the others
        batch = len(decoding) if any(seq.tokens_left > 1 for seq in decoding) else 0
        depths = self.limits.choose(candidates, batch)
        kept = [
            cut_held(held.get(one.id), depth) for one, depth in zip(candidates, depths, strict=True)
        ]
        drafts, late = self._request(seqs, depths, kept)
        for seq, depth, draft in zip(seqs, depths, drafts, strict=True):
            if draft is not None and depth.verified:
                self._keep(seq, draft, cut)
        self.limits.take(candidates, drafts, self.calls.timer.clock(), reading + late)

    def _read_prompts(self) -> float:
        """Lets a drafter that reads texts by itself read what is computed of prompts; how many
        seconds it took.
        """
        if not self.calls.reads or not self.limits.may_read:
            return 0.0
        return self.calls.read(
            [
                replace(made, tokens=seq.tokens[: seq.computed])
                for seq in self.scheduler.running
                if 0 < seq.computed < len(seq.tokens) - 1
                and seq.tokens_left > 1
                and seq.options.drafts
                and seq.request.pooling is None
                and (made := make_draft_request(seq, 0)).id not in self.calls.ended
            ]
        )

    def _keep(self, seq: Sequence, draft: OfferedDraft, cut: Cut) -> None:
        """Lets a draft be verified, as far as it may be.  Where this fails, drafting ends for its
        request.
        """
        try:
            seq.draft, seq.parents = self._cut(seq, draft, cut)
            self._filled = True
        except Exception as error:
            self.calls.end([(seq.request.id, seq.index)], describe_failure(error))

    def _cut(self, seq: Sequence, draft: OfferedDraft, cut: Cut) -> OfferedDraft:
        """The part of a draft that is verified.  By rejection sampling, the first token that a
        grammar refuses, or that ends the text, is too: leaving it out would depend on what was
        drawn, and the target's draw in its place would not be from the residual.
        """
        draft = end_draft(draft, seq.request.stop_ids)
        kept = cut_draft(*draft, partial(cut, seq))
        constrained = seq.request.params.structured_outputs is not None
        drawn = self.probs is not None and (seq.request.id, seq.index) in self.probs.known
        if not drawn or draft.parents is not None or not constrained:
            return kept
        return OfferedDraft(draft.tokens[: len(kept.tokens) + 1])

    def _request(
        self, seqs: Seq[Sequence], depths: Seq[DraftDepth], kept: Seq[OfferedDraft | None]
    ) -> tuple[list[OfferedDraft | None], float]:
        """A draft for each sequence that is to have one, and has room for it, or that it has
        `kept`; and the seconds that the drafter took for what it had put off.
        """
        requests: list[DraftRequest] = []
        places: list[int] = []
        for place, (seq, depth) in enumerate(zip(seqs, depths, strict=True)):
            limit = 0 if kept[place] else depth.tokens
            if self.calls.stores and limit:
                limit = self._reserve(seq, limit)
            if limit:
                places.append(place)
                requests.append(make_draft_request(seq, limit))
        drafts = list(kept)
        late = self.calls.catch_up(requests) if self.calls.catches_up else 0.0
        if self.calls.catches_up and self.calls.ended:  # it may have failed for some
            left = [i for i, one in enumerate(requests) if one.id not in self.calls.ended]
            places, requests = [places[i] for i in left], [requests[i] for i in left]
        for place, draft in zip(places, self.calls.propose(requests), strict=True):
            drafts[place] = draft
        return drafts, late

    def _describe(self, plan: Plan) -> CountedStep:
        """A chunk of which every token is drawn from is a sequence that decodes."""
        decoded = [c.count for c in plan.chunks if c.count == len(c.drawn)]
        seqs, rows = len(decoded), sum(decoded)
        prompts = sum([c.count for c in plan.chunks]) - rows
        times = 1 + self._passed * (rows == self._seqs and not prompts)
        steps, observing = 1 + self._since, self.calls.observing
        self.calls.observing, self._passed, self._since = 0.0, 0, 0
        accepted = self.metrics.accepted - self._accepted
        return CountedStep(seqs, rows, accepted, prompts, times, steps, observing)

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
            self.calls.forget(id)
            self.limits.forget(id)
            if self.probs is not None:
                self.probs.forget(id)
            self._forget_failure(id)

    def _forget_failure(self, id: tuple[str, int]) -> None:
        """A sequence that only lost its blocks stays without drafts."""
        live = self.scheduler.by_id.get(id[0], ())
        if id in self.calls.ended and all(seq.index != id[1] for seq in live):
            self.calls.ended.remove(id)

    def _take_held(self) -> HeldDrafts:
        """The drafts of sequences that skipped the step, which have none any more."""
        held: HeldDrafts = {}
        for seq in self.scheduler.running:
            if seq.draft and not seq.in_flight:
                held[seq.request.id, seq.index] = OfferedDraft(seq.draft, seq.parents)
                seq.draft, seq.parents = [], None
        self._filled = False
        return held


def cut_held(draft: OfferedDraft | None, depth: DraftDepth) -> OfferedDraft | None:
    """What is left of a draft that was not verified yet; None where it is to be made anew."""
    if draft is None or not (depth.verified and depth.tokens):
        return None
    tokens, parents = draft
    return OfferedDraft(tokens[: depth.tokens], parents and parents[: depth.tokens])


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


def end_draft(draft: OfferedDraft, stops: Collection[int]) -> OfferedDraft:
    """A draft, each path as far as its first stop id, which is included: the text ends there, or
    the stop id is rejected.
    """

    def cut(tokens: list[int]) -> list[int]:
        return tokens[: next((i + 1 for i, one in enumerate(tokens) if one in stops), None)]

    return cut_draft(*draft, cut) if any(one in stops for one in draft.tokens) else draft


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
