"""What a backend may do: the only vocabulary models are written in.

Invariant: an op writes only what its row in docs/ops.md says; its output row depends only on that
row's inputs, bit for bit.  Arrays are NumPy on CPU.  Activations between ops are float32; `linear`
alone rounds them to what it multiplies with. Legend: T tokens, S sequences, R logits rows, H
hidden, Hq/Hk query/KV heads, D head size, I inner, V vocabulary.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from flyweight.errors import ConfigError
from flyweight.ops.grouped import BlockRows, GroupedWeight, find_base
from flyweight.ops.operands import HeadNorm, KVLayer, LowRank, Rotation, Weight, Weights
from flyweight.ops.stack import Layer, Stack
from flyweight.spec import KV_BLOCK, KV_TYPES, KVGroup, RouteSpec
from flyweight.wire import F32, I32, U8, Batch, SampleBatch, Sampled, Tensor

Array = NDArray[Any]
Part = GroupedWeight | BlockRows | Array  # a range of rows of one weight
ACTIVATIONS = ("f32", "bf16", "int8")
KV_DTYPES = tuple(KV_TYPES)
GATED_ACTS = ("silu", "gelu", "gelu_tanh", "swiglu_clamped")
PLAIN_ACTS = ("silu", "gelu", "gelu_tanh", "relu")
FLOAT_CODES = ("nf4", "fp4", "e4m3", "e5m2")  # bases that bf16 products open themselves
DENSE_KINDS = {"float32": "f32", "float16": "f16", "uint16": "bf16"}  # by the array's dtype


def choose_rounding(activations: str, kind: str) -> str:
    """What `linear` rounds its input to, "f32", "bf16" or "int8", for a weight of this kind: int8
    is for grouped kinds; with it, bf16 weights and codes of floats (nf4, e4m3, ...) take bf16 rows
    and other dense weights float32.
    """
    if activations != "int8":
        return activations
    base = find_base(kind)
    return (
        "bf16" if base in ("bf16", *FLOAT_CODES) else {"f32": "f32", "f16": "f32"}.get(base, "int8")
    )


def uses_pairs(group: KVGroup, block_size: int, dtype: str, activations: str) -> bool:
    """Whether attention over this layer multiplies in bf16: q, K, V and the softmax weights are
    rounded to it and multiplied in pairs, sums are float32.  Where shapes do not allow pairs, and
    with activations f32, K and V are only stored in bf16.  Codes are always multiplied in pairs.
    """
    if KV_TYPES[dtype].coded:
        return True
    even = group.k_dim % 2 == 0 and not (group.v_in_k and group.v_dim % 2)
    return dtype == "bf16" and activations != "f32" and even and block_size % 16 == 0


def check_codes(group: KVGroup, block_size: int, dtype: str) -> None:
    """Raises `ConfigError` where K/V of a coded type cannot be stored in this shape."""
    if not KV_TYPES[dtype].coded:
        return
    if block_size % KV_BLOCK:
        raise ConfigError(
            f"holds codes of {KV_BLOCK} tokens at a time, block_size = {block_size} does not",
            "kv_cache_dtype",
            value=dtype,
            hint=f"nearest valid: block_size = {-(-block_size // KV_BLOCK) * KV_BLOCK}",
        )
    if group.k_dim % 2 or (group.v_in_k and group.v_dim % 2):
        raise ConfigError(
            f"needs heads of even size, this model's have {group.k_dim}",
            "kv_cache_dtype",
            value=dtype,
            hint="nearest valid: f16",
        )


class Comm(Protocol):
    """Ranks that share a model.  Alone, all_reduce and all_gather are identities."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def all_reduce(self, x: Array) -> Array:
        """The sum of all ranks' x, added in the order of ranks whatever the shape."""
        ...

    def all_gather(self, x: Array, width: int) -> Array:
        """All ranks' x side by side along the last axis, `width` wide: a rank has the columns that
        `split_evenly` gives it.
        """
        ...


class Ops(Protocol):
    """The op table.  `activations` is what `linear` multiplies with: f32, bf16, or int8 codes per
    32 along K.
    """

    @property
    def activations(self) -> str: ...
    @property
    def kv_dtype(self) -> str:
        """The default type of stored K and V."""
        ...

    @property
    def block_kinds(self) -> frozenset[str]:
        """Kinds whose rows `pack` also takes as a file has them, `BlockRows`."""
        ...

    # --- weights ---
    def pack(
        self,
        shape: tuple[int, int],
        parts: Iterable[Part],
        bias: F32 | None = None,
    ) -> Weight:
        """Packs row ranges, in order, into one weight [N, K].  Parts are `BlockRows` of
        `block_kinds`, or canonical: `GroupedWeight`, or a dense array of dtype float32 / float16,
        or uint16 holding bfloat16 bits.  All parts of one weight are of one kind, of any number of
        rows.  Raises `CheckpointError` on mixed kinds or a wrong row count.
        """
        ...

    def count_packed_bytes(self, shape: tuple[int, int], kind: str) -> int:
        """Bytes `pack` will hold for a weight of this shape and kind, exactly (for the memory
        plan).
        """
        ...

    def make_kv_layer(
        self, group: KVGroup, blocks: int, block_size: int, dtype: str
    ) -> KVLayer: ...

    # --- step bounds ---
    def begin(self, batch: Batch) -> None: ...
    def end(self) -> None: ...

    # --- compute ---
    def embed(self, table: Weight, ids: I32) -> Tensor:
        """[T] -> [T,H]; dequantises only the requested rows."""
        ...

    def norm(self, x: Tensor, w: Tensor, eps: float) -> Tensor:
        """RMS norm, [T,H] -> [T,H]."""
        ...

    def add_norm(self, x: Tensor, residual: Tensor, w: Tensor, eps: float) -> Tensor:
        """residual += x in place, then RMS norm of it: [T,H] -> [T,H]."""
        ...

    def layer_norm(self, x: Tensor, w: Tensor, b: Tensor | None, eps: float) -> Tensor:
        """(x - mean) / sqrt(variance + eps) * w + b, [T,H] -> [T,H]."""
        ...

    def layer_norm_heads(self, x: Tensor, w: Tensor, eps: float) -> None:
        """In place, the first H heads of each row of x [T,N]: `layer_norm` without biases, head h
        with weights w[h], of w [H,D].
        """
        ...

    def linear(self, x: Tensor, w: Weights) -> Tensor:
        """[T,K] x (N,K) -> [T,N], plus the weight's bias if it has one; a tuple's outputs are side
        by side.
        """
        ...

    def linear_heads(self, x: Tensor, w: Sequence[Weights]) -> Tensor:
        """Every head through a matrix of its own: [T,Hq,K] x Hq of (N,K) -> [T,Hq,N]."""
        ...

    def adapt(self, y: Tensor, x: Tensor, low: Mapping[int, LowRank], batch: Batch) -> None:
        """y [T,N] += up(down(x)), x [T,K], in place, with the matrices of each token's sequence
        (`batch.adapters`, -1 for none).
        """
        ...

    def rotation(self, positions: I32, inv_freq: Tensor, scale: float) -> Rotation:
        """Angles are float32(position) * inv_freq in float32, as transformers computes them."""
        ...

    def rope_store(
        self, qkv: Tensor, kv: KVLayer, batch: Batch, rope: Rotation, norms: HeadNorm | None
    ) -> Tensor:
        """qkv [T,(Hq+Hk)*Dk+Hk*Dv] -> q [T,Hq,Dk]: splits, norms heads, rotates, writes K and V at
        batch.slots, and copies it where branches of a tree read it (batch.ancestors).  A group
        with `v_in_k` has no V part in qkv.
        """
        ...

    def attend(
        self,
        q: Tensor,
        kv: KVLayer,
        batch: Batch,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        sinks: Tensor | None = None,
        chunk: int = 0,
    ) -> Tensor:
        """[T,Hq,Dk] -> [T,Hq*Dv]; causal by position, any mix of prefill chunks and decodes; reads
        K/V only from `kv`.  `window` n sees the last n positions, the token's own among them, 0
        all; `chunk` n sees none before p - p % n, p the token's position (Llama 4); `softcap` c
        turns a score s into c*tanh(s/c); `sinks` [Hq] are scores that join the softmax and bring no
        value (gpt-oss).
        """
        ...

    def act(self, x: Tensor, kind: str) -> Tensor:
        """Gated: [T,2I] (gate, then up) -> [T,I] = f(gate) * up, kind "silu" | "gelu" |
        "gelu_tanh"; "swiglu_clamped" is gpt-oss's: gate at most 7, up in [-7,7], then
        gate * sigmoid(1.702 gate) * (up + 1).
        """
        ...

    def activate(self, x: Tensor, kind: str) -> Tensor:
        """Plain: [T,I] -> [T,I] = f(x), kind "silu" | "gelu" | "gelu_tanh" | "relu"."""
        ...

    def add(self, x: Tensor, residual: Tensor) -> None:
        """residual += x in place: [T,H]."""
        ...

    def scale(self, x: Tensor, by: float) -> None:
        """x *= by in place: [T,H]."""
        ...

    def scale_rows(self, x: Tensor, by: Tensor) -> None:
        """x *= by in place, a number a row: [T,...], [T]."""
        ...

    def softcap(self, x: Tensor, cap: float) -> None:
        """x = cap * tanh(x / cap) in place: [R,V]."""
        ...

    def gate(self, x: Tensor, logits: Tensor) -> None:
        """x *= sigmoid(logits) in place, a number a row: [T,H], [T,1]."""
        ...

    def concat(self, parts: Sequence[Tensor]) -> Tensor:
        """Side by side along the last axis; the others are equal."""
        ...

    def route(self, logits: F32, spec: RouteSpec, bias: F32 | None = None) -> tuple[I32, F32]:
        """[T,E] -> ids [T,k], best first, and weights [T,k].  `bias` [E] takes part in choosing,
        not in the weights; of equal scores the lower id goes first.
        """
        ...

    def experts(
        self, x: Tensor, ids: I32, weights: Tensor, up: Sequence[Weights], down: Sequence[Weights],
        act: str,
    ) -> Tensor:  # fmt: skip
        """[T,H] -> [T,H]: the weighted sum, in the order of ids, of down[e](act(up[e](x))) with
        gated kinds; `up` and `down` have a matrix an expert, (2I,H) and (H,I).
        """
        ...

    def take(self, x: Tensor, rows: I32) -> Tensor:
        """[T,H] -> [R,H]."""
        ...

    def sample(self, logits: Tensor, s: SampleBatch) -> Sampled:
        """[R,V] -> tokens and raw log-probabilities; the draw depends only on (seed, choice,
        position).
        """
        ...

    def stack(self, layers: Sequence[Layer]) -> Stack:
        """Decoder layers as one op, made once: in the finer ops (ops/stack.py), or the same bits
        another way.
        """
        ...

    def replay(
        self, batch: Batch, kv: Sequence[KVLayer], body: Callable[[Batch], Tensor]
    ) -> Tensor:
        """body(batch), [T,H] of a step.  A backend may capture what it does and replay that in
        later steps of this size with this `kv`: what else the body reads never moves.
        """
        ...

    def populate_kv(self, kv: KVLayer, first: int, count: int) -> None:
        """Has the system find memory for blocks that may never have been written, which it would
        do at the first write; what they hold stays.
        """
        ...

    def move_kv(self, kv: KVLayer, src: I32, dst: I32) -> None:
        """Copies K and V from slots src to slots dst (copy-on-write)."""
        ...

    def read_kv(self, kv: KVLayer, blocks: Sequence[int], out: U8) -> None:
        """Copies blocks to the host, byte for byte in the backend's own layout: out [n,
        block_bytes].
        """
        ...

    def write_kv(self, kv: KVLayer, blocks: Sequence[int], data: U8) -> None:
        """Copies what `read_kv` gave of a layer like this into blocks: data [n, block_bytes]."""
        ...

    def read_memory(self) -> tuple[int, int] | None:
        """(total, free) bytes of the device's own memory; None where it is the host's."""
        ...

    # --- between the host and the device; the same array where there is none ---
    def fetch(self, x: Tensor) -> Tensor:
        """An array of the backend as a host array."""
        ...

    def upload(self, x: Tensor) -> Tensor:
        """A host array as an array of the backend."""
        ...


@runtime_checkable
class Packing(Protocol):
    """A backend whose packed weights are plain bytes, which may be in a file.  `packing` names
    their layout: under equal names equal parts give equal bytes.
    """

    @property
    def packing(self) -> str: ...
    def count_packed_bytes(self, shape: tuple[int, int], kind: str) -> int: ...

    def view_packed(self, weight: Weight) -> U8:
        """A weight's bytes, its bias apart: a view."""
        ...

    def map_file(self, descriptor: int) -> Any:
        """A file of packed weights, mapped to be read; it lives as long as a weight in it."""
        ...

    def count_unmoved(self, file: Any) -> int:
        """Bytes of such a file that are read more slowly than they could be, as they are mapped,
        and that `move` can take elsewhere.
        """
        ...

    def move(self, file: Any, count: int) -> None:
        """Takes about `count` more bytes to memory of the process's own; no weight notices.  Where
        the system refuses that, nothing is left to move.
        """
        ...

    def map_weight(
        self, file: Any, offset: int, shape: tuple[int, int], kind: str, bias: F32 | None
    ) -> Weight:
        """The weight whose bytes begin at an offset of such a file."""
        ...


@runtime_checkable
class OnDevice(Protocol):
    """A backend whose arrays are tensors on a `device`, one for each rank of a host."""

    @property
    def device(self) -> Any: ...

    def count_devices(self) -> int | None:
        """Those of this host; None where any number of ranks can share one."""
        ...

    def read_memories(self, count: int) -> list[tuple[int, int]]:
        """(total, free) bytes of the memory of the first `count` devices of this host; none where
        it is the host's.
        """
        ...


def to_bf16_bits(x: F32) -> NDArray[np.uint16]:
    """Rounds float32 to bfloat16, nearest even; returns the bits.  NaN stays NaN."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (u + 0x7FFF + ((u >> 16) & 1)) >> 16
    return np.where(np.isnan(x), (u >> 16) | 0x40, rounded).astype(np.uint16)


def from_bf16_bits(bits: NDArray[np.uint16]) -> F32:
    """bfloat16 bits to float32, exactly."""
    wide = bits.astype(np.uint32)
    wide <<= 16  # in place: a second array of this size costs more than the shift
    return wide.view(np.float32)
