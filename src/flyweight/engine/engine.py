"""The loop's body: schedule, run, verify, commit, draft.

Invariant: one call of `step` is one step of every part, on the caller's thread; a token's text
never depends on drafts, batch-mates or memory pressure.  Knows tokens, not text; features
take part as hooks.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace

from flyweight.draft.drafter import Drafter
from flyweight.draft.tree import ROOT
from flyweight.engine.batch import build, list_moves
from flyweight.engine.beams import BeamSearches
from flyweight.engine.drafts import Drafts
from flyweight.engine.external import ExternalCache
from flyweight.engine.grammars import Grammars
from flyweight.engine.hook import Hook, RowMarks
from flyweight.engine.metrics import EngineMetrics, EngineStats
from flyweight.engine.processors import Processors
from flyweight.engine.rows import Mirostat, PoolingRows, PromptLogprobsHook, list_logprobs
from flyweight.engine.runner import ModelRunner
from flyweight.engine.scheduler import Scheduler
from flyweight.engine.sequence import Sequence
from flyweight.engine.step import UNLIMITED, Chunk, ComputeError, Plan, Produced, StepBudget
from flyweight.errors import RequestError
from flyweight.sampling.arrays import OptionColumns
from flyweight.types import Event, Request
from flyweight.validation.ranges import check_loaded
from flyweight.wire import Batch, Sampled

NOTHING = Produced(())
Planned = Callable[[Plan], None]
Hooked = list[tuple[Hook, list[int]]]  # hooks with the places of their chunks in a plan


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
        external: ExternalCache | None = None,
    ) -> None:
        self.scheduler, self.runner = scheduler, runner
        self.metrics, self.drafts = metrics, Drafts(drafter, scheduler, metrics)
        self.grammars, self.external = grammars or Grammars(), external
        self.beams, self.pooling = BeamSearches(scheduler), PoolingRows(scheduler)
        self.hooks: tuple[Hook, ...] = (
            PromptLogprobsHook(), Mirostat(), Processors(), self.grammars, self.beams, self.pooling,
        )  # fmt: skip
        self._hooked: dict[str, tuple[Hook, ...]] = {}  # of the requests under way that have some
        self.adapters = {name: i for i, name in enumerate(adapters)}
        self._columns = OptionColumns()
        self.on_close: Callable[[], None] | None = None
        self.computing = False  # within the runner, the long part of a step
        self._events: list[Event] = []  # of a step under way, or one that was interrupted
        self._plan = Plan()  # of the newest step
        self._sound = True  # False from an interrupt until all has been put back in order
        scheduler.pool.on_evict = self._note_eviction
        if external is not None:
            external.attach(scheduler)

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return self.scheduler.busy or self.grammars.busy or not self._sound

    def add_hook(self, hook: Hook) -> None:
        """Lets a hook of the caller's take part in requests that are added from now on."""
        self.hooks = (*self.hooks, hook)

    def add(self, request: Request) -> None:
        """Queues a request, once its grammar, where it has one, is compiled.  Raises `RequestError`
        for what could never be finished.
        """
        self.mend()
        check_loaded(request.adapter, self.adapters)
        if request.params.structured_outputs is None:
            self._queue(request)
        else:
            self.scheduler.judge(request)
            self.grammars.begin(request)
        self.metrics.requests += 1
        self.metrics.adapted += bool(request.adapter)
        self.metrics.constrained += request.params.structured_outputs is not None

    def _queue(self, request: Request) -> None:
        self.scheduler.judge(request)  # refused before anything changes
        self._sound = False
        hooks = tuple(hook for hook in self.hooks if hook.wants(request))
        if hooks:
            self._hooked[request.id] = hooks
        self.scheduler.add(request)
        self._sound = True

    def abort(self, id: str, index: int | None = None) -> list[Event]:
        """Ends a request, or one choice of it, at once; an unknown id is no error."""
        events = self.grammars.cancel(id, index) or self._end(id, index)
        self.metrics.aborted += len(events)
        return events

    def stop(self, id: str, index: int) -> None:
        """Ends a choice at a stop string."""
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
                f"choice {index} of request {id!r} cannot be forked; unfinished choices that "
                f"sample tokens: {live_ids}"
            )
        self._sound = False
        new = self.scheduler.fork(found)
        self._sound = True
        return new.index

    def step(self, budget: StepBudget = UNLIMITED, planned: Planned | None = None) -> list[Event]:
        """Computes one plan within `budget` and returns what it produced; `planned` is called with
        the plan before.  Raises `ComputeError` where the computation raised.  Where a step is
        interrupted, every sequence is computed again by later steps, and `take_events` returns
        those that were not returned.
        """
        self.mend()
        self._events += self._queue_compiled()
        self.drafts.begin()
        self._sound = False
        if self.external is not None:
            self.external.restore(self.scheduler)
        plan = self._plan = self.scheduler.schedule(budget)
        if plan.chunks:
            hooked = self._group_by_hook(plan)
            try:
                if planned is not None:
                    planned(plan)
                batch, sampled, produced = self._compute(plan, hooked, budget)
            except MemoryError:
                raise
            except Exception as error:
                raise ComputeError from error
            self._commit(plan, hooked, produced, sampled)
            self.drafts.propose(plan, batch, sampled, self._cut)
        self._sound = True
        return self.take_events()

    def reset_prefix_cache(self) -> int:
        """Forgets what was computed, here and in the external cache; returns how many blocks."""
        self.mend()
        if self.external is not None:
            self.external.reset()
        return self.scheduler.pool.forget()

    def close(self) -> None:
        """Ends the external cache, with what is computed in it, and what else was made for it."""
        if self.external is not None:
            self.external.close()
        if self.on_close is not None:
            self.on_close()

    def take_events(self) -> list[Event]:
        """What was produced and not returned yet."""
        events, self._events = self._events, []
        return events

    def _compute(
        self, plan: Plan, hooked: Hooked, budget: StepBudget
    ) -> tuple[Batch, Sampled, list[Produced]]:
        """The result of each chunk of a plan; changes no sequence."""
        marks = RowMarks(budget.mask_seconds)
        for hook, places in hooked:
            hook.mark([plan.chunks[i] for i in places], marks)
        block = self.scheduler.limits.block_size
        batch = build(plan, block, self.adapters, self._columns, marks.masks)
        if self.drafts.probs is not None:
            proposals = self.drafts.probs.list_proposals(plan)
            batch.sampling = replace(batch.sampling, proposals=proposals)
        sampled = self._run(plan, batch, marks)
        produced = self._verify(plan, sampled, marks)
        for hook, places in hooked:
            for i in places:
                produced[i] = hook.settle(plan.chunks[i], produced[i], sampled)
        return batch, sampled, produced

    def _commit(
        self, plan: Plan, hooked: Hooked, produced: list[Produced], sampled: Sampled
    ) -> None:
        """Applies a computed plan."""
        events = self.scheduler.commit(plan, produced)
        self._events += events
        for hook, places in hooked:
            own = hook.finish([(plan.chunks[i], produced[i]) for i in places], sampled)
            self._events += own
            events += own
        self.metrics.count(plan, events)
        self.drafts.add_speedup(events)
        self._forget([(event.id, event.index) for event in events if event.finish])
        self.drafts.forget([(seq.request.id, seq.index) for seq in plan.preempted])

    def _group_by_hook(self, plan: Plan) -> Hooked:
        """Which chunks of a plan each hook takes part in, in the order of hooks."""
        if not self._hooked:
            return []
        found: dict[Hook, list[int]] = {}
        for i, chunk in enumerate(plan.chunks):
            for hook in self._hooked.get(chunk.seq.request.id, ()):
                found.setdefault(hook, []).append(i)
        return [(hook, found[hook]) for hook in self.hooks if hook in found]

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
        self._sound = False
        for hook in self._hooked.get(id, ()):
            hook.abort(id)
        events = self.scheduler.abort(id, index)
        self._forget([(event.id, event.index) for event in events])
        self._sound = True
        return events

    def _note_eviction(self, block: int, key: bytes) -> None:
        self.metrics.evicted += 1
        self.scheduler.prefix.known.forget(key)
        if self.external is not None:
            self.external.evict(block, key)

    def _queue_compiled(self) -> list[Event]:
        """Queues the requests whose grammar is compiled; the end of those whose cannot be."""
        if not self.grammars.busy:
            return []
        if not self.scheduler.busy:
            self.grammars.wait()
        events: list[Event] = []
        for request, error in self.grammars.take_ready():
            try:
                if error is None:
                    self._queue(request)
                    continue
            except RequestError as refusal:
                error = refusal
            events += self.grammars.refuse(request, error)
        return events

    def mend(self) -> None:
        """Puts scheduler and pool in order after an interrupt at any point."""
        if self._sound:
            return
        for hook in self.hooks:
            hook.recover()
        self.scheduler.recover()
        self._sound = True
        left = [*self.scheduler.waiting, *(chunk.seq for chunk in self._plan.chunks)]
        ended = [(id, 0) for id in self._hooked if id not in self.scheduler.by_id]
        self._forget([(seq.request.id, seq.index) for seq in left] + ended)

    def _run(self, plan: Plan, batch: Batch, marks: RowMarks) -> Sampled:
        self.computing = True
        try:
            copies = list_moves(plan, self.scheduler.limits.block_size)
            self.drafts.calls.copy(copies)
            ticket = self.runner.submit(batch, copies, marks.edits, marks.reads)
            return self.runner.wait(ticket)
        finally:
            self.computing = False

    def _verify(self, plan: Plan, sampled: Sampled, marks: RowMarks) -> list[Produced]:
        """The tokens each chunk's rows drew, up to the first that no draft foresaw; none where a
        row has an error, or is to be computed again.
        """
        drawn: list[int] = sampled.tokens.tolist()
        marks.errors |= {edit.row: edit.error for edit in marks.edits if edit.error}
        produced: list[Produced] = []
        for chunk in plan.chunks:
            first = chunk.drawn.start
            if not chunk.drawn:
                produced.append(NOTHING)
            elif first in marks.errors or first in marks.again:
                error, again = marks.errors.get(first), first in marks.again
                produced.append(Produced((), error=error, again=again))
            else:
                produced.append(self._accept(chunk, drawn, sampled))
        return produced

    def _accept(self, chunk: Chunk, drawn: list[int], sampled: Sampled) -> Produced:
        """The accepted part of what a chunk's rows drew."""
        rows, seq = chunk.drawn, chunk.seq
        own, accepted = drawn[rows.start : rows.stop], ROOT
        found: Seq[int] = range(rows.start, rows.start + 1)
        if len(own) > 1 and seq.parents is not None:
            path = self.drafts.accept_path(seq, own)
            found = [rows.start, *(rows.start + 1 + i for i in path)]
            own = [drawn[row] for row in found]
            accepted = path[-1] if path else ROOT
        elif len(own) > 1:
            own = self.drafts.accept(seq.draft, own)
            found = range(rows.start, rows.start + len(own))
        logprobs = list_logprobs(seq.options.best, sampled, found)
        return Produced(own, logprobs, accepted=accepted)

    def _cut(self, seq: Sequence, draft: list[int]) -> list[int]:
        for hook in self._hooked.get(seq.request.id, ()):
            draft = hook.cut(seq, draft) if draft else draft
        return draft

    def _forget(self, ids: Seq[tuple[str, int]]) -> None:
        """Lets hooks and drafter forget sequences that ended or start over."""
        live = self.scheduler.by_id
        for id, index in ids:
            for hook in self._hooked.get(id, ()):
                hook.forget(id, index, ended=id not in live)
        self.drafts.forget(ids)
        for id, _ in ids:
            if id not in live:
                self._hooked.pop(id, None)
