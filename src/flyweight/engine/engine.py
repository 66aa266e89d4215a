"""The loop's body: schedule, run, verify, commit, guess.

Invariant: one call of `step` is one step of every part, on the caller's thread; a token's text
never depends on drafts, batch-mates or memory pressure.  Knows tokens, not text, and the `Drafter`
protocol, never a concrete one.
"""

from array import array
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Protocol

from flyweight.draft.drafter import Drafter, DraftRequest
from flyweight.engine.batch import build, moves
from flyweight.engine.beams import BeamSearches
from flyweight.engine.grammars import Grammars, StepMasks
from flyweight.engine.metrics import EngineMetrics, EngineStats
from flyweight.engine.pooling import PoolingRows
from flyweight.engine.processors import LogitsEdit, edits
from flyweight.engine.runner import Ticket
from flyweight.engine.scheduler import Scheduler
from flyweight.engine.sequence import Sequence
from flyweight.engine.step import UNLIMITED, Chunk, Plan, Produced, StepBudget
from flyweight.errors import RequestError
from flyweight.params.structured import NAME
from flyweight.sampling.arrays import OptionColumns
from flyweight.sampling.verify import accept
from flyweight.types import ALL, Event, Finish, Request, TokenLogprobs
from flyweight.validation.ranges import loaded
from flyweight.wire import I32, Batch, Sampled


class ModelRunner(Protocol):
    """What the engine needs of a runner."""

    def submit(
        self, batch: Batch, moves: tuple[I32, I32] | None = None, edits: Seq[LogitsEdit] = ()
    ) -> Ticket: ...
    def wait(self, ticket: Ticket) -> Sampled: ...


class Engine:
    """Requests in, events out."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        drafter: Drafter | None,
        metrics: EngineMetrics,
        adapters: Seq[str] = (),
        grammars: Grammars | None = None,
    ) -> None:
        self.scheduler, self.runner = scheduler, runner
        self.drafter, self.metrics = drafter, metrics
        self.pooling, self.beams = PoolingRows(), BeamSearches(scheduler)
        self.grammars = grammars or Grammars()
        self.adapters = {name: i for i, name in enumerate(adapters)}
        self.places: list[int] = []  # see `_judged`
        self._columns = OptionColumns()
        self.computing = False  # within the runner, the long part of a step
        self.planned: Callable[[Plan], None] = _unwatched  # hears of a plan before it is computed
        self.events: list[Event] = []  # of a step under way, or one that was interrupted
        self._plan = Plan()  # of the newest step
        self._sound = True  # False from an interrupt until all has been put back in order
        scheduler.pool.on_evict = self._evicted

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return self.scheduler.busy or self.grammars.busy or not self._sound

    def add(self, request: Request) -> None:
        """Queues a request, once its grammar, where it has one, is compiled.  Raises `RequestError`
        for what could never be finished.
        """
        self.mend()
        loaded(request.adapter, self.adapters)
        if request.params.structured_outputs is None:
            self._queue(request)
        else:
            self.scheduler.judge(request)
            self.grammars.begin(request)
        self.metrics.requests += 1
        self.metrics.adapted += bool(request.adapter)
        self.metrics.constrained += request.params.structured_outputs is not None

    def _queue(self, request: Request) -> None:
        self._sound = False
        try:
            self.scheduler.add(request)
        except RequestError:  # refused before anything changed
            self._sound = True
            raise
        self._sound = True

    def abort(self, id: str, index: int | None = None) -> list[Event]:
        """Ends a request, or one choice of it, at once; an unknown id is no error."""
        events = self.grammars.abort(id, index) or self._end(id, index)
        self.metrics.aborted += len(events)
        return events

    def stop(self, id: str, index: int) -> None:
        """Ends a choice whose reader has found its end (a stop string)."""
        self.metrics.finished += len(self._end(id, index))

    def fork(self, id: str, index: int = 0) -> int:
        """Lets a choice go two ways: a new one goes on from where it is, on the same blocks and
        with draws of its own.  Returns the new choice's index.
        """
        self.mend()
        live = self.scheduler.by_id.get(id, [])
        found = next((seq for seq in live if seq.index == index), None)
        if found is None or found.request.beam or found.request.pooling:
            live_ids = ", ".join(str(seq.index) for seq in live) or "none"
            raise RequestError(
                f"choice {index} of request {id!r} cannot be forked; choices that draw tokens and "
                f"are unfinished: {live_ids}",
                "id",
            )
        self._sound = False
        new = self.scheduler.fork(found)
        self._sound = True
        return new.index

    def step(self, budget: StepBudget = UNLIMITED) -> list[Event]:
        """Computes one plan within `budget` and returns what it produced.  Where that is
        interrupted, every sequence is computed again by later steps, and `events` are those that
        were not returned.
        """
        self.mend()
        self.events += self._compiled()
        self._sound = False
        plan = self._plan = self.scheduler.schedule(budget)
        if plan.chunks:
            self._compute(plan, budget)
        self._sound = True
        events, self.events = self.events, []
        return events

    def _compute(self, plan: Plan, budget: StepBudget) -> None:
        """One step's work, from its plan to the guesses for the next."""
        self.planned(plan)
        marks = self.grammars.marks(plan, budget.mask_seconds)
        block = self.scheduler.limits.block_size
        batch = build(plan, block, self.adapters, self._columns, marks.masks)
        own = edits(plan)
        sampled = self._run(plan, batch, own)
        marks.errors |= {edit.row: edit.error for edit in own if edit.error}
        produced = self._verify(plan, sampled, marks)
        events = self.scheduler.commit(plan, produced)
        self.events += events
        more = self._pool(plan, sampled) + self.beams.take(plan, produced)
        self.events += more
        self._count(plan, events + more)
        self._forget([(event.id, event.index) for event in events + more if event.finish])
        self._forget([(seq.request.id, seq.index) for seq in plan.preempted], blocks=True)
        if self.drafter is not None:
            self.drafter.observe(batch, {})
            self._draft(self.drafter)

    def stats(self) -> EngineStats:
        pool = self.scheduler.pool
        return EngineStats(
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            blocks=pool.blocks,
            free_blocks=len(pool.free),
            cached_blocks=sum(1 for block in pool.free if pool.hash_of[block] is not None),
            totals=replace(self.metrics),
        )

    def _end(self, id: str, index: int | None) -> list[Event]:
        self.mend()
        width = max((seq.request.width for seq in self.scheduler.by_id.get(id, ())), default=1)
        self._sound = False
        self.beams.abort(id)
        events = self.scheduler.abort(id, index)
        self.beams.forget(id)
        self._sound = True
        self._forget([(event.id, event.index) for event in events])
        if width > 1:  # a search ends as a whole, whatever was live of it
            events = [replace(events[0], index=i) for i in range(width)]
        return events

    def _evicted(self, block: int, key: bytes) -> None:
        self.metrics.evicted += 1
        self.scheduler.prefix.known.lose(key)

    def _compiled(self) -> list[Event]:
        """Queues the requests whose grammar is compiled; the end of those whose cannot be."""
        if not self.grammars.busy:
            return []
        if not self.scheduler.busy:
            self.grammars.wait()
        events: list[Event] = []
        for request, error in self.grammars.ready():
            try:
                if not error:
                    self._queue(request)
                    continue
            except RequestError as refusal:
                error = str(refusal)
                self.grammars.forget(request.id, 0, ended=True)
            events += [
                Event(request.id, i, (), finish=Finish.ERROR, error=error, field=NAME)
                for i in range(request.params.n)
            ]
        return events

    def mend(self) -> None:
        """Puts scheduler and pool in order after an interrupt, wherever it fell."""
        if self._sound:
            return
        self.beams.recover()
        self.scheduler.recover()
        self._sound = True
        left = [*self.scheduler.waiting, *(chunk.seq for chunk in self._plan.chunks)]
        self._forget([(seq.request.id, seq.index) for seq in left])

    def _run(self, plan: Plan, batch: Batch, own: Seq[LogitsEdit]) -> Sampled:
        self.computing = True
        try:
            copies = moves(plan, self.scheduler.limits.block_size)
            return self.runner.wait(self.runner.submit(batch, copies, own))
        finally:
            self.computing = False

    def _verify(self, plan: Plan, sampled: Sampled, marks: StepMasks) -> list[Produced]:
        """The tokens each chunk's rows drew, up to the first that no guess foresaw; none where a
        row has an error, or is to be drawn again.
        """
        drawn: list[int] = sampled.tokens.tolist()
        produced, row = [], 0
        for chunk in plan.chunks:
            if chunk.pooled:
                produced.append(Produced(()))
                continue
            params, first = chunk.seq.request.params, row + chunk.scored
            scores: tuple[TokenLogprobs, ...] = ()
            if chunk.scored:
                scores = _logprobs(params.prompt_logprobs, sampled, range(row, first))
            row += chunk.rows
            own = drawn[first:row]
            if own and (first in marks.errors or first in marks.later):
                error, again = marks.errors.get(first, ""), first in marks.later
                produced.append(Produced((), scores=scores, error=error, again=again))
                continue
            if len(own) > 1:
                own = self._judged(chunk.seq.draft, own)
            error, over = "", False
            if own and chunk.seq.options.constrained:
                error, over = self.grammars.take(chunk.seq, own)
            if error:
                produced.append(Produced((), scores=scores, error=error))
                continue
            best = chunk.seq.options.best
            logprobs = _logprobs(best, sampled, range(first, first + len(own)))
            own = own if chunk.seq.request.beam is None else []  # the search decides
            mu = _state(chunk, sampled, first)
            produced.append(Produced(own, logprobs, mu, scores, over=over))
        return produced

    def _judged(self, draft: Seq[int], drawn: list[int]) -> list[int]:
        """What stands of tokens drawn after guesses.  `places` counts how often a guess stood, by
        its place in the draft.
        """
        guesses = len(drawn) - 1
        stood = accept(draft[:guesses], drawn)
        self.metrics.drafts += 1
        self.metrics.proposed += guesses
        self.metrics.accepted += len(stood) - 1
        self.places += [0] * (guesses - len(self.places))
        for place in range(len(stood) - 1):
            self.places[place] += 1
        return stood

    def _pool(self, plan: Plan, sampled: Sampled) -> list[Event]:
        """Folds hidden states into their requests' vectors; ends those whose last is there."""
        if sampled.hidden is None:
            return []
        events: list[Event] = []
        row = 0
        for chunk in (c for c in plan.chunks if c.pooled):
            seq, rows = chunk.seq, sampled.hidden[row : row + chunk.rows]
            row += chunk.rows
            vector = self.pooling.take(seq, chunk.start, rows)
            if vector is not None:
                event = self.scheduler.end(seq, Finish.STOP)
                event.vector = vector
                events.append(event)
        return events

    def _draft(self, drafter: Drafter) -> None:
        """Fills the drafts of sequences about to decode."""
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
        for seq, ask, draft in zip(seqs, asks, drafter.propose(asks), strict=True):
            assert draft.parents is None, "tree drafts are not verified yet"
            seq.draft = list(draft.tokens[: ask.limit])
            if seq.draft and seq.options.constrained:
                seq.draft = self.grammars.cut(seq, seq.draft)

    def _forget(self, ids: Seq[tuple[str, int]], *, blocks: bool = False) -> None:
        """Tells pooling and drafter of sequences that ended or lost their blocks; grammars, which
        hold nothing of these, only of the first.
        """
        for name, index in ids:
            self.pooling.forget(name)
            if not blocks:
                self.grammars.forget(name, index, ended=name not in self.scheduler.by_id)
        if self.drafter is not None:
            for id in ids:
                self.drafter.forget(id)

    def _count(self, plan: Plan, events: Seq[Event]) -> None:
        m = self.metrics
        m.steps += 1
        m.preempted += len(plan.preempted)
        m.cached += plan.cached
        m.shared += len(plan.chunks) > 1
        m.prefill_only += plan.prefill_only
        for chunk in plan.chunks:
            begins = chunk.start == chunk.seq.cached
            m.chunked += begins and chunk.start + chunk.count < chunk.seq.prompt
            m.computed += chunk.count
            m.copied += chunk.copy is not None
        for event in events:
            m.produced += len(event.tokens)
            m.finished += event.finish is not None


def _unwatched(plan: Plan) -> None: ...


def _state(chunk: Chunk, sampled: Sampled, row: int) -> float | None:
    """Mirostat's state after a row, where the sequence keeps one and the row was drawn."""
    kept = chunk.rows > chunk.scored and chunk.seq.request.params.mirostat
    return float(sampled.mu[row]) if kept and sampled.mu is not None else None


def _logprobs(best: int | None, sampled: Sampled, rows: range) -> tuple[TokenLogprobs, ...]:
    """Raw log-probabilities of some rows, and of the `best` at each, if they are wanted."""
    if best is None:
        return ()
    if best == ALL:  # packed: there are as many as the vocabulary has tokens
        return tuple(
            TokenLogprobs(
                chosen=float(sampled.logprobs[r]),
                rank=int(sampled.ranks[r]),
                top_ids=array("i", sampled.top_ids[r].tobytes()),
                top=array("f", sampled.top_logprobs[r].tobytes()),
            )
            for r in rows
        )
    return tuple(
        TokenLogprobs(
            chosen=float(sampled.logprobs[r]),
            rank=int(sampled.ranks[r]),
            top_ids=tuple(sampled.top_ids[r, :best].tolist()),
            top=tuple(sampled.top_logprobs[r, :best].tolist()),
        )
        for r in rows
    )
