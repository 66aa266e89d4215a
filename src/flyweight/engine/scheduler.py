"""Answers one question per sequence: how many more of its known tokens are computed in this step?

Invariant: a step exceeds no limit, and no decode skips two steps in succession.  In the other steps
the oldest running sequence advances, so work always ends.  Standard library only: no arrays, no
model, no text.
"""

import time
from array import array
from bisect import insort
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from itertools import count
from math import inf

from flyweight.config import Limits
from flyweight.engine import capacity
from flyweight.engine.outcome import aborted, event_of, trim
from flyweight.engine.prefix import PrefixCache
from flyweight.engine.sequence import Sequence, SequenceState
from flyweight.engine.step import UNLIMITED, Load, Plan, Produced, StepBudget
from flyweight.errors import RequestError
from flyweight.kv.blocks import BlockPool, Copy, Table
from flyweight.types import Event, Finish, Request


def _rank(seq: Sequence) -> tuple[int, int, int]:
    return seq.rank


class Scheduler:
    """Owns every sequence and the pool.  `running` and `waiting` are kept in rank order: priority,
    then arrival, then choice.  For `fingerprint` and `secret` see `PrefixCache`.
    """

    def __init__(
        self,
        limits: Limits,
        pool: BlockPool,
        *,
        fingerprint: str = "",
        secret: bytes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits, self.pool, self.clock = limits, pool, clock
        self.prefix = PrefixCache(pool, limits.prefix_caching, fingerprint, secret)
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.by_id: dict[str, list[Sequence]] = {}
        self._skipped = False  # whether decodes skipped the newest step
        self._arrivals = count()

    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, request: Request) -> None:
        """Queues a request's choices.  Raises `RequestError` for what could never be finished."""
        self.judge(request)
        order = next(self._arrivals)
        root = self.prefix.root(request)
        choices: list[Sequence] = []
        for i in range(request.params.n):
            rank = (request.priority, order, i)
            leader = choices[0] if choices else None
            tokens = array("i", request.tokens)
            choices.append(Sequence(request, i, rank, Table(root), tokens, leader))
        for seq in choices:
            insort(self.waiting, seq, key=_rank)
        self.by_id[request.id] = choices

    def judge(self, request: Request) -> None:
        """Raises `RequestError` for what could never be finished."""
        if request.id in self.by_id:
            raise RequestError(f"id = {request.id!r} is in use by an unfinished request", "id")
        capacity.check(request, self.limits)

    def abort(self, id: str, index: int | None = None) -> list[Event]:
        """Ends a request's unfinished choices, or one of them, in whatever state; their blocks are
        free at once.  A search ends as a whole.
        """
        live = self.by_id.get(id, ())
        ended = [s for s in live if index is None or s.index == index or s.request.beam]
        for seq in ended:
            self._finish(seq)
        return aborted(ended)

    def schedule(self, budget: StepBudget = UNLIMITED) -> Plan:
        """Running sequences oldest first, decodes before prefill chunks, then admissions; one plan
        may follow another before it is committed.
        """
        ready = [s for s in self.running if not s.in_flight and s.computed < len(s.tokens)]
        plan = self._prefill_only(ready, budget.prefill_tokens)
        return plan if plan.chunks else self._mixed(ready, budget.tokens)

    def load(self) -> Load:
        """What is known of the next step before it is planned.  Waiting prompts are startable as
        far as seats and blocks suffice and nothing of better priority is decoding.
        """
        decoding = any(seq.decoding for seq in self.running)
        startable = 0
        if self.waiting:
            tokens = capacity.startable(self.running, self.waiting, self._free_seats())
            startable = min(tokens, len(self.pool.free) * self.pool.block_size)
        return Load(len(self.running), decoding, startable, capacity.started(self.running))

    def fork(self, seq: Sequence) -> Sequence:
        """A new choice of the same request that goes on from where `seq` is, on the same blocks:
        who writes to a shared one first takes a copy.  Without a seat, or at the prompt, it waits,
        and finds what was published.
        """
        assert not seq.in_flight, "a fork within a step"
        choices = self.by_id[seq.request.id]
        taken = {choice.index for choice in choices}
        index = next(i for i in count() if i not in taken)
        table = Table(seq.table.root, hashes=list(seq.table.hashes))
        new = Sequence(seq.request, index, (*seq.rank[:2], index), table, seq.tokens[:])
        new.cached, new.scheduled, new.first, new.mu = seq.cached, seq.scheduled, seq.first, seq.mu
        choices.append(new)
        seat = seq.request.width > 1 or self._free_seats() > 0
        if seq.state is not SequenceState.RUNNING or seq.computed < seq.prompt - 1 or not seat:
            insort(self.waiting, new, key=_rank)
            return new
        held = -(-seq.computed // self.pool.block_size)
        self.pool.share(table, seq.table.blocks[:held])
        table.published = min(seq.table.published, held)
        new.computed, new.state = seq.computed, SequenceState.RUNNING
        insort(self.running, new, key=_rank)
        return new

    def drop(self, seq: Sequence) -> None:
        """Ends a sequence that nobody waits for."""
        self._finish(seq)

    def restart(self, seq: Sequence, answers: Seq[Seq[int]]) -> list[Sequence]:
        """Puts new sequences, one an answer so far, in the place of a request's: before `recover`,
        which starts them.
        """
        made: list[Sequence] = []
        for i, answer in enumerate(answers):
            tokens = array("i", [*seq.request.tokens, *answer])
            made.append(Sequence(seq.request, i, (*seq.rank[:2], i), Table(seq.table.root), tokens))
            made[-1].cached, made[-1].scheduled = seq.cached, seq.scheduled
            made[-1].first = seq.first
        self.by_id[seq.request.id] = made
        return made

    def commit(self, plan: Plan, produced: Seq[Produced]) -> list[Event]:
        """Takes a step's accepted tokens, one entry per chunk: appends, publishes full blocks,
        finishes, frees.
        """
        events: list[Event] = []
        now = self.clock()
        for chunk, out in zip(plan.chunks, produced, strict=True):
            seq = chunk.seq
            if not seq.in_flight:
                continue  # aborted since
            seq.in_flight = False
            seq.draft = []
            finish = None
            seq.scored += len(chunk.scored)
            if out.tokens:
                out, finish = trim(seq, out)
                seq.mu = seq.mu if out.mu is None else out.mu
                seq.tokens.extend(out.tokens)
                seq.computed = len(seq.tokens) - 1
                seq.first, seq.last = seq.first or now, now
                events.append(event_of(seq, out, finish))
            else:
                seq.computed = len(seq.tokens) - 1 if out.again else chunk.start + chunk.count
                finish = Finish.ERROR if out.error else None
                if chunk.scored or finish:
                    events.append(event_of(seq, out, finish))
            self.prefix.publish(seq)
            if finish:
                self._finish(seq)
        return events

    @contextmanager
    def admitting_only(self, id: str) -> Iterator[None]:
        """While it lasts, no request but this one is admitted."""
        parked = [seq for seq in self.waiting if seq.request.id != id]
        self.waiting = [seq for seq in self.waiting if seq.request.id == id]
        try:
            yield
        finally:
            self.waiting = sorted([*self.waiting, *parked], key=_rank)

    def end(self, seq: Sequence, finish: Finish) -> Event:
        """Ends a held sequence; its blocks are free at once."""
        self._finish(seq)
        return event_of(seq, Produced(()), finish)

    def recover(self) -> None:
        """Starts every sequence over after a step that was interrupted anywhere: who knows what was
        written.  What they had produced stays, and published blocks may still be found.
        """
        self.pool.recover()
        self.running, self.waiting = [], []
        for seq in [seq for choices in self.by_id.values() for seq in choices]:
            seq.table = Table(seq.table.root, hashes=seq.table.hashes)
            seq.computed, seq.draft, seq.in_flight = 0, [], False
            seq.state = SequenceState.WAITING
            insort(self.waiting, seq, key=_rank)

    # --- kinds of steps ---

    def _mixed(self, ready: list[Sequence], tokens: int) -> Plan:
        """Decodes and prompts; where all that run are held, the youngest is preempted."""
        plan = Plan()
        decodes = [seq for seq in ready if seq.decoding]
        left = min(max(tokens, len(ready)), self.limits.max_num_batched_tokens)
        left -= self._decodes(decodes, left - len(ready), plan)
        self._prompts(ready, left, plan)
        while not plan.chunks and self._stuck():
            self._preempt(self.running[-1], plan)
            self._admit(left, plan)
        return plan

    def _prefill_only(self, ready: list[Sequence], tokens: int) -> Plan:
        """Prompts whose priority is not worse than that of any decode; empty where no decode may
        be skipped, or no prompt can be computed.
        """
        plan = Plan()
        decoding = [s.request.priority for s in ready if s.decoding] if tokens else []
        if decoding and not self._skipped:
            limit = min(tokens, self.limits.max_num_batched_tokens)
            self._prompts(ready, limit, plan, min(decoding))
        plan.prefill_only = self._skipped = bool(plan.chunks)
        return plan

    # --- one sequence's share of a step ---

    def _decodes(self, decodes: list[Sequence], spare: int, plan: Plan) -> int:
        """Plans the next token of each, and with `spare` tokens their drafts; returns the tokens
        used.
        """
        total = 0
        for seq in decodes:
            if seq.state is SequenceState.RUNNING:
                used = self._decode(seq, spare, plan)
                total += used
                spare -= max(0, used - 1)
        return total

    def _decode(self, seq: Sequence, spare: int, plan: Plan) -> int:
        """Plans the next token, and guesses after it as far as budget and blocks allow; returns the
        tokens used.
        """
        start, count = seq.computed, 1 + min(len(seq.draft), spare)
        while self.pool.need(seq.table, start, start + count) > len(self.pool.free):
            if count > 1:
                count = 1  # guesses are not worth anybody's blocks
                continue
            victim = next(s for s in reversed(self.running) if not s.in_flight)
            self._preempt(victim, plan)
            if victim is seq:
                return 0
        copy = self.pool.grow(seq.table, start, start + count)
        plan.add(seq, start, count, copy, count)
        seq.in_flight = True
        return count

    def _prompts(self, ready: list[Sequence], budget: int, plan: Plan, worst: float = inf) -> None:
        """Shares the budget among prompts that have begun, then among those that may; none of a
        priority below `worst`.
        """
        for seq in ready:
            able = seq.state is SequenceState.RUNNING and not seq.decoding
            if budget and able and seq.request.priority <= worst:
                budget -= self._prefill(seq, budget, plan, None)
        if not plan.preempted:
            self._admit(budget, plan, worst)

    def _prefill(self, seq: Sequence, budget: int, plan: Plan, copy: Copy | None) -> int:
        """Plans as many known tokens as the budget allows; their blocks were taken at admission."""
        count = self._most(seq, budget, plan)
        if not count:
            return 0
        plan.add(seq, seq.computed, count, copy, seq.rows(count), seq.scores(count))
        seq.in_flight = True
        return count

    def _most(self, seq: Sequence, budget: int, plan: Plan) -> int:
        """The longest chunk that budget, `max_chunk` and the limits of rows allow."""
        count = min(len(seq.tokens) - seq.computed, budget, self.limits.max_chunk or budget)
        if seq.request.pooling is not None:
            count -= max(0, plan.hidden + seq.rows(count) - self.limits.hidden_rows)
        elif seq.unscored:
            count -= max(0, plan.scored + seq.rows(count) - self.limits.scored)
        return count

    # --- between waiting and running ---

    def _admit(self, budget: int, plan: Plan, worst: float = inf) -> None:
        """Admits in rank order until one does not fit, or is of a priority below `worst`; a choice
        whose leader is still at the prompt is passed over.
        """
        if not self.waiting:
            return
        at, room = 0, self._free_seats()
        while budget and at < len(self.waiting):
            seq = self.waiting[at]
            needs = self._seats(seq)
            if needs > room or seq.request.priority > worst:
                break
            if not _ready(seq):
                at += 1
                continue
            shared, valid = self.prefix.find(seq)
            if not self._fits(seq, shared, valid) or not self._most(seq, budget, plan):
                break
            del self.waiting[at]
            plan.cached += 0 if seq.scheduled or seq.leader else valid  # choices share one prompt
            copy = self._start(seq, shared, valid)
            room -= needs
            budget -= self._prefill(seq, budget, plan, copy)

    def _seats(self, seq: Sequence) -> int:
        return capacity.needed_seats(seq, self.by_id[seq.request.id])

    def _free_seats(self) -> int:
        return capacity.free_seats(self.running, self.limits.max_num_seqs)

    def _stuck(self) -> bool:
        """Whether all that run are held, and what they wait for waits for their blocks or seats:
        then the youngest gives way.
        """
        held = all(not s.in_flight and s.computed == len(s.tokens) for s in self.running)
        return bool(self.waiting and self.running) and held

    def _fits(self, seq: Sequence, shared: list[int], valid: int) -> bool:
        """Whether all known tokens find blocks, one more being left for each running sequence to
        grow into.
        """
        B = self.pool.block_size
        need = -(-len(seq.tokens) // B) - len(shared) + (valid % B > 0)
        return need + len(self.running) <= len(self.pool.free) - self.pool.unheld(shared)

    def _start(self, seq: Sequence, shared: list[int], valid: int) -> Copy | None:
        if seq.request.explain and not seq.scheduled:
            live = [s for group in self.by_id.values() for s in group]
            seq.reuse = self.prefix.explain(seq, live)
        self.pool.share(seq.table, shared)
        seq.computed, seq.state = valid, SequenceState.RUNNING
        seq.scheduled = seq.scheduled or self.clock()
        insort(self.running, seq, key=_rank)
        return self.pool.grow(seq.table, valid, len(seq.tokens))

    def _preempt(self, seq: Sequence, plan: Plan) -> None:
        """Back to waiting, to be computed again; what was published may still be found."""
        self.pool.release(seq.table)
        self.running.remove(seq)
        seq.computed, seq.draft, seq.state = 0, [], SequenceState.WAITING
        insort(self.waiting, seq, key=_rank)
        plan.preempted.append(seq)

    def _finish(self, seq: Sequence) -> None:
        (self.running if seq.state is SequenceState.RUNNING else self.waiting).remove(seq)
        self.prefix.end(seq)
        self.pool.release(seq.table)
        seq.state, seq.in_flight, seq.draft = SequenceState.FINISHED, False, []
        left = [s for s in self.by_id[seq.request.id] if s is not seq]
        if left:
            self.by_id[seq.request.id] = left
        else:
            del self.by_id[seq.request.id]


def _ready(seq: Sequence) -> bool:
    """Whether a choice may start: its leader's prompt is computed but for the last token, or was
    once.
    """
    leader = seq.leader
    return (
        leader is None
        or leader.state is SequenceState.FINISHED
        or leader.computed >= seq.prompt - 1
        or leader.generated > 0
    )
