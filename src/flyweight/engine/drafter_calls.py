"""Calls of a drafter that may raise, stall, or propose nonsense.

Invariant: no failure leaves these functions; what failed ends drafting for its sequences, or for
all, with one line in the log.  Time comes from a clock that is given.  Knows no concrete drafter.
"""

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping
from collections.abc import Sequence as Seq
from operator import index as to_index

from flyweight.draft.drafter import (
    Draft,
    Drafter,
    DraftRequest,
    LateDrafter,
    PausableDrafter,
    ReadingDrafter,
    StatefulDrafter,
    StoringDrafter,
    TextOnlyDrafter,
)
from flyweight.draft.tree import put_in_order
from flyweight.engine.draft_limits import OfferedDraft
from flyweight.engine.drafter_timer import LEAST, DrafterTimer
from flyweight.engine.metrics import EngineMetrics
from flyweight.wire import I32, Batch, Tensor

LOG = logging.getLogger("flyweight")
TakeDraft = Callable[[Hashable, Draft], None]


class DrafterCalls:
    """The drafter of one engine, None once drafting has ended for all.  `ended` are the sequences
    that it failed for, `missed` those of which it did not see all steps.  `tap` is called with
    whether the drafter wants states of steps, where that changes, `take` with each draft.
    `observing` are the seconds spent in `observe` since the last reset.
    """

    def __init__(self, drafter: Drafter | None, vocab: int, metrics: EngineMetrics) -> None:
        self.vocab, self.metrics = vocab, metrics
        self.timer = DrafterTimer()
        self.ended: set[Hashable] = set()
        self.missed: set[Hashable] = set()
        self.observing = 0.0
        self.tap: Callable[[bool], None] = lambda wanted: None
        self.take: TakeDraft = lambda id, draft: None
        self.use(drafter)

    def use(self, drafter: Drafter | None) -> None:
        """From now on this drafter is called."""
        self.drafter = drafter
        self.stores = isinstance(drafter, StoringDrafter)
        # looked up once: such a check takes 10 us
        self._reader = drafter if isinstance(drafter, ReadingDrafter) else None
        self._late = drafter if isinstance(drafter, LateDrafter) else None
        self._pausable = drafter if isinstance(drafter, PausableDrafter) else None
        self.reads, self.catches_up = self._reader is not None, self._late is not None
        self.rests = self._pausable is not None
        self.needs_all_steps = self._pausable is not None and self._pausable.needs_all_steps
        # a call that does nothing costs a small model's step 1 % of its time
        self.observes = drafter is not None and not learns_nothing(drafter)

    def copy(self, moves: tuple[I32, I32] | None) -> None:
        """Before a step that copies slots: the drafter's states go along."""
        if moves is not None and isinstance(self.drafter, StatefulDrafter):
            try:
                self.drafter.copy_slots(*moves)
            except Exception as error:
                self.end_all(error)

    def observe(
        self, batch: Batch, taps: Mapping[int, Tensor], list_running: Callable[[], Seq[Hashable]]
    ) -> None:
        """Lets the drafter see a step.  Where that fails, drafting ends for all sequences that run:
        whatever it knows of them may be half of it.
        """
        if self.drafter is None:
            return
        began = self.timer.clock()
        try:
            self.drafter.observe(batch, taps)
            taken = self.timer.clock() - began
            self.observing += taken
            if taken <= LEAST:  # no stall, whatever the step took
                return
            why = self.timer.judge(began)
        except Exception as error:
            why = describe_failure(error)
        if why:
            running = list_running()
            self.end(running, why)
            for id in running:
                self.forget(id)

    def rest(self) -> None:
        """From now on the drafter sees no steps."""
        assert self._pausable is not None, "a drafter that has to see all steps"
        self.observes = False
        self.tap(False)
        try:
            self._pausable.pause()
        except Exception as error:
            self.end_all(error)

    def wake(self, running: Iterable[Hashable]) -> None:
        """From now on it sees them again.  One that needs all of them gets no drafts for the
        sequences that run.
        """
        if self._pausable is not None:
            if self.needs_all_steps:
                self.missed.update(running)
            self.observes = True
            self.tap(True)

    def read(self, requests: Seq[DraftRequest]) -> float:
        """Lets a drafter read parts of prompts; how many seconds it took.  Where that fails,
        drafting ends for theirs.  It is not judged by its time: what is unread may be of many
        steps, and the step before it short.
        """
        if not requests or self._reader is None:
            return 0.0
        began = self.timer.clock()
        try:
            self._reader.read(requests)
        except Exception as error:
            self.end([request.id for request in requests], describe_failure(error))
        return self.timer.clock() - began

    def catch_up(self, requests: Seq[DraftRequest]) -> float:
        """Lets a drafter compute what it has put off; how many seconds it took.  Where that fails,
        drafting ends for the requests.  It is not judged by its time, which a prompt may take.
        """
        if not requests or self._late is None:
            return 0.0
        began = self.timer.clock()
        try:
            self._late.catch_up(requests)
        except Exception as error:
            self.end([request.id for request in requests], describe_failure(error))
        return self.timer.clock() - began

    def propose(self, requests: Seq[DraftRequest]) -> list[OfferedDraft]:
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
                self.end([request.id for request in requests], why)
            pairs = zip(requests, drafts, strict=True)
            return [self._read(draft, request) for request, draft in pairs]
        except Exception as error:
            if len(requests) > 1:
                return [draft for request in requests for draft in self.propose([request])]
            self.end([requests[0].id], describe_failure(error))
            return [OfferedDraft([])]

    def forget(self, id: Hashable) -> None:
        """A sequence ended, or lost its blocks."""
        self.missed.discard(id)
        if self.drafter is not None:
            try:
                self.drafter.forget(id)
            except Exception as error:
                self.end_all(error)

    def end_all(self, error: Exception) -> None:
        """No more drafts."""
        self.use(None)
        self.metrics.drafting_ended = 1
        self.tap(False)
        LOG.warning("drafting ends for all requests: %s", describe_failure(error))

    def _read(self, draft: Draft, request: DraftRequest) -> OfferedDraft:
        """The first tokens of a draft.  Raises for those that the model could not compute."""
        limit, vocab = request.limit, self.vocab
        tokens = [to_index(token) for token in draft.tokens[:limit]]
        self.take(request.id, draft)
        if tokens and (min(tokens) < 0 or max(tokens) >= vocab):
            raise ValueError(f"draft tokens {tokens} are not all in 0 to {vocab - 1}")
        if draft.parents is None:
            return OfferedDraft(tokens)
        return OfferedDraft(*put_in_order(tokens, draft.parents[:limit]))

    def end(self, ids: Iterable[Hashable], why: str) -> None:
        """No more drafts for these sequences."""
        new = [str(id) for id in ids if id not in self.ended]
        self.ended.update(ids)
        if new:
            many = "sequences" if len(new) > 1 else "sequence"
            LOG.warning("drafting ends for %s %s: %s", many, ", ".join(new), why)


def learns_nothing(drafter: object) -> bool:
    """Whether a drafter does nothing when it sees a step."""
    return isinstance(drafter, TextOnlyDrafter) and type(drafter).observe is TextOnlyDrafter.observe


def describe_failure(error: Exception) -> str:
    """An error on one line, cut."""
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
