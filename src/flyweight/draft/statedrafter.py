"""Drafts from hidden states, as EAGLE does (Li et al., 2024): a layer makes each next state.

A pair is a state and the token after it; from it the layer makes the next state, from which the
token after that is drawn.  The first pair of a draft has the model's state, the others the
layer's.  Tokens are drawn as a draft model's are: with the target's seed, choice and position, or
with `probs` and random numbers of their own.

A pair's K and V depend on that pair alone.  So those that are missing after a tree, whose accepted
branch has other blocks, are computed before the next draft.

Invariant: the pair of position p is in the slot of p, and its K and V are of states of the model up
to the newest token computed.  The pair of a block's last position belongs to the sequence that
wrote it last: its token may be another in a sequence that shares the block, which costs drafts,
never text.  Knows no checkpoint and no layer's arithmetic.  T tokens, H hidden, V vocabulary.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from flyweight.config import Limits
from flyweight.draft.drafter import Draft, DraftRequest
from flyweight.draft.model import DraftRow, make_batch, make_draft_options
from flyweight.draft.treegrowth import StateLayer, TreeGrower, count_scratch
from flyweight.draft.treerules import TreeRule
from flyweight.kv.memory import allocate_kv
from flyweight.ops.operands import KVLayer
from flyweight.ops.rejection import list_distributions
from flyweight.sampling.arrays import OptionColumns, columns
from flyweight.sampling.options import SequenceOptions
from flyweight.spec import ModelSpec
from flyweight.speculation import MOST_DRAFTS
from flyweight.wire import F32, I32, Batch, Tensor


class StateModel(StateLayer, Protocol):
    """A layer that makes states of H elements."""

    @property
    def hidden(self) -> int: ...
    @property
    def taps(self) -> tuple[int, ...]:
        """The layers of the target that its first states are made of."""
        ...

    def make_first(self, taps: Mapping[int, Tensor]) -> Tensor:
        """The states [T,H] of a step's tokens."""
        ...


@dataclass(slots=True)
class SlotStates:
    """The model's state of each slot's token, the position it was computed at, and the token after
    it in the pair whose K and V are there; -1 for none.
    """

    states: F32  # [slots, H]
    positions: I32  # [slots]
    nexts: I32  # [slots]

    @classmethod
    def make(cls, slots: int, hidden: int) -> "SlotStates":
        none = np.full(slots, -1, np.int32)
        return cls(np.zeros((slots, hidden), np.float32), none, none.copy())

    def copy(self, source: I32, target: I32) -> None:
        """Makes the state of each target slot that of the source's."""
        for column in (self.states, self.positions, self.nexts):
            column[target] = column[source]

    def keep(self, slots: I32, states: F32, positions: I32) -> None:
        """A step computed these."""
        self.states[slots], self.positions[slots], self.nexts[slots] = states, positions, -1


class StateDrafter:
    """A `Drafter` with K/V of one layer, `layers`, in the target's blocks.  With `probs`, drafts
    say what each token was drawn from, for rejection sampling; with a `rule` they are trees, for
    which `layers` have blocks of their own besides the `blocks` of the target.
    """

    def __init__(
        self, model: StateModel, layers: Sequence[KVLayer], blocks: int,
        rule: TreeRule | None = None, *, probs: bool = False,
    ) -> None:  # fmt: skip
        self.probs, self.taps = probs, model.taps
        self.model, self.ops, self.layers = model, model.ops, tuple(layers)
        self.block_size = layers[0].block_size
        self.held = SlotStates.make(blocks * self.block_size, model.hidden)
        self.grower = None if rule is None else TreeGrower(model, self.layers, rule, blocks)
        self._options: dict[Hashable, SequenceOptions] = {}
        self._columns = OptionColumns()

    @classmethod
    def make(
        cls, model: StateModel, spec: ModelSpec, limits: Limits, rule: TreeRule | None, *,
        probs: bool,
    ) -> "StateDrafter":  # fmt: skip
        """With K/V of the layer in `spec`."""
        blocks = limits.blocks + count_scratch(rule, limits.block_size)
        layers = allocate_kv(spec, model.ops, replace(limits, blocks=blocks), model.ops.kv_dtype)
        return cls(model, layers, limits.blocks, rule, probs=probs)

    def copy_slots(self, source: I32, target: I32) -> None:
        """States go with the K/V: a block's last owner may have been another tenant."""
        self.held.copy(source, target)

    def observe(self, batch: Batch, taps: Mapping[int, Tensor]) -> None:
        """Keeps the step's states, and computes the pairs whose tokens are in it; those of branches
        wait until one is accepted.
        """
        states, held = self.ops.fetch(self.model.make_first(taps)), self.held
        before = find_before(batch, self.block_size)  # [T]
        known = held.positions[before] == batch.positions - 1
        inside = np.ones(len(batch.tokens), bool)
        inside[batch.starts[:-1]] = False  # its state was in another step
        first = batch.starts[:-1]
        first = first[known[first] & (batch.positions[first] > 0)]  # after a step, or a prefix
        given = np.empty_like(states)
        given[1:] = states[:-1]
        given[first] = held.states[before[first]]
        inside[first] = True
        held.keep(batch.slots, states, batch.positions)
        if batch.branches:
            inside &= ~find_branches(batch, before)
        if batch.ancestors is not None:
            held.copy(*batch.ancestors)
            held.nexts[batch.ancestors[1]] = -1
        pairs = np.flatnonzero(inside).astype(np.int32)
        if len(pairs):
            own = make_pair_batch(batch, pairs, before)
            self.model.compute_states(own, given[pairs], self.layers)
            held.nexts[own.slots] = own.tokens

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Chains, a token of each at a time; or trees, a level of each at a time."""
        rows = [self._begin(request) for request in requests]
        growing, states = self._list_ready(rows)
        if self.grower is not None:
            self._catch_up(growing)
            grown = iter(self.grower.grow(growing, states))
            ready = {id(row) for row in growing}
            return [next(grown) if id(row) in ready else Draft(()) for row in rows]
        while growing:
            shifted = [replace(row, position=row.position - 1) for row in growing]
            options = self._columns([row.make_logits_row() for row in growing])
            batch = make_batch(shifted, self.block_size, options)
            made = self.model.compute_states(batch, states, self.layers)
            logits = self.model.compute_logits(made)
            if self.probs:
                drawn_from = list_distributions(self.ops.fetch(logits), batch.sampling)
                for row, probs in zip(growing, drawn_from, strict=True):
                    row.probs.append(probs)
            tokens = self.ops.sample(logits, batch.sampling).tokens.tolist()
            states = self.ops.fetch(made)
            for row, token in zip(growing, tokens, strict=True):
                row.take(token, token)
            left = [i for i, row in enumerate(growing) if row.growing]
            growing, states = [growing[i] for i in left], states[left]
        return [row.finish() for row in rows]

    def forget(self, id: Hashable) -> None:
        self._options.pop(id, None)

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

    def _catch_up(self, rows: Sequence[DraftRow]) -> None:
        """Computes the pairs of the newest tokens that are not in their slots."""
        size, held = self.block_size, self.held
        missing: list[tuple[DraftRow, I32]] = []
        for row in rows:
            last = row.position - 1  # its pair comes with the draft
            at = np.arange(max(0, last - MOST_DRAFTS), last, dtype=np.int32)
            if len(at):
                slots = row.blocks[at // size] * size + at % size
                after = np.array(row.request.tokens[int(at[0]) + 1 : last + 1], np.int32)
                stale = (held.nexts[slots] != after) & (held.positions[slots] == at)
                if stale.any():
                    missing.append((row, at[stale]))
        if missing:
            batch = make_late_batch(missing, size)
            self.model.compute_states(batch, held.states[batch.slots], self.layers)
            held.nexts[batch.slots] = batch.tokens

    def _list_ready(self, rows: Sequence[DraftRow]) -> tuple[list[DraftRow], F32]:
        """Rows whose newest computed token has a state, and these states."""
        size, held = self.block_size, self.held
        ready, slots = [], []
        for row in rows:
            at = row.position - 1
            if at < 0 or not row.growing:
                continue
            slot = int(row.blocks[at // size]) * size + at % size
            if held.positions[slot] == at:
                ready.append(row)
                slots.append(slot)
        return ready, held.states[slots]


def find_before(batch: Batch, block_size: int) -> I32:
    """The slot of the position before each token's, 0 for a text's first: [T]."""
    before = np.empty_like(batch.slots)
    before[1:] = batch.slots[:-1]
    first = batch.starts[:-1]
    at = np.maximum(batch.positions[first] - 1, 0)
    rows = np.arange(len(first))
    before[first] = batch.tables[rows, at // block_size] * block_size + at % block_size
    return before


def find_branches(batch: Batch, before: I32) -> NDArray[np.bool_]:
    """Which tokens are of branches of trees: [T].  What comes before a branch is in the step."""
    written = batch.slots
    if batch.ancestors is not None:
        written = np.concatenate([written, batch.ancestors[1]])
    first = batch.starts[:-1]
    branched = np.isin(before[first], written) & (batch.positions[first] > 0)
    return np.repeat(branched, np.diff(batch.starts))


def make_late_batch(missing: Sequence[tuple[DraftRow, I32]], block_size: int) -> Batch:
    """Pairs of known tokens, each a sequence of its own."""
    positions = np.concatenate([at for _, at in missing])
    width = int(positions.max()) // block_size + 1
    tables = np.zeros((len(missing), width), np.int32)
    for table, (row, _) in zip(tables, missing, strict=True):
        used = row.blocks[:width]
        table[: len(used)] = used
    tables = np.repeat(tables, [len(at) for _, at in missing], axis=0)
    held = tables[np.arange(len(positions)), positions // block_size]
    tokens = [row.request.tokens[i + 1] for row, at in missing for i in at.tolist()]
    return Batch(
        tokens=np.array(tokens, np.int32),
        positions=positions,
        slots=held * np.int32(block_size) + positions % np.int32(block_size),
        starts=np.arange(len(positions) + 1, dtype=np.int32),
        contexts=positions + np.int32(1),
        tables=tables,
        rows=np.zeros(0, np.int32),
        sampling=columns([]),
    )


def make_pair_batch(batch: Batch, pairs: I32, before: I32) -> Batch:
    """The step as pairs: of the tokens `pairs`, each at the position before its own."""
    owners = np.repeat(np.arange(len(batch.contexts)), np.diff(batch.starts))[pairs]
    counts = np.bincount(owners, minlength=len(batch.contexts))
    used = np.flatnonzero(counts)
    return Batch(
        tokens=batch.tokens[pairs],
        positions=batch.positions[pairs] - np.int32(1),
        slots=before[pairs],
        starts=np.cumsum([0, *counts[used]], dtype=np.int32),
        contexts=batch.contexts[used] - np.int32(1),
        tables=np.ascontiguousarray(batch.tables[used]),
        rows=np.zeros(0, np.int32),
        sampling=columns([]),
    )
