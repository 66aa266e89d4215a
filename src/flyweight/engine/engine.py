"""The loop's body: schedule, run, verify, commit, guess.

Invariant: one call of `step` is one step of every part, on the caller's thread; a token's text
never depends on drafts, batch-mates or memory pressure.  Knows tokens, not text, and the `Drafter`
protocol, never a concrete one.
"""

from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Protocol

from flyweight.draft.drafter import Ask, Drafter
from flyweight.engine.batch import build, moves
from flyweight.engine.metrics import Metrics, Stats
from flyweight.engine.runner import Ticket
from flyweight.engine.scheduler import Scheduler
from flyweight.engine.sequence import Chunk, Plan, Produced, Sequence
from flyweight.sampling.verify import accept
from flyweight.types import Event, Request, TokenLogprobs
from flyweight.wire import I32, Batch, Sampled


class Runs(Protocol):
    """What the engine needs of a runner."""

    def submit(self, batch: Batch, moves: tuple[I32, I32] | None = None) -> Ticket: ...
    def wait(self, ticket: Ticket) -> Sampled: ...


class Engine:
    """Requests in, events out."""

    def __init__(
        self, scheduler: Scheduler, runner: Runs, drafter: Drafter | None, metrics: Metrics
    ) -> None:
        self.scheduler, self.runner = scheduler, runner
        self.drafter, self.metrics = drafter, metrics
        scheduler.pool.on_evict = metrics.evict

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return self.scheduler.busy

    def add(self, request: Request) -> None:
        """Queues a request.  Raises `RequestError` for what could never be finished."""
        self.scheduler.add(request)
        self.metrics.requests += 1

    def abort(self, id: str, index: int | None = None) -> list[Event]:
        """Ends a request, or one choice of it, at once; an unknown id is no error."""
        events = self.scheduler.abort(id, index)
        self._forget([(event.id, event.index) for event in events])
        self.metrics.aborted += len(events)
        return events

    def step(self) -> list[Event]:
        """Computes one plan and returns what it produced.  Where that is interrupted, the plan's
        sequences are computed again by later steps.
        """
        plan = self.scheduler.schedule()
        if not plan.chunks:
            return []
        try:
            block_size = self.scheduler.limits.block_size
            batch = build(plan, block_size)
            sampled = self.runner.wait(self.runner.submit(batch, moves(plan, block_size)))
            events = self.scheduler.commit(plan, self._verify(plan, sampled))
        except BaseException:
            self.scheduler.rollback(plan)
            raise
        self._count(plan, events)
        ended = [(event.id, event.index) for event in events if event.finish]
        self._forget(ended + [(seq.request.id, seq.index) for seq in plan.preempted])
        if self.drafter is not None:
            self.drafter.observe(batch, {})
            self._draft(self.drafter)
        return events

    def stats(self) -> Stats:
        pool = self.scheduler.pool
        return Stats(
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            blocks=pool.blocks,
            free_blocks=len(pool.free),
            cached_blocks=sum(1 for block in pool.free if pool.hash_of[block] is not None),
            totals=replace(self.metrics),
        )

    def _verify(self, plan: Plan, sampled: Sampled) -> list[Produced]:
        """The tokens each chunk's rows drew, up to the first that no guess foresaw."""
        drawn: list[int] = sampled.tokens.tolist()
        produced, row = [], 0
        for chunk in plan.chunks:
            own = drawn[row : row + chunk.rows]
            if chunk.rows > 1:
                own = accept(chunk.seq.draft[: chunk.rows - 1], own)
                self.metrics.proposed += chunk.rows - 1
                self.metrics.accepted += len(own) - 1
            produced.append(Produced(own, _logprobs(chunk, sampled, row, len(own))))
            row += chunk.rows
        return produced

    def _draft(self, drafter: Drafter) -> None:
        """Fills the drafts of sequences about to decode."""
        most = self.scheduler.limits.draft_tokens
        seqs: list[Sequence] = []
        asks: list[Ask] = []
        for seq in self.scheduler.running:
            limit = min(most, seq.room - 1)  # the target adds one token of its own
            if limit > 0 and seq.computed + 1 == len(seq.tokens):
                seqs.append(seq)
                asks.append(Ask((seq.request.id, seq.index), seq.tokens, seq.table.blocks, limit))
        for seq, ask, draft in zip(seqs, asks, drafter.propose(asks), strict=True):
            assert draft.parents is None, "tree drafts are not verified yet"
            seq.draft = list(draft.tokens[: ask.limit])

    def _forget(self, ids: Seq[tuple[str, int]]) -> None:
        """Tells the drafter of sequences that ended or lost their blocks."""
        if self.drafter is not None:
            for id in ids:
                self.drafter.forget(id)

    def _count(self, plan: Plan, events: Seq[Event]) -> None:
        m = self.metrics
        m.steps += 1
        m.preempted += len(plan.preempted)
        for chunk in plan.chunks:
            m.computed += chunk.count
            m.copied += chunk.copy is not None
        for event in events:
            m.produced += len(event.tokens)
            if event.finish:
                m.finished += 1
                m.cached += 0 if event.index else event.cached  # choices share one prompt


def _logprobs(chunk: Chunk, sampled: Sampled, row: int, count: int) -> tuple[TokenLogprobs, ...]:
    """Raw log-probabilities of the rows row:row+count, if the request wants them."""
    best = chunk.seq.request.params.logprobs
    if best is None:
        return ()
    return tuple(
        TokenLogprobs(
            chosen=float(sampled.logprobs[r]),
            rank=int(sampled.ranks[r]),
            top_ids=tuple(sampled.top_ids[r, :best].tolist()),
            top=tuple(sampled.top_logprobs[r, :best].tolist()),
        )
        for r in range(row, row + count)
    )
