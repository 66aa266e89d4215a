"""The executable specification: every op in plain NumPy, to be checked by eye; it can run a model.

Invariant: each output row is computed from that row's inputs alone, in float64, and rounded to
float32 once, at the end; this is the truth the kernels are measured against.  Only what is stored
rounds earlier: quantised activations, K and V in the cache, the residual sum.  Nothing here is
fast, and nothing here knows threads or tiles.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flyweight.errors import CheckpointError, ConfigError
from flyweight.ops.base import (
    ACTIVATIONS,
    FLOAT_CODES,
    GATED_ACTS,
    KV_DTYPES,
    PLAIN_ACTS,
    Array,
    Part,
    check_codes,
    choose_rounding,
    from_bf16_bits,
    to_bf16_bits,
    uses_pairs,
)
from flyweight.ops.grouped import BlockRows, GroupedWeight, find_base
from flyweight.ops.kvbytes import read_rows, view_blocks, write_rows
from flyweight.ops.operands import HeadNorm, KVLayer, LowRank, Rotation, Weight, Weights
from flyweight.ops.reference_kv import count_turned, load, store, turn
from flyweight.ops.reference_math import (
    activate,
    attend_one,
    compute_rms,
    compute_sigmoid,
    describe_unknown,
    find_kind,
    list_factors,
    normalize_heads,
    rotate,
    round_rows,
    round_static,
    route,
    to_floats,
)
from flyweight.ops.reference_sample import sample
from flyweight.ops.stack import Layer, SteppedStack, adapt
from flyweight.spec import KV_TYPES, KVGroup, RouteSpec
from flyweight.wire import F32, F64, I32, U8, Batch, SampleBatch, Sampled


@dataclass(frozen=True, slots=True)
class ReferenceWeight:
    """A dequantised matrix, [N,K] float64, that remembers what it was packed from.  `product` is
    what `linear` multiplies with: `matrix`, or for codes of floats rounded to bf16; its columns are
    those of the codes, `columns` of x.  `input_scale` is the calibrated scale of its activations, 0
    for none.
    """

    matrix: F64
    kind: str
    bias: F32 | None
    product: F64
    columns: I32 | None = None
    input_scale: float = 0.0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.matrix.shape

    @property
    def nbytes(self) -> int:
        return self.matrix.nbytes + (0 if self.bias is None else self.bias.nbytes)


@dataclass(frozen=True, slots=True)
class ReferenceKV:
    """K and V by slot: [N*B, Hk, D] float32, float16, uint16 holding bfloat16 bits, or float64 of
    what codes represent, K rotated in runs of `turned` elements.

    A slot holds NaN until it is written, so reading one that never was cannot pass unnoticed.
    """

    group: KVGroup
    block_size: int
    k: Array
    v: Array
    dtype: str
    paired: bool  # q is rounded to bf16 as K is; the softmax weights are not
    turned: int

    @property
    def nbytes(self) -> int:
        return len(self.k) * KV_TYPES[self.dtype].count_bytes(self.group)

    @property
    def block_bytes(self) -> int:
        return sum(part.shape[1] for part in self.parts)

    @property
    def parts(self) -> tuple[U8, ...]:
        """All memory as bytes, [blocks, bytes of one] each."""
        held = (self.k,) if self.group.v_in_k else (self.k, self.v)
        return tuple(view_blocks(part, len(self.k) // self.block_size) for part in held)


class ReferenceOps:
    """`ops.base.Ops` in NumPy; holds no state but the activation mode."""

    def __init__(self, activations: str = "f32") -> None:
        if activations not in ACTIVATIONS:
            raise ConfigError(describe_unknown("activations", activations, ACTIVATIONS))
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
        kinds = sorted({find_kind(part) for part in pieces})
        if len(kinds) != 1:
            raise CheckpointError(f"parts of one weight are of kinds {', '.join(kinds)}; need one")
        matrix = np.concatenate([to_floats(part) for part in pieces]).astype(np.float64)
        if matrix.shape != shape:
            raise CheckpointError(f"weight of shape {matrix.shape} where {shape} is needed")
        first = pieces[0]
        if not isinstance(first, GroupedWeight):
            return ReferenceWeight(matrix, kinds[0], bias, matrix)
        rounds = find_base(kinds[0]) in FLOAT_CODES and self._activations != "f32"
        product = np.concatenate([list_factors(part, rounds) for part in pieces])
        return ReferenceWeight(matrix, kinds[0], bias, product, first.columns, first.input_scale)

    def count_packed_bytes(self, shape: tuple[int, int], kind: str) -> int:
        return shape[0] * shape[1] * 8

    def make_kv_layer(
        self, group: KVGroup, blocks: int, block_size: int, dtype: str
    ) -> ReferenceKV:
        if dtype not in KV_DTYPES:
            raise ConfigError(describe_unknown("KV dtype", dtype, KV_DTYPES))
        check_codes(group, block_size, dtype)
        slots, turned = blocks * block_size, count_turned(group, dtype)
        never = np.full((slots, group.heads, max(group.k_dim, group.v_dim)), np.nan, np.float32)
        k, v = store(never[..., : group.k_dim], dtype), store(never[..., : group.v_dim], dtype)
        if group.v_in_k:
            v = k[..., group.k_dim - group.v_dim :]
        pairs = uses_pairs(group, block_size, dtype, self._activations)
        return ReferenceKV(group, block_size, k, v, dtype, pairs, turned)

    # --- step bounds: nothing to hold between ops ---
    def begin(self, batch: Batch) -> None: ...

    def end(self) -> None: ...

    # --- compute ---
    def embed(self, table: Weight, ids: I32) -> F32:
        assert isinstance(table, ReferenceWeight)
        return table.matrix[ids].astype(np.float32)

    def norm(self, x: F32, w: F32, eps: float) -> F32:
        return compute_rms(x, w, eps).astype(np.float32)

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
        mode = choose_rounding(self._activations, w.kind)
        static = w.input_scale and mode == "int8"
        x = x if w.columns is None else x[:, w.columns]
        rounded = round_static(x, w.input_scale) if static else round_rows(x, mode)  # [T,K]
        out = np.empty((len(x), w.shape[0]), np.float32)  # [T,N]
        for t, row in enumerate(rounded):  # one at a time: T cannot change the order of a sum
            y = w.product @ row
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
        q = rotate(normalize_heads(q, group.k_dim, norms, "q"), rope)
        k = rotate(normalize_heads(k, group.k_dim, norms, "k"), rope)
        kv.k[batch.slots] = store(k, kv.dtype, kv.turned)
        if not group.v_in_k:
            kv.v[batch.slots] = store(v.reshape(count, group.heads, group.v_dim), kv.dtype)
        if batch.ancestors is not None:
            self.move_kv(kv, *batch.ancestors)
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
        q = from_bf16_bits(to_bf16_bits(turn(q, kv.turned))) if kv.paired else q
        out = np.empty((len(q), q.shape[1] * kv.group.v_dim), np.float32)  # [T, Hq*D]
        for s, context in enumerate(batch.contexts):
            block, offset = np.divmod(np.arange(context), kv.block_size)
            slots = batch.tables[s][block] * kv.block_size + offset
            k, v = load(kv.k[slots]), load(kv.v[slots])  # [context, Hk, D]
            for t in range(batch.starts[s], batch.starts[s + 1]):
                seen = batch.positions[t] + 1
                first = max(0, seen - window) if window else 0
                first = max(first, batch.positions[t] // chunk * chunk) if chunk else first
                own = k[first:seen], v[first:seen]
                out[t] = attend_one(q[t], *own, scale, softcap, sinks)
        return out

    def act(self, x: F32, kind: str) -> F32:
        gate, up = np.split(x.astype(np.float64), 2, axis=1)  # [T,I] each
        if kind == "swiglu_clamped":
            gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
            return (gate * compute_sigmoid(1.702 * gate) * (up + 1)).astype(np.float32)
        return (activate(gate, kind, GATED_ACTS) * up).astype(np.float32)

    def activate(self, x: F32, kind: str) -> F32:
        return activate(x.astype(np.float64), kind, PLAIN_ACTS).astype(np.float32)

    def add(self, x: F32, residual: F32) -> None:
        residual += x

    def scale(self, x: F32, by: float) -> None:
        x *= np.float32(by)

    def scale_rows(self, x: F32, by: F32) -> None:
        x *= by.reshape(-1, *[1] * (x.ndim - 1))

    def softcap(self, x: F32, cap: float) -> None:
        x[:] = cap * np.tanh(x.astype(np.float64) / cap)

    def gate(self, x: F32, logits: F32) -> None:
        x[:] = x * compute_sigmoid(logits.astype(np.float64))

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

    def replay(self, batch: Batch, kv: Sequence[KVLayer], body: Callable[[Batch], F32]) -> F32:
        return body(batch)

    def populate_kv(self, kv: KVLayer, first: int, count: int) -> None:
        """All blocks were written when they were made."""

    def move_kv(self, kv: KVLayer, src: I32, dst: I32) -> None:
        assert isinstance(kv, ReferenceKV)
        kv.k[dst] = kv.k[src]
        if not kv.group.v_in_k:  # else it is a part of K
            kv.v[dst] = kv.v[src]

    def read_kv(self, kv: KVLayer, blocks: Sequence[int], out: U8) -> None:
        assert isinstance(kv, ReferenceKV)
        read_rows(kv.parts, blocks, out)

    def write_kv(self, kv: KVLayer, blocks: Sequence[int], data: U8) -> None:
        assert isinstance(kv, ReferenceKV)
        write_rows(kv.parts, blocks, data)

    def read_memory(self) -> None:
        """The host's memory."""

    def fetch(self, x: F32) -> F32:
        return x

    def upload(self, x: F32) -> F32:
        return x
