"""The decoder: token rows in, logits of the wanted rows out.  One page, the same for every family.

Invariant: reads K/V only through `ops`, and a row's logits depend only on that row's tokens, bit
for bit.  Knows no requests, no phases, no text.  T tokens, R rows with logits, H hidden, V
vocabulary, D head size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flyweight.models.rope import inverse_frequencies
from flyweight.ops.base import Comm, HeadNorm, KVLayer, Ops, Rotation, Weights
from flyweight.spec import ModelSpec
from flyweight.wire import F32, I32, Batch


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights.  qkv and gate_up are one matrix each: one pass over the input."""

    attn_norm: F32
    qkv: Weights
    out: Weights
    mlp_norm: F32
    gate_up: Weights
    down: Weights
    norms: HeadNorm | None
    act: str
    scale: float


class Solo:
    """A model that is alone: every collective is the identity."""

    rank = 0
    size = 1

    def all_reduce(self, x: F32) -> F32:
        return x

    def all_gather(self, x: F32) -> F32:
        return x


class Decoder:
    """A loaded model.  `forward` computes a batch's K/V and the logits of `batch.rows`; `hidden`
    and `logits` are its halves.
    """

    def __init__(self, spec: ModelSpec, weights: Mapping[str, Any], ops: Ops, comm: Comm) -> None:
        self.spec, self.ops, self.comm = spec, ops, comm
        self.embed = weights["embed"]
        self.head = weights["embed" if spec.tie else "head"]
        self.final_norm: F32 = weights["norm"]
        self.layers = tuple(_layer(spec, i, weights) for i in range(len(spec.layers)))
        self.inv_freq = inverse_frequencies(spec.rope)

    def forward(self, batch: Batch, kv: Sequence[KVLayer]) -> F32:
        """float32 logits [R, V]; K and V of all T tokens are written at batch.slots."""
        return self.logits(self.hidden(batch, kv, batch.rows))

    def hidden(self, batch: Batch, kv: Sequence[KVLayer], rows: I32) -> F32:
        """Hidden states of `rows` after the final norm: [R, H]; writes K and V as `forward`."""
        ops, eps = self.ops, self.spec.eps
        ops.begin(batch)
        rope = ops.rotation(batch.positions, self.inv_freq, 1.0)
        residual = ops.embed(self.embed, batch.tokens)  # [T, H]
        x = ops.norm(residual, self.layers[0].attn_norm, eps)
        for i, layer in enumerate(self.layers):
            x = self._layer(x, residual, layer, kv[i], batch, rope)
            if i + 1 < len(self.layers):
                x = ops.add_norm(x, residual, self.layers[i + 1].attn_norm, eps)
        x = ops.add_norm(ops.take(x, rows), ops.take(residual, rows), self.final_norm, eps)
        ops.end()
        return x

    def logits(self, hidden: F32) -> F32:
        """The head: [R, H] -> [R, V]."""
        return self.comm.all_gather(self.ops.linear(hidden, self.head))

    def _layer(
        self, x: F32, residual: F32, layer: Layer, kv: KVLayer, batch: Batch, rope: Rotation
    ) -> F32:
        """Attention, then the MLP; returns the MLP's output, not yet added to the residual."""
        ops, comm = self.ops, self.comm
        q = ops.rope_store(ops.linear(x, layer.qkv), kv, batch, rope, layer.norms)  # [T, Hq, D]
        x = comm.all_reduce(ops.linear(ops.attend(q, kv, batch, layer.scale), layer.out))
        x = ops.add_norm(x, residual, layer.mlp_norm, self.spec.eps)
        return comm.all_reduce(
            ops.linear(ops.act(ops.linear(x, layer.gate_up), layer.act), layer.down)
        )


def _layer(spec: ModelSpec, i: int, weights: Mapping[str, Any]) -> Layer:
    at, layer = f"layers.{i}.", spec.layers[i]
    norms = None
    if layer.qk_norm:
        norms = HeadNorm(weights[at + "q_norm"], weights[at + "k_norm"], spec.eps)
    names = ("attn_norm", "qkv", "out", "mlp_norm", "gate_up", "down")
    parts = {name: weights[at + name] for name in names}
    return Layer(**parts, norms=norms, act=layer.act, scale=layer.head**-0.5)
