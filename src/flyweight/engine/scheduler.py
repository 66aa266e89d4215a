"""Answers one question per sequence: how many more of its known tokens are computed in this step?

Invariant: a step exceeds no limit, and no decode skips two steps in succession.  In the other steps
the oldest running sequence advances, so work always ends.  Standard library only: no arrays, no
model, no text.
"""

from bisect import insort
from collections.abc import Sequence as Seq
from itertools import islice
from math import inf

from flyweight.draft.tree import Run, split_runs
from flyweight.engine import branches, capacity
from flyweight.engine.lifecycle import LiveSequences, find_order
from flyweight.engine.sequence import Sequence, SequenceState
from flyweight.engine.step import UNLIMITED, Load, Plan, Produced, StepBudget, make_event, trim
from flyweight.kv.blocks import Copy
from flyweight.types import Event, Finish


class Scheduler(LiveSequences):
    """Plans steps of the live sequences, and commits what came of them."""

    _skipped = False  # whether decodes skipped the newest step

    def schedule(self, budget: StepBudget = UNLIMITED) -> Plan:
        """Running sequences oldest first, decodes before prefill chunks, then admissions; one plan
        may follow another before it is committed.
        """
        decodes: list[Sequence] = []
        prompts: list[Sequence] = []
        for seq in self.running:
            if not seq.in_flight and seq.computed < len(seq.tokens):
                (decodes if seq.decoding else prompts).append(seq)
        plan = self._plan_prefill(decodes, prompts, budget.prefill_tokens)
        return plan if plan.chunks else self._plan_all(decodes, prompts, budget.tokens)

    def load(self) -> Load:
        """What is known of the next step before it is planned.  Waiting prompts are startable as
        far as seats and blocks suffice, nothing of better priority is decoding, and they do not
        wait for another's blocks.
        """
        decoding = any(seq.decoding for seq in self.running)
        startable = 0
        if self.waiting:
            tokens = capacity.count_startable(self.running, self._list_seated())
            startable = min(tokens, len(self.pool.free) * self.pool.block_size)
        return Load(len(self.running), decoding, startable, capacity.count_started(self.running))

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
            seq.draft, seq.parents = [], None
            branches.keep(self.pool, seq.table, seq.branches, out.accepted)
            finish = None
            seq.scored += len(chunk.scored)
            if out.tokens:
                out, finish = trim(seq, out)
                seq.mu = seq.mu if out.mu is None else out.mu
                seq.tokens.extend(out.tokens)
                seq.computed = len(seq.tokens) - 1
                self.pool.trim(seq.table, len(seq.tokens))  # what rejected drafts took
                seq.first, seq.last = seq.first or now, now
                events.append(make_event(seq, out, finish))
            else:
                seq.computed = (
                    len(seq.tokens) - 1
                    if out.again
                    else min(chunk.start + chunk.count, len(seq.tokens))
                )
                finish = Finish.ERROR if out.error else None
                if chunk.scored or finish:
                    events.append(make_event(seq, out, finish))
            self.prefix.publish(seq)
            if finish:
                self._finish(seq)
        return events

    # --- kinds of steps ---

    def _plan_all(self, decodes: list[Sequence], prompts: list[Sequence], tokens: int) -> Plan:
        """Decodes and prompts, within `tokens`; draft tokens have what these leave of the most that
        a step may have.  Where all that run are held, the youngest is preempted.
        """
        plan, most = Plan(), self.limits.max_num_batched_tokens
        left = min(max(tokens, len(decodes) + len(prompts)), most)
        spare = self._count_spare(decodes, prompts, left)
        used = self._plan_decodes(decodes, spare, plan)
        left = min(left - len(plan.chunks), most - used)
        self._plan_prompts(prompts, left, plan)
        while not plan.chunks and self._is_stuck():
            self._preempt(self.running[-1], plan)
            self._admit(left, plan)
        return plan

    def _count_spare(self, decodes: list[Sequence], prompts: list[Sequence], left: int) -> int:
        """Draft tokens for which there is room, if the step computes `left` others: prompts come
        first, as far as they can use their share.
        """
        if not any(seq.draft for seq in decodes):
            return 0
        share = left - len(decodes)
        wanted = sum(len(seq.tokens) - seq.computed for seq in prompts)
        if wanted < share and self.waiting:
            slots = (len(self.pool.free) - len(self.running)) * self.pool.block_size
            waiting = sum(len(seq.tokens) for seq in self._list_seated())
            wanted += max(0, min(slots, waiting))
        return self.limits.max_num_batched_tokens - len(decodes) - min(share, wanted)

    def _plan_prefill(self, decodes: list[Sequence], prompts: list[Sequence], tokens: int) -> Plan:
        """Prompts whose priority is not worse than that of any decode; empty where no decode may
        be skipped, or no prompt can be computed.
        """
        plan = Plan()
        if tokens and decodes and not self._skipped:
            limit = min(tokens, self.limits.max_num_batched_tokens)
            self._plan_prompts(prompts, limit, plan, min(seq.request.priority for seq in decodes))
        plan.prefill_only = self._skipped = bool(plan.chunks)
        return plan

    # --- one sequence's share of a step ---

    def _plan_decodes(self, decodes: list[Sequence], spare: int, plan: Plan) -> int:
        """Plans the next token of each, and with `spare` tokens their drafts; returns the tokens
        used.
        """
        total = 0
        for seq in decodes:
            if seq.state is SequenceState.RUNNING:
                used = self._plan_decode(seq, spare, plan)
                total += used
                spare -= max(0, used - 1)
        return total

    def _plan_decode(self, seq: Sequence, spare: int, plan: Plan) -> int:
        """Plans the next token, and draft tokens as far as budget and blocks allow; returns the
        tokens used.
        """
        start = seq.computed
        count, stop, runs = self._fit_draft(seq, spare)
        while self.pool.count_needed(seq.table, start, stop) > len(self.pool.free):
            if count > 1:
                count, stop, runs = 1, start + 1, []  # drafts never preempt a sequence
                continue
            victim = next(s for s in reversed(self.running) if not s.in_flight)
            self._preempt(victim, plan)
            if victim is seq:
                return 0
        copy = self.pool.grow(seq.table, start, stop)
        seq.branches = branches.take_blocks(self.pool, seq.table, runs, start, copy) if runs else []
        plan.add(seq, start, count, copy, count)
        seq.in_flight = True
        return count

    def _fit_draft(self, seq: Sequence, spare: int) -> tuple[int, int, list[Run]]:
        """The tokens to compute, the position after those in the sequence's own blocks, and the
        runs of a tree.  Drafts take free blocks as long as one is left for each running sequence.
        """
        start, count = seq.computed, 1 + min(len(seq.draft), spare)
        if count > 1 and seq.parents is not None:
            runs = split_runs(seq.parents[: count - 1])
            stop = start + 1 + runs[0].stop
            if self._has_branch_blocks(seq, stop, runs):
                return count, stop, runs
            count = stop - start  # the trunk alone
        need = self.pool.count_needed(seq.table, start, start + count)
        if need and need + len(self.running) > len(self.pool.free):
            held = len(seq.table.blocks) * self.pool.block_size - start
            count = min(count, max(1, held))
        return count, start + count, []

    def _has_branch_blocks(self, seq: Sequence, stop: int, runs: Seq[Run]) -> bool:
        """Whether a tree's branches find blocks, one more being left for each running sequence."""
        start, B = seq.computed, self.pool.block_size
        need = branches.count_blocks(runs, start, B)
        need += self.pool.count_needed(seq.table, start, stop)
        return need + len(self.running) <= len(self.pool.free)

    def _plan_prompts(
        self, begun: list[Sequence], budget: int, plan: Plan, worst: float = inf
    ) -> None:
        """Shares the budget among prompts that have begun, then among those that may; none of a
        priority below `worst`.
        """
        for seq in begun:
            able = budget and seq.state is SequenceState.RUNNING
            if able and seq.request.priority <= worst:
                budget -= self._plan_chunk(seq, budget, plan, None)
        if not plan.preempted:
            self._admit(budget, plan, worst)

    def _plan_chunk(self, seq: Sequence, budget: int, plan: Plan, copy: Copy | None) -> int:
        """Plans as many known tokens as the budget allows; their blocks were taken at admission."""
        count = self._count_tokens(seq, budget, plan)
        if not count:
            return 0
        plan.add(seq, seq.computed, count, copy, seq.count_rows(count), seq.count_scores(count))
        seq.in_flight = True
        return count

    def _count_tokens(self, seq: Sequence, budget: int, plan: Plan) -> int:
        """The longest chunk that budget, `max_chunk` and the limits of rows allow."""
        count = min(len(seq.tokens) - seq.computed, budget, self.limits.max_chunk or budget)
        if seq.request.pooling is not None:
            count -= max(0, plan.hidden + seq.count_rows(count) - self.limits.hidden_rows)
        elif seq.unscored:
            count -= max(0, plan.scored + seq.count_rows(count) - self.limits.scored)
        return count

    # --- between waiting and running ---

    def _admit(self, budget: int, plan: Plan, worst: float = inf) -> None:
        """Admits those that may start, in order, until one does not fit, or is of a priority
        below `worst`; those that wait for what another computes now are passed over.
        """
        if not self.waiting:
            return
        self.shared.note(self.running)
        seats = self.free_seats()
        started: list[Sequence] = []
        for seq in self.admission.choose(self.waiting, self.by_id):
            needs = self._count_seats(seq)
            if not budget or needs > seats or seq.request.priority > worst:
                break
            if not self.shared.is_ready(seq):
                continue
            shared, valid = self.prefix.find(seq)
            if not self._has_blocks(seq, shared, valid) or not self._count_tokens(
                seq, budget, plan
            ):
                break
            started.append(seq)
            plan.cached += 0 if seq.scheduled or seq.leader else valid  # choices share one prompt
            plan.awaited += self.shared.begin(seq, valid)
            copy = self._start(seq, shared, valid)
            seats -= needs
            budget -= self._plan_chunk(seq, budget, plan, copy)
        for seq in started:
            self.waiting.remove(seq)

    def _list_seated(self) -> list[Sequence]:
        """Waiting sequences for which there are seats, without those that wait for blocks that
        another computes.
        """
        able = self.admission.choose(self.waiting, self.by_id)
        ready = (seq for seq in able if not self.shared.is_held(seq))
        return list(islice(ready, max(0, self.free_seats())))

    def _count_seats(self, seq: Sequence) -> int:
        return capacity.count_needed_seats(seq, self.by_id[seq.request.id])

    def _is_stuck(self) -> bool:
        """Whether all that run are held, and what they wait for waits for their blocks or seats:
        then the youngest gives way.
        """
        held = all(not s.in_flight and s.computed == len(s.tokens) for s in self.running)
        return bool(self.waiting and self.running) and held

    def _has_blocks(self, seq: Sequence, shared: list[int], valid: int) -> bool:
        """Whether all known tokens find blocks, one more being left for each running sequence to
        grow into.
        """
        B = self.pool.block_size
        need = -(-len(seq.tokens) // B) - len(shared) + (valid % B > 0)
        return need + len(self.running) <= len(self.pool.free) - self.pool.count_unheld(shared)

    def _start(self, seq: Sequence, shared: list[int], valid: int) -> Copy | None:
        if seq.request.explain and not seq.scheduled:
            live = [s for group in self.by_id.values() for s in group]
            seq.reuse = self.prefix.explain(seq, live)
        self.pool.share(seq.table, shared)
        seq.computed, seq.state = valid, SequenceState.RUNNING
        seq.scheduled = seq.scheduled or self.clock()
        insort(self.running, seq, key=find_order)
        return self.pool.grow(seq.table, valid, len(seq.tokens))

    def _preempt(self, seq: Sequence, plan: Plan) -> None:
        """Back to waiting, to be computed again; what was published may still be found."""
        self.requeue(seq)
        plan.preempted.append(seq)
