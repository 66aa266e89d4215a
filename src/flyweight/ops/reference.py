"""The executable specification: every op in plain NumPy, to be checked by eye; it can run a model.

Invariant: each output row is computed from that row's inputs alone, in float64, and rounded to
float32 once, at the end; this is the truth the kernels are measured against.  Only what is stored
rounds earlier: quantised activations, K and V in the cache, the residual sum.  Nothing here is
fast, and nothing here knows threads or tiles.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flyweight.errors import CheckpointError, ConfigError, nearest
from flyweight.ops.base import (
    ACTIVATIONS,
    DENSE_KINDS,
    GATED_ACTS,
    KV_DTYPES,
    PLAIN_ACTS,
    Array,
    Part,
    choose_rounding,
    from_bf16_bits,
    to_bf16_bits,
    uses_pairs,
)
from flyweight.ops.grouped import BlockRows, GroupedWeight
from flyweight.ops.operands import HeadNorm, KVLayer, LowRank, Rotation, Weight, Weights
from flyweight.ops.reference_route import route
from flyweight.ops.reference_sample import sample
from flyweight.ops.stack import Layer, SteppedStack, adapt
from flyweight.spec import KVGroup, RouteSpec
from flyweight.wire import F32, I32, Batch, SampleBatch, Sampled

F64 = NDArray[np.float64]
GROUP = 32  # elements of an activation row that share one int8 scale


@dataclass(frozen=True, slots=True)
class ReferenceWeight:
    """A dequantised matrix, [N,K] float64, that remembers what it was packed from."""

    matrix: F64
    kind: str
    bias: F32 | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.matrix.shape

    @property
    def nbytes(self) -> int:
        return self.matrix.nbytes + (0 if self.bias is None else self.bias.nbytes)


@dataclass(frozen=True, slots=True)
class ReferenceKV:
    """K and V by slot: [N*B, Hk, D] float32, float16, or uint16 holding bfloat16 bits.

    A slot holds NaN until it is written, so reading one that never was cannot pass unnoticed.
    """

    group: KVGroup
    block_size: int
    k: Array
    v: Array
    paired: bool  # q is rounded to bf16 as K is; the softmax weights are not

    @property
    def nbytes(self) -> int:
        return int(self.k.nbytes + (0 if self.group.v_in_k else self.v.nbytes))


class ReferenceOps:
    """`ops.base.Ops` in NumPy; holds no state but the activation mode."""

    def __init__(self, activations: str = "f32") -> None:
        if activations not in ACTIVATIONS:
            raise ConfigError(_describe_unknown("activations", activations, ACTIVATIONS))
        self._activations = activations

    @property
    def activations(self) -> str:
        return self._activations

    @property
    def kv_dtype(self) -> str:
        return "f16"

    # --- weights ---
    block_kinds: frozenset[str] = frozenset()  # parsers say what a format means

    def pack(
        self,
        shape: tuple[int, int],
        parts: Iterable[Part],
        bias: F32 | None = None,
    ) -> ReferenceWeight:
        pieces = []
        for part in parts:
            assert not isinstance(part, BlockRows), "no kind is in block_kinds"
            pieces.append(part)
        kinds = sorted({_find_kind(part) for part in pieces})
        if len(kinds) != 1:
            raise CheckpointError(f"parts of one weight are of kinds {', '.join(kinds)}; need one")
        matrix = np.concatenate([_to_floats(part) for part in pieces]).astype(np.float64)
        if matrix.shape != shape:
            raise CheckpointError(f"weight of shape {matrix.shape} where {shape} is needed")
        return ReferenceWeight(matrix, kinds[0], bias)

    def packed_nbytes(self, shape: tuple[int, int], kind: str) -> int:
        return shape[0] * shape[1] * 8

    def kv_layer(self, group: KVGroup, blocks: int, block_size: int, dtype: str) -> ReferenceKV:
        if dtype not in KV_DTYPES:
            raise ConfigError(_describe_unknown("KV dtype", dtype, KV_DTYPES))
        slots = blocks * block_size
        never = np.full((slots, group.heads, max(group.k_dim, group.v_dim)), np.nan, np.float32)
        k, v = _store(never[..., : group.k_dim], dtype), _store(never[..., : group.v_dim], dtype)
        if group.v_in_k:
            v = k[..., group.k_dim - group.v_dim :]
        pairs = uses_pairs(group, block_size, dtype, self._activations)
        return ReferenceKV(group, block_size, k, v, pairs)

    # --- step bounds: nothing to hold between ops ---
    def begin(self, batch: Batch) -> None: ...

    def end(self) -> None: ...

    # --- compute ---
    def embed(self, table: Weight, ids: I32) -> F32:
        assert isinstance(table, ReferenceWeight)
        return table.matrix[ids].astype(np.float32)

    def norm(self, x: F32, w: F32, eps: float) -> F32:
        return _compute_rms(x, w, eps).astype(np.float32)

    def add_norm(self, x: F32, residual: F32, w: F32, eps: float) -> F32:
        self.add(x, residual)
        return self.norm(residual, w, eps)

    def layer_norm_heads(self, x: F32, w: F32, eps: float) -> None:
        heads, dim = w.shape
        for h in range(heads):
            part = x[:, h * dim : (h + 1) * dim]
            part[:] = self.layer_norm(part, w[h], None, eps)

    def layer_norm(self, x: F32, w: F32, b: F32 | None, eps: float) -> F32:
        centred = x - x.astype(np.float64).mean(axis=1, keepdims=True)
        variance = (centred * centred).mean(axis=1, keepdims=True)
        normed: F64 = centred / np.sqrt(variance + eps) * w
        return (normed if b is None else normed + b).astype(np.float32)

    def linear(self, x: F32, w: Weights) -> F32:
        if isinstance(w, tuple):
            return np.concatenate([self.linear(x, part) for part in w], axis=1)
        assert isinstance(w, ReferenceWeight)
        rounded = _round_rows(x, choose_rounding(self._activations, w.kind))  # [T,K]
        out = np.empty((len(x), w.shape[0]), np.float32)  # [T,N]
        for t, row in enumerate(rounded):  # one at a time: T cannot change the order of a sum
            y = w.matrix @ row
            out[t] = y if w.bias is None else y + w.bias
        return out

    def linear_heads(self, x: F32, w: Sequence[Weights]) -> F32:
        return np.stack([self.linear(x[:, h], part) for h, part in enumerate(w)], axis=1)

    def adapt(self, y: F32, x: F32, low: Mapping[int, LowRank], batch: Batch) -> None:
        adapt(self, y, x, low, batch)

    def stack(self, layers: Sequence[Layer]) -> SteppedStack:
        return SteppedStack(layers)

    def rotation(self, positions: I32, inv_freq: F32, scale: float) -> Rotation:
        angles = positions.astype(np.float32)[:, None] * inv_freq.astype(np.float32)  # [T, dim/2]
        exact = angles.astype(np.float64)
        cos, sin = np.cos(exact).astype(np.float32), np.sin(exact).astype(np.float32)
        return Rotation(cos * np.float32(scale), sin * np.float32(scale))

    def rope_store(
        self, qkv: F32, kv: KVLayer, batch: Batch, rope: Rotation, norms: HeadNorm | None
    ) -> F32:
        assert isinstance(kv, ReferenceKV)
        group, count = kv.group, len(qkv)
        wide = group.width - group.heads * group.k_dim  # what V takes of a row
        q_wide = qkv.shape[1] - group.width
        q, k, v = np.split(qkv, [q_wide, qkv.shape[1] - wide], axis=1)
        q = _rotate(_normalize_heads(q, group.k_dim, norms, "q"), rope)
        k = _rotate(_normalize_heads(k, group.k_dim, norms, "k"), rope)
        dtype = DENSE_KINDS[kv.k.dtype.name]
        kv.k[batch.slots] = _store(k, dtype)
        if not group.v_in_k:
            kv.v[batch.slots] = _store(v.reshape(count, group.heads, group.v_dim), dtype)
        return q

    def attend(
        self,
        q: F32,
        kv: KVLayer,
        batch: Batch,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        sinks: F32 | None = None,
        chunk: int = 0,
    ) -> F32:
        assert isinstance(kv, ReferenceKV) and kv.group.kind == "full"
        q = from_bf16_bits(to_bf16_bits(q)) if kv.paired else q
        out = np.empty((len(q), q.shape[1] * kv.group.v_dim), np.float32)  # [T, Hq*D]
        for s, context in enumerate(batch.contexts):
            block, offset = np.divmod(np.arange(context), kv.block_size)
            slots = batch.tables[s][block] * kv.block_size + offset
            k, v = _load(kv.k[slots]), _load(kv.v[slots])  # [context, Hk, D]
            for t in range(batch.starts[s], batch.starts[s + 1]):
                seen = batch.positions[t] + 1
                first = max(0, seen - window) if window else 0
                first = max(first, batch.positions[t] // chunk * chunk) if chunk else first
                own = k[first:seen], v[first:seen]
                out[t] = _attend_one(q[t], *own, scale, softcap, sinks)
        return out

    def act(self, x: F32, kind: str) -> F32:
        gate, up = np.split(x.astype(np.float64), 2, axis=1)  # [T,I] each
        if kind == "swiglu_clamped":
            gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
            return (gate * _compute_sigmoid(1.702 * gate) * (up + 1)).astype(np.float32)
        return (_activate(gate, kind, GATED_ACTS) * up).astype(np.float32)

    def activate(self, x: F32, kind: str) -> F32:
        return _activate(x.astype(np.float64), kind, PLAIN_ACTS).astype(np.float32)

    def add(self, x: F32, residual: F32) -> None:
        residual += x

    def scale(self, x: F32, by: float) -> None:
        x *= np.float32(by)

    def scale_rows(self, x: F32, by: F32) -> None:
        x *= by.reshape(-1, *[1] * (x.ndim - 1))

    def softcap(self, x: F32, cap: float) -> None:
        x[:] = cap * np.tanh(x.astype(np.float64) / cap)

    def gate(self, x: F32, logits: F32) -> None:
        x[:] = x * _compute_sigmoid(logits.astype(np.float64))

    def concat(self, parts: Sequence[F32]) -> F32:
        return np.concatenate(parts, axis=-1)

    def route(self, logits: F32, spec: RouteSpec, bias: F32 | None = None) -> tuple[I32, F32]:
        return route(logits, spec, bias)

    def experts(
        self, x: F32, ids: I32, weights: F32, up: Sequence[Weights], down: Sequence[Weights],
        act: str,
    ) -> F32:  # fmt: skip
        out = np.zeros(x.shape, np.float64)
        for t, row in enumerate(x):
            for e, share in zip(ids[t], weights[t], strict=True):
                inner = self.act(self.linear(row[None], up[e]), act)
                out[t] += np.float64(share) * self.linear(inner, down[e])[0]
        return out.astype(np.float32)

    def take(self, x: F32, rows: I32) -> F32:
        return x[rows]

    def sample(self, logits: F32, s: SampleBatch) -> Sampled:
        return sample(logits, s)

    def populate_kv(self, kv: KVLayer, first: int, count: int) -> None:
        """All blocks were written when they were made."""

    def move_kv(self, kv: KVLayer, src: I32, dst: I32) -> None:
        assert isinstance(kv, ReferenceKV)
        kv.k[dst] = kv.k[src]
        kv.v[dst] = kv.v[src]


# --- weights and activations ---


def _find_kind(part: GroupedWeight | Array) -> str:
    return part.kind if isinstance(part, GroupedWeight) else DENSE_KINDS[part.dtype.name]


def _to_floats(part: GroupedWeight | Array) -> F32:
    if isinstance(part, GroupedWeight):
        return part.dequantize()
    return from_bf16_bits(part) if part.dtype == np.uint16 else part.astype(np.float32)


def _round_rows(x: F32, to: str) -> F64:
    """[T,K] float64 of the values `linear` multiplies with."""
    if to == "bf16":
        return from_bf16_bits(to_bf16_bits(x)).astype(np.float64)
    if to == "int8":
        codes, scales = quantize_rows(x)
        return codes.astype(np.float64) * np.repeat(scales.astype(np.float64), GROUP, axis=1)
    return x.astype(np.float64)


def quantize_rows(x: F32) -> tuple[NDArray[np.int8], F32]:
    """[T,K] -> int8 codes [T,K], float32 scales [T,K/32]; x ~ code * scale.  Float32 throughout."""
    groups = x.reshape(len(x), x.shape[1] // GROUP, GROUP)
    amax = np.abs(groups).max(axis=2)  # [T, K/32]
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(127) / amax
    inverse[np.isinf(inverse)] = 0  # an all-zero group, or one whose inverse is beyond float32
    scales = np.where(inverse > 0, amax / np.float32(127), np.float32(0))
    codes = np.rint(groups * inverse[:, :, None]).astype(np.int8)
    return codes.reshape(x.shape), scales


# --- attention, norms, activations ---


def _compute_rms(x: F32, w: F32, eps: float) -> F64:
    wide = x.astype(np.float64)
    mean = (wide * wide).mean(axis=-1, keepdims=True)
    normed: F64 = wide / np.sqrt(mean + eps) * w
    return normed


def _rotate(x: F32 | F64, rope: Rotation) -> F32:
    """[T,heads,D]: turns the pair (x[i], x[i+half]) by angle i; what is beyond 2*half stays."""
    half = rope.cos.shape[1]
    cos, sin = rope.cos[:, None, :].astype(np.float64), rope.sin[:, None, :].astype(np.float64)
    a, b = x[..., :half], x[..., half : 2 * half]
    turned = [a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]]
    return np.concatenate(turned, axis=-1).astype(np.float32)


def _normalize_heads(x: F32, dim: int, norms: HeadNorm | None, which: str) -> F32 | F64:
    """[T,heads*dim] -> [T,heads,dim], normed head by head or, by the weights' size, as a whole."""
    shape = (len(x), -1, dim)
    if norms is None:
        return x.reshape(shape)
    w = norms.q if which == "q" else norms.k
    parts = x.reshape(shape) if len(w) == dim else x
    return _compute_rms(parts, w, norms.eps).reshape(shape)


def _attend_one(q: F32, k: F64, v: F64, scale: float, softcap: float, sinks: F32 | None) -> F64:
    """q [Hq,Dk], k and v [n,Hk,D] -> [Hq*Dv].  Query head h reads KV head h // (Hq/Hk)."""
    grouped = q.astype(np.float64).reshape(k.shape[1], -1, k.shape[2])  # [Hk,G,D]
    scores = np.einsum("hgd,nhd->hgn", grouped, k) * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    top = scores.max(axis=2, keepdims=True)
    p = np.exp(scores - top)
    total = p.sum(axis=2, keepdims=True)
    if sinks is not None:  # beside a maximum far below, a sink takes everything
        with np.errstate(over="ignore"):
            total = total + np.exp(sinks.astype(np.float64).reshape(*total.shape) - top)
    mixed: F64 = np.einsum("hgn,nhd->hgd", p, v) / total
    return mixed.reshape(-1)


def _compute_sigmoid(x: F64) -> F64:
    with np.errstate(over="ignore"):  # exp(-x) = inf gives the right limit, 0
        return np.asarray(1 / (1 + np.exp(-x)))


def _activate(x: F64, kind: str, known: tuple[str, ...]) -> F64:
    if kind not in known:
        raise ConfigError(_describe_unknown("activation", kind, known))
    if kind == "relu":
        return np.maximum(x, 0)
    if kind == "silu":
        factor = _compute_sigmoid(x)
    elif kind == "gelu":
        factor = 0.5 * np.vectorize(math.erfc, otypes=[np.float64])(x / -math.sqrt(2))
    else:
        factor = 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    product: F64 = x * factor
    return product


def _store(x: F32, dtype: str) -> Array:
    if dtype == "bf16":
        return to_bf16_bits(x)
    return x.astype(np.float16 if dtype == "f16" else np.float32)


def _load(stored: Array) -> F64:
    return (from_bf16_bits(stored) if stored.dtype == np.uint16 else stored).astype(np.float64)


def _describe_unknown(name: str, value: str, allowed: tuple[str, ...]) -> str:
    return f"{name} = {value!r}; allowed: {', '.join(allowed)}{nearest(value, allowed)}"
