"""Runs batches on a model: copies, forward, sampling.

Invariant: batches run in the order they were submitted, a step's copies before its writes.  On CPU
a step is done when `submit` returns; `wait` is where steps that overlap would block.  Knows arrays
only, no sequences.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from flyweight.engine.hook import LogitsEdit, LogitsRead
from flyweight.engine.processors import apply
from flyweight.ops.base import Ops
from flyweight.ops.operands import KVLayer
from flyweight.ops.rejection import settle_proposals
from flyweight.wire import I32, Batch, Sampled, Tensor


class Model(Protocol):
    """What can be run."""

    def compute_hidden(self, batch: Batch, kv: Sequence[KVLayer], rows: I32) -> Tensor:
        """Writes K/V of the batch's T tokens; final hidden states of `rows` of them: [R, H]."""
        ...

    def compute_tapped(
        self, batch: Batch, kv: Sequence[KVLayer], rows: I32, taps: Sequence[int]
    ) -> tuple[Tensor, Mapping[int, Tensor]]:
        """`compute_hidden`, the same bits, and [T, H] for each tap: the residual after that layer;
        for -1, or the number of layers, the final hidden state.
        """
        ...

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[R, H] -> [R, V]."""
        ...


class ComputedStep(NamedTuple):
    """Final hidden states [R + E, H]; logits [R, V], None where no row wants any; states of tapped
    layers [T, H].
    """

    hidden: Tensor
    logits: Tensor | None
    taps: Mapping[int, Tensor]


@dataclass(frozen=True, slots=True)
class Ticket:
    """A submitted step."""

    sampled: Sampled


class ModelRunner(Protocol):
    """What the engine needs of a runner."""

    def submit(
        self,
        batch: Batch,
        moves: tuple[I32, I32] | None = None,
        edits: Sequence[LogitsEdit] = (),
        reads: Sequence[LogitsRead] = (),
    ) -> Ticket: ...
    def wait(self, ticket: Ticket) -> Sampled: ...


class Runner:
    """One model with its K/V memory; `taps` are the layers whose states a drafter wants.
    Copies of slots are made in `draft_kv` too: a drafter's layers, in the same blocks.
    """

    def __init__(
        self,
        model: Model,
        ops: Ops,
        kv: Sequence[KVLayer],
        taps: Sequence[int] = (),
        draft_kv: Sequence[KVLayer] = (),
    ) -> None:
        self.model, self.ops, self.kv, self.taps = model, ops, kv, tuple(taps)
        self.draft_kv = draft_kv
        self._tapping = True

    def submit(
        self,
        batch: Batch,
        moves: tuple[I32, I32] | None = None,
        edits: Sequence[LogitsEdit] = (),
        reads: Sequence[LogitsRead] = (),
    ) -> Ticket:
        """Starts a step.  `moves` are the slots to copy from and to (copy-on-write) before it
        writes; `edits` are the callers' own, to rows of logits before they are sampled, and
        `reads` of them come before.
        """
        return self.sample(self.compute(batch, moves), batch, edits, reads)

    def sample(
        self,
        found: ComputedStep,
        batch: Batch,
        edits: Sequence[LogitsEdit] = (),
        reads: Sequence[LogitsRead] = (),
    ) -> Ticket:
        """The rest of a step that was computed."""
        if found.logits is None:
            sampled = _make_empty()
        else:
            logits = found.logits
            if reads or edits:
                logits = self._show_logits(logits, edits, reads)
            sampling = batch.sampling
            if sampling.proposals is not None:
                given = settle_proposals(self.ops.fetch(logits), sampling)
                sampling = replace(sampling, given=given)
            sampled = self.ops.sample(logits, sampling)
        if batch.hidden is not None:
            sampled = replace(sampled, hidden=self.ops.fetch(found.hidden[len(batch.rows) :]))
        if found.taps:
            sampled.taps = found.taps  # a copy of it would take 1 % of a small model's step
        return Ticket(sampled)

    def compute(self, batch: Batch, moves: tuple[I32, I32] | None = None) -> ComputedStep:
        """A step up to its logits, which is all that ranks without a sampler do of it."""
        if moves is not None:
            for layer in (*self.kv, *self.draft_kv):
                self.ops.move_kv(layer, *moves)
        wanted, rows = len(batch.rows), batch.rows
        if batch.hidden is not None:
            rows = np.concatenate((rows, batch.hidden))
        taps: Mapping[int, Tensor] = {}
        if self.taps and self._tapping:
            x, taps = self.model.compute_tapped(batch, self.kv, rows, self.taps)
        else:
            x = self.model.compute_hidden(batch, self.kv, rows)
        return ComputedStep(x, self.model.compute_logits(x[:wanted]) if wanted else None, taps)

    def tap(self, wanted: bool) -> None:
        """Whether the drafter wants states of the next steps."""
        self._tapping = wanted

    def wait(self, ticket: Ticket) -> Sampled:
        """The step's result, [R] rows."""
        return ticket.sampled

    def _show_logits(
        self, logits: Tensor, edits: Sequence[LogitsEdit], reads: Sequence[LogitsRead]
    ) -> Tensor:
        """What the sampler takes, once hooks and callers have had the logits on the host."""
        host = self.ops.fetch(logits)
        for read in reads:
            read.take(host[read.rows.start : read.rows.stop])
        apply(host, edits)
        return self.ops.upload(host) if edits else logits


def _make_empty() -> Sampled:
    """The result of a step that wanted no logits."""
    ids, reals = np.zeros(0, np.int32), np.zeros(0, np.float32)
    return Sampled(ids, reals, ids, ids.reshape(0, 0), reals.reshape(0, 0))
