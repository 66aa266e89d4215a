"""The decoder: token rows in, logits of the wanted rows out.  One page, the same for every family.

Invariant: reads K/V only through `ops`, and a row's logits depend only on that row's tokens, bit
for bit, whether layers are tapped or not.  Knows no requests, no phases, no text.  T tokens, R rows
with logits, H hidden, V vocabulary, D head size.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from flyweight.errors import ConfigError
from flyweight.models import layer, norms
from flyweight.models.linear import Parts
from flyweight.models.rope import compute_inverse_frequencies
from flyweight.models.shards import split_evenly
from flyweight.ops.operands import KVLayer, Rotation
from flyweight.spec import ModelSpec
from flyweight.wire import F32, I32, Batch, Tensor

FINAL = (-1,)  # taps: only the final hidden state
STILL: F32 = np.zeros(0, np.float32)  # the frequencies of a layer without positions


class SingleProcess:
    """A model that is alone: every collective is the identity."""

    rank = 0
    size = 1

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor, width: int) -> Tensor:
        return x


class Decoder:
    """A loaded model that runs `length` tokens at most.  `forward` computes a batch's K/V and the
    logits of `batch.rows`; `hidden` and `logits` are its halves.
    """

    def __init__(self, parts: Parts, length: int) -> None:
        spec = parts.spec
        self.spec, self.ops, self.comm, self.parts = spec, parts.ops, parts.comm, parts
        self.final_norm = norms.make_norm(parts, "norm")
        self.layers = [layer.make_layer(parts, i) for i in range(len(spec.layers))]
        self.stack = self.ops.stack(self.layers)
        self.ropes = make_ropes(spec, length)

    def compute_hidden(self, batch: Batch, kv: Sequence[KVLayer], rows: I32) -> Tensor:
        """Hidden states of `rows` after the final norm: [R, H]; K and V of all T tokens are
        written at batch.slots.  Rows that ascend, as a batch's own do, are not copied where they
        are all there are.
        """
        ops = self.ops
        ops.begin(batch)
        if _wants_all(batch, rows):
            x = ops.replay(batch, kv, lambda step: self._run(step, kv, None))
        else:
            x = self._run(batch, kv, rows)
        ops.end()
        return x

    def compute_tapped(
        self, batch: Batch, kv: Sequence[KVLayer], rows: I32, taps: Sequence[int]
    ) -> tuple[Tensor, Mapping[int, Tensor]]:
        """`compute_hidden`, and what is tapped, [T,H] each: for layer i the residual after it; for
        -1, or the number of layers, the final hidden state.  They are good until the next step.
        Captured on a GPU where only -1 is tapped, and all rows are wanted.
        """
        ops, last = self.ops, len(self.layers)
        if taps == FINAL and _wants_all(batch, rows):
            x = self.compute_hidden(batch, kv, rows)
            return x, {-1: x}
        assert all(-1 <= tap <= last for tap in taps), f"taps {taps} of {last} layers"
        wanted = {tap % (last + 1) for tap in taps}
        if self.spec.norm.post and wanted != {last}:
            raise ConfigError(
                f"{self.spec.family} norms its residual between layers; only its final hidden "
                "state (-1) can be tapped"
            )
        ops.begin(batch)
        residual = embed_tokens(self.parts, batch)  # [T, H]
        ropes = self._make_rotations(batch.positions)
        x, found = self.stack.run_tapped(residual, kv, batch, ropes, [*wanted - {last}])
        normed = found[last] = self.final_norm.add(x, residual)
        x = normed if _wants_all(batch, rows) else ops.take(normed, rows)
        ops.end()
        return x, {tap: found[tap % (last + 1)] for tap in taps}

    def _run(self, batch: Batch, kv: Sequence[KVLayer], rows: I32 | None) -> Tensor:
        """Embedding, layers and final norm, of all T tokens or of `rows` of them."""
        residual = embed_tokens(self.parts, batch)  # [T, H]
        x = self.stack(residual, kv, batch, self._make_rotations(batch.positions))
        if rows is not None:
            x, residual = self.ops.take(x, rows), self.ops.take(residual, rows)
        return self.final_norm.add(x, residual)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """The head: [R, H] -> [R, V]."""
        return compute_logits(self.parts, hidden)

    def _make_rotations(self, positions: I32) -> list[Rotation]:
        """cos and sin of every rope of the model."""
        return [self.ops.rotation(positions, *rope) for rope in self.ropes]


def _wants_all(batch: Batch, rows: I32) -> bool:
    """Whether `rows` are the batch's own, of all its tokens."""
    return rows is batch.rows and len(rows) == len(batch.tokens)


def embed_tokens(parts: Parts, batch: Batch) -> Tensor:
    """The residual before the first layer: [T, H]."""
    ops, spec, weights = parts.ops, parts.spec, parts.weights
    x = _embed_rows(parts, batch.tokens)
    if spec.embed_scale != 1:
        ops.scale(x, spec.embed_scale)
    if "project_in" in weights:
        x = ops.linear(x, weights["project_in"])
    if "positions" in weights:
        ops.add(ops.embed(weights["positions"], batch.positions), x)
    return x


def compute_logits(parts: Parts, hidden: Tensor) -> Tensor:
    """The head: final hidden states [R, H] -> [R, V]."""
    ops, spec, weights = parts.ops, parts.spec, parts.weights
    if "project_out" in weights:
        hidden = ops.linear(hidden, weights["project_out"])
    logits = ops.linear(hidden, weights["embed" if spec.tie else "head"])
    if spec.logit_scale != 1:
        ops.scale(logits, spec.logit_scale)
    if spec.logit_softcap:
        ops.softcap(logits, spec.logit_softcap)
    return parts.comm.all_gather(logits, spec.vocab)


def _embed_rows(parts: Parts, tokens: I32) -> Tensor:
    """Rows of the embedding, [T, H].  Ranks have a part of its rows each, and add up."""
    ops, comm, table = parts.ops, parts.comm, parts.weights["embed"]
    if comm.size == 1:
        return ops.embed(table, tokens)
    own = split_evenly(parts.spec.vocab, comm.size)[comm.rank]
    mine = (tokens >= own.start) & (tokens < own.stop)
    x = ops.embed(table, np.where(mine, tokens - own.start, 0).astype(np.int32))
    ops.scale_rows(x, mine.astype(np.float32))
    return comm.all_reduce(x)


def make_ropes(spec: ModelSpec, length: int) -> list[tuple[F32, float]]:
    """Frequencies and factor of every rope of a model, for `length` positions."""
    ropes = [(compute_inverse_frequencies(rope, length), rope.factor) for rope in spec.ropes]
    if any(x.rope is None for x in spec.layers):
        ropes.append((STILL, 1.0))  # the last one turns nothing
    return ropes
