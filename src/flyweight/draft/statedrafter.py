"""Drafts from hidden states, as EAGLE does (Li et al., 2024): a layer makes each next state.

A pair is a state and the token after it; from it the layer makes the next state, from which the
token after that is drawn.  The first pair of a draft has the model's state, the others the
layer's.  Tokens are drawn as a draft model's are: with the target's seed, choice and position, or
with `probs` and random numbers of their own.

A step only leaves its states.  Pairs are computed once a draft is wanted: a pair's K and V depend
on that pair alone, so they may be late.

Invariant: the pair of position p is in the slot of p, and K and V of computed positions are of
states of the model, or late.  The pair of a block's last position belongs to the sequence that
wrote it last: its token may be another in a sequence that shares the block, which costs drafts,
never text.  Knows no checkpoint and no layer's arithmetic.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from flyweight.config import Limits
from flyweight.draft.drafter import Draft, DraftRequest
from flyweight.draft.latepairs import LatePairs
from flyweight.draft.model import DraftRow, make_batch, make_draft_options
from flyweight.draft.slotstates import SlotStates, StateModel, StateStore
from flyweight.draft.treegrowth import TreeGrower, count_scratch
from flyweight.draft.treerules import TreeRule
from flyweight.kv.memory import allocate_kv
from flyweight.ops.operands import KVLayer
from flyweight.ops.rejection import list_distributions
from flyweight.sampling.arrays import OptionColumns, columns
from flyweight.sampling.options import SequenceOptions
from flyweight.spec import ModelSpec
from flyweight.wire import I32, Batch, Tensor

BUDGET = 2048  # pairs computed at once, where no limit is given


class StateDrafter:
    """A `Drafter` with K/V of one layer, `layers`, in the target's blocks.  With `probs`, drafts
    say what each token was drawn from, for rejection sampling; with a `rule` they are trees, for
    which `layers` have blocks of their own besides the `blocks` of the target.  At most `budget`
    pairs are computed at once.
    """

    needs_all_steps = True

    def __init__(
        self, model: StateModel, layers: Sequence[KVLayer], blocks: int,
        rule: TreeRule | None = None, *, probs: bool = False, budget: int = BUDGET,
    ) -> None:  # fmt: skip
        self.probs, self.taps = probs, model.taps
        self.model, self.ops, self.layers = model, model.ops, tuple(layers)
        self.block_size = layers[0].block_size
        self.store = StateStore(model, blocks * self.block_size)
        self.late = LatePairs(self.block_size, budget)
        self.grower = None if rule is None else TreeGrower(model, self.layers, rule, blocks)
        self._options: dict[Hashable, SequenceOptions] = {}
        self._columns, self._undrawn = OptionColumns(), columns(())

    @classmethod
    def make(
        cls, model: StateModel, spec: ModelSpec, limits: Limits, rule: TreeRule | None, *,
        probs: bool,
    ) -> "StateDrafter":  # fmt: skip
        """With K/V of the layer in `spec`."""
        blocks = limits.blocks + count_scratch(rule, limits.block_size)
        layers = allocate_kv(spec, model.ops, replace(limits, blocks=blocks), model.ops.kv_dtype)
        budget = limits.max_num_batched_tokens
        return cls(model, layers, limits.blocks, rule, probs=probs, budget=budget)

    @property
    def held(self) -> SlotStates:
        """The states of all steps so far."""
        return self.store.held

    def copy_slots(self, source: I32, target: I32) -> None:
        """States go with the K/V: a block's last owner may have been another tenant."""
        self.held.copy(source, target)

    def observe(self, batch: Batch, taps: Mapping[int, Tensor]) -> None:
        """Takes the step's states; what is made of them waits for a draft."""
        self.store.add(batch, taps)

    def pause(self) -> None:
        self.store.clear()
        self.late.forget_all()

    def catch_up(self, requests: Sequence[DraftRequest]) -> None:
        """Computes the late pairs of requests that lack more than a draft adds, as far as the
        budget allows.
        """
        rows = [self._begin(request) for request in requests if self.late.is_behind(request)]
        runs = self.late.claim_some(rows, self.held) if rows else ()
        if runs:
            self._compute(runs)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Chains, a token of each at a time; or trees, a level of each at a time.  None for
        requests that still lack more pairs than may be computed along with them.
        """
        rows = [self._begin(request) for request in requests]
        ready = self.late.choose_ready(self._list_known(rows))
        if ready and self.grower is not None:
            return self._grow_trees(self.grower, rows, ready)
        if ready:
            self._grow_chains(ready)
        return [row.finish() for row in rows]

    def forget(self, id: Hashable) -> None:
        self._options.pop(id, None)
        self.late.forget(id)

    def _begin(self, request: DraftRequest) -> DraftRow:
        options = self._options.get(request.id)
        if options is None:
            best = None if self.grower is None else self.grower.rule.children
            options = make_draft_options(request.sampling, True, own=self.probs, best=best)
            self._options[request.id] = options
        last = len(request.tokens) - 1
        used = -(-(last + request.limit) // self.block_size)
        blocks = np.array(request.blocks[:used], np.int32)
        return DraftRow(request, options, blocks, [request.tokens[last]], last)

    def _list_known(self, rows: Sequence[DraftRow]) -> list[DraftRow]:
        """Rows whose newest computed token has a state."""
        positions = self.held.positions
        return [
            row
            for row in rows
            if row.growing
            and row.position
            and positions[self.late.find_last(row)] == row.position - 1
        ]

    def _compute(self, runs: Sequence[DraftRow]) -> Tensor:
        """The states after pairs of the model's states; where it fails, none counts as computed."""
        batch, held = make_batch(runs, self.block_size, self._undrawn), self.held
        try:
            return self.model.compute_states(batch, held.states[batch.slots], self.layers)
        except BaseException:
            held.nexts[batch.slots] = -1
            self.late.forget_all()
            raise

    def _grow_chains(self, growing: Sequence[DraftRow]) -> None:
        """Draws a token of each at a time; late pairs are computed with the first."""
        runs, lasts = self.late.claim_all(growing, self.held)
        made = self._compute(runs)
        if len(lasts) < len(made):
            made = self.ops.take(made, lasts)
        while True:
            sampling = self._columns([row.make_logits_row() for row in growing])
            logits = self.model.compute_logits(made)
            if self.probs:
                drawn_from = list_distributions(self.ops.fetch(logits), sampling)
                for row, probs in zip(growing, drawn_from, strict=True):
                    row.probs.append(probs)
            tokens = self.ops.sample(logits, sampling).tokens.tolist()
            for row, token in zip(growing, tokens, strict=True):
                row.take(token, token)
            left = [i for i, row in enumerate(growing) if row.growing]
            if not left:
                return
            growing, states = [growing[i] for i in left], self.ops.fetch(made)[left]
            shifted = [replace(row, position=row.position - 1) for row in growing]
            batch = make_batch(shifted, self.block_size, self._undrawn)
            made = self.model.compute_states(batch, states, self.layers)

    def _grow_trees(
        self, grower: TreeGrower, rows: Sequence[DraftRow], ready: Sequence[DraftRow]
    ) -> list[Draft]:
        """Late pairs come before."""
        held = self.held
        runs = [run for row in ready for run in self.late.claim(row, held, row.position - 1)]
        if runs:
            self._compute(runs)
        lasts = np.array([self.late.find_last(row) for row in ready], np.int32)
        grown = grower.grow(ready, held.states[lasts])
        for row in ready:
            self.late.note_last(row, held)
        drafts = {id(row): draft for row, draft in zip(ready, grown, strict=True)}
        return [drafts.get(id(row), Draft(())) for row in rows]
