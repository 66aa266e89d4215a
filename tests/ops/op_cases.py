"""Ragged steps and random weights for the op tests: shapes where tiles, blocks and chunks end."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

import grouped_weights
from flyweight import _native
from flyweight.ops.base import Array, Ops, to_bf16_bits
from flyweight.ops.cpu import CpuOps
from flyweight.ops.grouped import GroupedWeight
from flyweight.ops.operands import KVLayer, Rotation
from flyweight.sampling.arrays import columns
from flyweight.spec import KVGroup
from flyweight.wire import F32, I32, Batch

EPS = 2.0**-24
OPENED = 1.4 * 2.0**-8  # the error of a weight that is opened to bf16, at most
Make = Callable[..., Ops]  # (activations, threads) -> a backend
DENSE = ("f32", "f16", "bf16")
GROUPED = grouped_weights.GROUPED


def opens_to_bf16(ops: Ops) -> bool:
    return isinstance(ops, CpuOps) and _native.Pool(1, ops.isa).opens_pairs


def ids(*values: int) -> I32:
    return np.array(values, np.int32)


def normal(rng: np.random.Generator, *shape: int) -> F32:
    return rng.normal(size=shape).astype(np.float32)


@dataclass(frozen=True)
class Paged:
    """Sequences laid over shuffled blocks: `tables` [S,M]; block 0 belongs to nobody."""

    tables: I32
    block: int
    blocks: int

    def step(self, chunks: list[tuple[int, int]]) -> Batch:
        """A batch that computes `count` tokens after `computed` ones, for each sequence."""
        positions = [np.arange(c, c + n) for c, n in chunks]
        slots = [
            self.tables[s][p // self.block] * self.block + p % self.block
            for s, p in enumerate(positions)
        ]
        starts = np.cumsum([0, *(n for _, n in chunks)])
        where = np.concatenate(positions).astype(np.int32)
        rows = ids(*(end - 1 for end, (_, n) in zip(starts[1:], chunks, strict=True) if n))
        return Batch(
            tokens=np.zeros_like(where),
            positions=where,
            slots=np.concatenate(slots).astype(np.int32),
            starts=starts.astype(np.int32),
            contexts=ids(*(c + n for c, n in chunks)),
            tables=self.tables,
            rows=rows,
            sampling=columns([]),
        )


def paged(rng: np.random.Generator, chunks: list[tuple[int, int]], block: int) -> Paged:
    counts = [-(-(c + n) // block) for c, n in chunks]
    free = list(1 + rng.permutation(sum(counts)))
    tables = np.zeros((len(chunks), max(counts)), np.int32)
    for s, count in enumerate(counts):
        tables[s, :count] = [free.pop() for _ in range(count)]
    return Paged(tables, block, sum(counts) + 1)


def still(tokens: int, half: int) -> Rotation:
    """A rotation by nothing: what is stored is exactly what was given, rounded to the cache."""
    return Rotation(np.ones((tokens, half), np.float32), np.zeros((tokens, half), np.float32))


def poisoned(ops: Ops, group: KVGroup, pages: Paged, dtype: str) -> KVLayer:
    """A KV layer with NaN in every slot, written through the op itself."""
    kv = ops.make_kv_layer(group, pages.blocks, pages.block, dtype)
    everything = Paged(np.arange(pages.blocks, dtype=np.int32)[None], pages.block, pages.blocks)
    batch = everything.step([(0, pages.blocks * pages.block)])
    tokens = len(batch.tokens)
    qkv = np.full((tokens, group.heads * group.k_dim + group.width), np.nan, np.float32)
    ops.rope_store(qkv, kv, batch, still(tokens, group.k_dim // 2), None)
    return kv


def part(rng: np.random.Generator, kind: str, n: int, k: int) -> GroupedWeight | Array:
    if kind in GROUPED:
        return grouped_weights.random_grouped(rng, kind, n, k)
    dense = normal(rng, n, k)
    if kind == "bf16":
        return to_bf16_bits(dense)
    return dense.astype(np.float16 if kind == "f16" else np.float32)


def pieces(rng: np.random.Generator, kind: str, n: int, k: int) -> list[GroupedWeight | Array]:
    """One, or three parts whose borders are no multiple of a tile."""
    cuts, whole = [0, n] if n < 16 else [0, 3, n // 2 + 1, n], part(rng, kind, n, k)
    if isinstance(whole, GroupedWeight):
        return [whole.take(slice(a, b)) for a, b in pairwise(cuts)]
    return [whole[a:b] for a, b in pairwise(cuts)]


def reach(piece: GroupedWeight | Array, dense: F32) -> NDArray[np.float64]:
    """|w| as the error bound of `linear` counts it."""
    if isinstance(piece, GroupedWeight):
        return grouped_weights.reach(piece)
    return np.abs(dense).astype(np.float64)


def within(got: Array, want: Array, bound: Array | float) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype == np.float32
    error = np.abs(got.astype(np.float64) - want)
    worst = (error - bound).max(initial=-1)
    assert worst <= 0, f"off by {error.max()}, over the bound by {worst}"
