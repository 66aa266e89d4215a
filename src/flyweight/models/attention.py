"""Attention over the paged cache: with queries, keys and values of their own (`AttentionLayer`),
or one latent a position (`LatentAttention`).

Invariant: reads K/V only through `ops.attend`; a row's output depends on that row's tokens alone.
T tokens, Hq query heads, D head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from flyweight.models.linear import Linear, Parts
from flyweight.ops.base import Comm, Ops
from flyweight.ops.operands import HeadNorm, KVLayer, Rotation, Weights
from flyweight.ops.stack import Mixing
from flyweight.spec import LayerSpec, TemperSpec
from flyweight.wire import F32, I32, Batch, Tensor


class Mixer(Protocol):
    """What mixes a layer's positions: [T,H] -> [T,H], writing K/V of the batch's tokens."""

    def __call__(self, x: Tensor, kv: KVLayer, batch: Batch, rope: Rotation) -> Tensor: ...
    def recipe(self) -> Mixing | None: ...
    @property
    def reads_host(self) -> bool:
        """As `Layer.reads_host`."""
        ...


@dataclass(frozen=True, slots=True)
class SharedHeadNorm:
    """RMS norm of q, and of k, over the heads of all ranks (OLMo 2), each of which has some."""

    ops: Ops
    comm: Comm
    q: F32
    k: F32
    eps: float

    def __call__(self, qkv: Tensor) -> Tensor:
        """[T, own heads of q, k and v], with q and k normed."""
        q, k = len(self.q) // self.comm.size, len(self.k) // self.comm.size
        parts = self._norm(qkv[:, :q], self.q), self._norm(qkv[:, q : q + k], self.k)
        return self.ops.concat((*parts, qkv[:, q + k :]))

    def _norm(self, x: Tensor, weights: F32) -> Tensor:
        own = x.shape[1]
        every = self.comm.all_gather(self.ops.concat((x,)), len(weights))
        first = self.comm.rank * own
        return self.ops.norm(every, weights, self.eps)[:, first : first + own]


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """Grouped-query attention (Ainslie et al., 2023).  q, k and v are one matrix: one pass over the
    input.
    """

    ops: Ops
    comm: Comm
    layer: LayerSpec
    qkv: Linear
    out: Linear
    norms: HeadNorm | None
    sinks: F32 | None
    scale: float
    centred: F32 | None = None  # [Hq+Hk, D]: LayerNorm weights of each head of q and k
    eps: float = 0.0
    shared_norm: SharedHeadNorm | None = None

    @property
    def reads_host(self) -> bool:
        return self.layer.temper is not None

    def __call__(self, x: Tensor, kv: KVLayer, batch: Batch, rope: Rotation) -> Tensor:
        ops, layer = self.ops, self.layer
        qkv = self.qkv(x, batch)
        if self.centred is not None:
            ops.layer_norm_heads(qkv, self.centred, self.eps)
        if self.shared_norm is not None:
            qkv = self.shared_norm(qkv)
        q = ops.rope_store(qkv, kv, batch, rope, self.norms)  # [T, Hq, D]
        del qkv  # the memory plan counts it up to here
        if layer.temper is not None:
            ops.scale_rows(q, compute_query_scale(layer.temper, batch.positions))
        seen = layer.kv.window, layer.softcap, self.sinks, layer.kv.chunk
        mixed = ops.attend(q, kv, batch, self.scale, *seen)  # [T, Hq*D]
        return self.comm.all_reduce(self.out(mixed, batch))

    def recipe(self) -> Mixing | None:
        special = self.centred is not None or self.layer.temper is not None
        if self.comm.size > 1 or special:
            return None
        layer, qkv, out = self.layer, self.qkv.weight, self.out.weight
        return Mixing(
            layer.heads, layer.kv, qkv, out, self.norms, self.scale, layer.softcap, self.sinks
        )


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, 2024), with the matrices that make keys and values
    of a latent absorbed into the query and the output: the cache holds latents only.

    A head's rows are [rotated | plain].  `k_up` turns a head's plain query [plain] into what meets
    the latent [rank]; `v_up` a mixed latent [rank] into the head's value [value].
    """

    ops: Ops
    comm: Comm
    layer: LayerSpec
    q_down: Linear | None
    q_norm: F32 | None
    q: Linear
    kv_down: Linear
    kv_norm: F32
    k_up: Sequence[Weights]
    v_up: Sequence[Weights]
    out: Linear
    scale: float
    eps: float

    reads_host = False

    def __call__(self, x: Tensor, kv: KVLayer, batch: Batch, rope: Rotation) -> Tensor:
        ops, heads, latent = self.ops, self.layer.heads, self.layer.latent
        assert latent is not None
        queries = self.q(self._project_down(x, batch), batch).reshape(len(x), heads, -1)
        plain = ops.linear_heads(queries[:, :, latent.rope :], self.k_up)  # [T, Hq, rank]
        both = ops.concat((queries[:, :, : latent.rope], plain)).reshape(len(x), -1)
        stored = self.kv_down(x, batch)  # [T, rope+rank]
        normed = ops.norm(ops.concat((stored[:, latent.rope :],)), self.kv_norm, self.eps)
        qk = ops.concat((both, stored[:, : latent.rope], normed))
        q = ops.rope_store(qk, kv, batch, rope, None)  # [T, Hq, rope+rank]
        mixed = ops.attend(q, kv, batch, self.scale).reshape(len(x), heads, latent.rank)
        values = ops.linear_heads(mixed, self.v_up).reshape(len(x), -1)  # [T, Hq*value]
        return self.comm.all_reduce(self.out(values, batch))

    def recipe(self) -> None:
        return None

    def _project_down(self, x: Tensor, batch: Batch) -> Tensor:
        if self.q_down is None or self.q_norm is None:
            return x
        return self.ops.norm(self.q_down(x, batch), self.q_norm, self.eps)


def compute_query_scale(temper: TemperSpec, positions: I32) -> F32:
    """What queries at these positions are multiplied by: [T]."""
    passed = np.floor((positions.astype(np.float64) + 1) / temper.every)
    return (1 + temper.scale * np.log1p(passed)).astype(np.float32)


def make_mixer(parts: Parts, i: int) -> Mixer:
    """The attention block of layer i."""
    layer, eps, at = parts.spec.layers[i], parts.spec.norm.eps, f"layers.{i}."
    scale = layer.scale or layer.head**-0.5
    weights, heads = parts.weights, range(layer.heads)
    if layer.latent is not None:
        return LatentAttention(
            parts.ops,
            parts.comm,
            layer,
            parts.make_optional_linear(at + "q_down"),
            weights.get(at + "q_down_norm"),
            parts.make_linear(at + "q"),
            parts.make_linear(at + "kv_down"),
            weights[at + "kv_norm"],
            [weights[f"{at}k_up.{h}"] for h in heads],
            [weights[f"{at}v_up.{h}"] for h in heads],
            parts.make_linear(at + "out"),
            scale,
            layer.latent.eps,
        )
    norms = centred = shared = None
    if layer.qk_norm == "centred":
        centred = np.concatenate([weights[at + "q_norm"], weights[at + "k_norm"]])
        centred = centred.reshape(-1, layer.head)
    elif layer.qk_norm == "whole" and parts.comm.size > 1:
        q_norm, k_norm = weights[at + "q_norm"], weights[at + "k_norm"]
        shared = SharedHeadNorm(parts.ops, parts.comm, q_norm, k_norm, eps)
    elif layer.qk_norm == "unit":
        ones = np.ones(layer.head, np.float32)
        norms = HeadNorm(ones, ones, eps)
    elif layer.qk_norm:
        norms = HeadNorm(weights[at + "q_norm"], weights[at + "k_norm"], eps)
    qkv, out = parts.make_linear(at + "qkv"), parts.make_linear(at + "out")
    sinks = weights.get(at + "sinks")
    return AttentionLayer(
        parts.ops, parts.comm, layer, qkv, out, norms, sinks, scale, centred, eps, shared
    )
