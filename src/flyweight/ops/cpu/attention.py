"""The KV cache of the CPU backend: its memory, what writes it and what reads it.

Invariant: blocks that were never written cost no memory (pages of zeros are mapped when
touched), and no value beyond a token's own position reaches its output.  The layout is
native/kv.h's; this module knows its sizes only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flyweight import _native
from flyweight.errors import ConfigError, nearest
from flyweight.ops.base import KV_DTYPES, Array, check_codes, uses_pairs
from flyweight.ops.kvbytes import read_rows, view_blocks, write_rows
from flyweight.ops.operands import HeadNorm, KVLayer, Rotation
from flyweight.spec import KV_TYPES, KVGroup
from flyweight.wire import F32, I32, U8, Batch

ALIGN = 64  # a cache line and the widest vector


@dataclass(frozen=True, slots=True)
class CpuKV:
    """K and V of one layer: `k` and `v` are raw bytes, `native` the same memory with its layout.
    Where V is a part of K there is no `v`.
    """

    group: KVGroup
    blocks: int
    block_size: int
    dtype: str
    k: U8
    v: U8 | None
    native: Any

    @property
    def nbytes(self) -> int:
        """Bytes of all slots, touched or not."""
        held = (self.k,) if self.v is None else (self.k, self.v)
        return sum(part.nbytes - _native.KV_SPARE for part in held)

    @property
    def block_bytes(self) -> int:
        return self.nbytes // self.blocks

    @property
    def parts(self) -> tuple[U8, ...]:
        """All slots' memory, [blocks, bytes of one] each."""
        held = (self.k,) if self.v is None else (self.k, self.v)
        return tuple(view_blocks(part[: -_native.KV_SPARE], self.blocks) for part in held)


def _allocate_zeros(nbytes: int) -> U8:
    raw = np.zeros(nbytes + ALIGN, np.uint8)
    skip = -raw.ctypes.data % ALIGN
    return raw[skip : skip + nbytes]


def _to_int32(a: Array) -> I32:
    return np.ascontiguousarray(a, np.int32)


def _to_float32(a: Array) -> F32:
    return np.ascontiguousarray(a, np.float32)


def make_kv_layer(
    group: KVGroup, blocks: int, block_size: int, dtype: str, activations: str = "f32"
) -> CpuKV:
    """Raises `ConfigError` for a dtype or a group this backend does not store."""
    if dtype not in KV_DTYPES:
        known = ", ".join(KV_DTYPES)
        near = nearest(dtype, KV_DTYPES)
        raise ConfigError(f"KV dtype = {dtype!r} is unknown; allowed: {known}{near}")
    if group.kind != "full":
        raise ConfigError(f"KV group kind = {group.kind!r} is not supported; allowed: full")
    if group.v_in_k and group.v_dim > group.k_dim:
        raise ConfigError(
            f"KV group with V of {group.v_dim} elements in K of {group.k_dim}; "
            f"allowed: at most {group.k_dim}"
        )
    check_codes(group, block_size, dtype)
    kind, slots = KV_TYPES[dtype], blocks * block_size
    of_k = slots * kind.count_bytes(replace(group, v_in_k=True))
    k = _allocate_zeros(of_k + _native.KV_SPARE)
    of_v = slots * kind.count_bytes(group) - of_k
    v = None if group.v_in_k else _allocate_zeros(of_v + _native.KV_SPARE)
    pairs = not kind.coded and uses_pairs(group, block_size, dtype, activations)
    shape = (group.heads, block_size, group.k_dim, group.v_dim, pairs)
    native = _native.KV(k, v, KV_DTYPES.index(dtype), blocks, shape)
    return CpuKV(group, blocks, block_size, dtype, k, v, native)


class Attention:
    """The ops that touch KV memory, on one pool.  Owns their working memory: one call at a time."""

    def __init__(self, pool: _native.Pool) -> None:
        self._pool = pool
        self.scratch = _native.Scratch()

    def rope_store(
        self, qkv: F32, kv: KVLayer, batch: Batch, rope: Rotation, norms: HeadNorm | None
    ) -> F32:
        """[T, (Hq+Hk)*Dk + Hk*Dv] -> q [T,Hq,Dk]."""
        assert isinstance(kv, CpuKV)
        heads = (None, None, 0.0) if norms is None else (norms.q, norms.k, norms.eps)
        cos, sin = _to_float32(rope.cos), _to_float32(rope.sin)
        slots = _to_int32(batch.slots)
        q: F32 = _native.rope_store(self._pool, _to_float32(qkv), kv.native, slots, cos, sin, heads)
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
        """[T,Hq,Dk] -> [T,Hq*Dv]."""
        assert isinstance(kv, CpuKV)
        where = _to_int32(batch.positions), _to_int32(batch.starts), _to_int32(batch.tables)
        args = self._pool, self.scratch, _to_float32(q), kv.native
        scoring = scale, (window, chunk), softcap, None if sinks is None else _to_float32(sinks)
        out: F32 = _native.attend(*args, *where, scoring)
        return out

    def populate_kv(self, kv: KVLayer, first: int, count: int) -> None:
        assert isinstance(kv, CpuKV)
        _native.populate_kv(self._pool, kv.native, first, count)

    def move_kv(self, kv: KVLayer, src: I32, dst: I32) -> None:
        """As if every source were read before the first destination is written."""
        assert isinstance(kv, CpuKV)
        _native.move_kv(self._pool, self.scratch, kv.native, _to_int32(src), _to_int32(dst))

    def read_kv(self, kv: KVLayer, blocks: Sequence[int], out: U8) -> None:
        assert isinstance(kv, CpuKV)
        read_rows(kv.parts, blocks, out)

    def write_kv(self, kv: KVLayer, blocks: Sequence[int], data: U8) -> None:
        assert isinstance(kv, CpuKV)
        write_rows(kv.parts, blocks, data)
