"""EAGLE (Li et al., 2024): one decoder layer proposes tokens from the model's final hidden states.

A pair is a state and the token after it; from it the layer makes the next state, which the model's
own output matrix reads.  The first pair of a draft has the model's state, the others the layer's.
Tokens are drawn as a draft model's are: with the target's seed, choice and position, or with
`probs` and random numbers of their own.

Invariant: the pair of position p is in the slot of p, and its K and V are of states of the model up
to the newest token computed.  The pair of a block's last position belongs to the sequence that
wrote it last: its token may be another in a sequence that shares the block, which costs drafts,
never text.  T tokens, H hidden.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from flyweight.draft.drafter import Draft, DraftRequest
from flyweight.draft.eaglefolder import EagleSource, load_eagle, open_source
from flyweight.draft.methods import DrafterParts
from flyweight.draft.model import DraftRow, make_batch, make_draft_options
from flyweight.kv.memory import allocate_kv
from flyweight.models.decoder import Decoder, embed_tokens, make_ropes
from flyweight.models.layer import make_layer
from flyweight.models.linear import Parts
from flyweight.ops.operands import KVLayer, Weights
from flyweight.ops.rejection import list_distributions
from flyweight.sampling.arrays import OptionColumns, columns
from flyweight.sampling.options import SequenceOptions
from flyweight.speculation import SpeculationConfig
from flyweight.wire import F32, I32, Batch, Tensor

__all__ = ["EagleDrafter", "make_drafter", "open_source"]


def make_drafter(config: SpeculationConfig, parts: DrafterParts) -> "EagleDrafter":
    assert parts.model is not None and isinstance(parts.source, EagleSource)
    source, target = parts.source, parts.model
    dtype = target.ops.kv_dtype
    layers = allocate_kv(source.spec, target.ops, parts.limits, dtype)
    fc, own = load_eagle(source, target)
    length = parts.limits.max_model_len
    model, probs = EagleModel(target, fc, own, length), config.verifier == "rejection"
    return EagleDrafter(model, layers, parts.limits.blocks, probs=probs)


class EagleModel:
    """The layer of `own`, and what it takes of the target: embedding and output matrix."""

    def __init__(self, target: Decoder, fc: Weights, own: Parts, length: int) -> None:
        self.target, self.ops, self.fc = target, target.ops, fc
        self.stack = self.ops.stack([make_layer(own, 0)])
        self.ropes = make_ropes(own.spec, length)

    def compute_states(self, batch: Batch, states: F32, kv: Sequence[KVLayer]) -> Tensor:
        """The states [T,H] after the batch's pairs, whose K and V are written."""
        ops = self.ops
        ops.begin(batch)
        embedded = embed_tokens(self.target.parts, batch)
        residual = ops.linear(ops.concat((embedded, ops.upload(states))), self.fc)
        turns = [ops.rotation(batch.positions, *rope) for rope in self.ropes]
        ops.add(self.stack(residual, kv, batch, turns), residual)
        ops.end()
        return residual


@dataclass(slots=True)
class SlotStates:
    """The model's state of each slot's token, and the position it was computed at, -1 for none."""

    states: F32  # [slots, H]
    positions: I32  # [slots]

    def copy(self, source: I32, target: I32) -> None:
        """Makes the state of each target slot that of the source's."""
        self.states[target] = self.states[source]
        self.positions[target] = self.positions[source]


class EagleDrafter:
    """A `Drafter` with K/V of one layer, `layers`, in the target's blocks.  With `probs`, drafts
    say what each token was drawn from, for rejection sampling.
    """

    taps = (-1,)

    def __init__(
        self, model: EagleModel, layers: Sequence[KVLayer], blocks: int, *, probs: bool = False
    ) -> None:
        self.probs = probs
        self.model, self.ops, self.layers = model, model.ops, tuple(layers)
        self.block_size = layers[0].block_size
        slots, hidden = blocks * self.block_size, model.target.spec.hidden
        self.held = SlotStates(np.zeros((slots, hidden), np.float32), np.full(slots, -1, np.int32))
        self._options: dict[Hashable, SequenceOptions] = {}
        self._columns = OptionColumns()

    def copy_slots(self, source: I32, target: I32) -> None:
        """States go with the K/V: a block's last owner may have been another tenant."""
        self.held.copy(source, target)

    def observe(self, batch: Batch, taps: Mapping[int, Tensor]) -> None:
        """Keeps the step's states, and computes the pairs whose tokens are in it."""
        states, held = self.ops.fetch(taps[-1]), self.held
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
        held.states[batch.slots], held.positions[batch.slots] = states, batch.positions
        pairs = np.flatnonzero(inside).astype(np.int32)
        if len(pairs):
            own = make_pair_batch(batch, pairs, before)
            self.model.compute_states(own, given[pairs], self.layers)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Every request's next tokens, one of each at a time."""
        rows = [self._begin(request) for request in requests]
        growing, states = self._list_ready(rows)
        while growing:
            shifted = [replace(row, position=row.position - 1) for row in growing]
            options = self._columns([row.make_logits_row() for row in growing])
            batch = make_batch(shifted, self.block_size, options)
            made = self.model.compute_states(batch, states, self.layers)
            logits = self.model.target.compute_logits(made)
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
            options = make_draft_options(request.sampling, True, own=self.probs)
            self._options[request.id] = options
        last = len(request.tokens) - 1
        used = -(-(last + request.limit) // self.block_size)
        blocks = np.array(request.blocks[:used], np.int32)
        return DraftRow(request, options, blocks, [request.tokens[last]], last)

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
