"""Sequences that begin with the same blocks are read together, and nobody's bits change.

Each sequence's rows are compared with the same call for that sequence alone, where nothing can be
shared.  That shared blocks are read once is counted in native/tests/test_attend_plan.cpp.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from op_cases import Make, Paged, normal, poisoned, still

from flyweight.ops.base import Ops
from flyweight.ops.operands import KVLayer
from flyweight.spec import KV_TYPES, KVGroup
from flyweight.wire import F32, I32, Batch

slow_ok = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class Forest:
    """Sequences over `tables` that share blocks as their prefixes say; all K/V random."""

    group: KVGroup
    heads: int
    block: int
    tables: I32
    contexts: list[int]
    seed: int

    def store(self, ops: Ops, dtype: str) -> KVLayer:
        blocks = int(self.tables.max()) + 1
        pages = Paged(np.arange(blocks, dtype=np.int32)[None], self.block, blocks)
        kv = poisoned(ops, self.group, pages, dtype)
        used = {int(b) for row, c in zip(self.tables, self.contexts, strict=True)
                for b in row[: -(-c // self.block)]}  # fmt: skip
        slots = (np.array(sorted(used))[:, None] * self.block + np.arange(self.block)).ravel()
        count = len(slots)
        rng = np.random.default_rng(self.seed)
        qkv = normal(rng, count, self.heads * self.group.k_dim + self.group.width)
        batch = replace(pages.step([(0, count)]), slots=slots.astype(np.int32))
        ops.rope_store(qkv, kv, batch, still(count, 0), None)
        return kv

    def step(self, counts: list[int]) -> Batch:
        chunks = [(c - n, n) for c, n in zip(self.contexts, counts, strict=True)]
        return Paged(self.tables, self.block, 0).step(chunks)


def forest(lengths: list[list[int]], contexts: list[int], block: int, group: KVGroup, share: int,
           seed: int = 0) -> Forest:  # fmt: skip
    """`lengths[s]`: how many leading blocks s shares with sequence 0, 1, ...; shared with the
    first that shares most.
    """
    rng = np.random.default_rng(seed)
    width = max(-(-c // block) for c in contexts)
    order = iter(1 + rng.permutation(len(contexts) * width))
    tables = np.zeros((len(contexts), width), np.int32)
    for s in range(len(contexts)):
        tables[s] = [next(order) for _ in range(width)]
        if lengths[s]:
            other = int(np.argmax(lengths[s]))
            tables[s, : lengths[s][other]] = tables[other, : lengths[s][other]]
    return Forest(group, group.heads * share, block, tables, contexts, seed)


def check(some: Forest, ops: Ops, alone: Ops, counts: list[int], dtype: str,
          kind: tuple[int, float, F32 | None]) -> None:  # fmt: skip
    kv, batch = some.store(ops, dtype), some.step(counts)
    rng = np.random.default_rng(1)
    q = normal(rng, sum(counts), some.heads, some.group.k_dim)
    out = ops.attend(q, kv, batch, 0.3, *kind)
    assert np.isfinite(out).all()
    for s in range(len(counts)):
        mine = [n if i == s else 0 for i, n in enumerate(counts)]
        rows = slice(int(batch.starts[s]), int(batch.starts[s + 1]))
        assert (alone.attend(q[rows], kv, some.step(mine), 0.3, *kind) == out[rows]).all()


@st.composite
def forests(draw: st.DrawFn) -> tuple[Forest, list[int]]:
    count, block = draw(st.integers(2, 7)), draw(st.sampled_from([1, 8, 16, 24, 32, 64]))
    contexts = draw(st.lists(st.integers(100, 1400), min_size=count, max_size=count))
    tokens = [draw(st.sampled_from([1, 1, 1, 0, 3, 8, 40])) for _ in range(count)]
    whole = [(c - n) // block for c, n in zip(contexts, tokens, strict=True)]
    most = st.one_of(st.just(10**6), st.integers(0, 1500 // block))
    lengths = [[min(draw(most), whole[s], whole[o]) for o in range(s)] for s in range(count)]
    v_in_k, share = draw(st.booleans()), draw(st.sampled_from([1, 2, 5, 16]))
    k_dim, v_dim = draw(st.sampled_from([(16, 8), (32, 16), (64, 48)]))
    group = KVGroup(draw(st.integers(1, 2)), k_dim, v_dim, v_in_k=v_in_k)
    return forest(lengths, contexts, block, group, share, draw(st.integers(0, 9))), tokens


@slow_ok
@given(drawn=forests(), data=st.data())
def test_sharing_changes_no_bit(
    native: Make, drawn: tuple[Forest, list[int]], data: st.DataObject
) -> None:
    some, tokens = drawn
    sinks = normal(np.random.default_rng(2), some.heads) if data.draw(st.booleans()) else None
    window = data.draw(st.sampled_from([0, 0, 1, 60, 64, 500, 513, 1000]))
    kind = window, data.draw(st.sampled_from([0.0, 5.0])), sinks
    threads, dtype = (
        data.draw(st.sampled_from([1, 2, 7])),
        data.draw(st.sampled_from(["f16", "bf16"])),
    )
    if sum(tokens):
        check(some, native(threads=threads), native(threads=1), tokens, dtype, kind)


@pytest.mark.parametrize("mode", ["f32", "int8"])
@pytest.mark.parametrize("context", [600, 1100, 3000])
def test_a_system_prompt(native: Make, context: int, mode: str) -> None:
    """Sixteen sequences behind one prompt, at different distances from it."""
    prefix = context // 32
    contexts = [prefix * 32 + 1 + 7 * s for s in range(16)]
    lengths = [[prefix] * s for s in range(16)]
    some = forest(lengths, contexts, 32, KVGroup(2, 32, 32), 2)
    for threads in (1, 2, 16):
        check(some, native(mode, threads), native(mode, 1), [1] * 16, "bf16", (0, 0.0, None))


def test_groups_within_a_group(native: Make) -> None:
    """All share 600 positions, two halves of them 1,900 and 2,500."""
    lengths = [[], *([60] * s for s in range(1, 4)), [18] * 4,
               *([18] * 4 + [78] * (s - 4) for s in range(5, 8))]  # fmt: skip
    some = forest(lengths, [2600] * 8, 32, KVGroup(1, 32, 32), 4)
    check(some, native(threads=2), native(threads=1), [1] * 8, "f16", (0, 0.0, None))


@pytest.mark.parametrize("dtype", [kind.name for kind in KV_TYPES.values() if kind.coded])
def test_a_system_prompt_in_codes(native: Make, dtype: str) -> None:
    contexts = [600 + 7 * s for s in range(16)]
    some = forest([[18] * s for s in range(16)], contexts, 32, KVGroup(2, 32, 32), 2)
    for threads in (2, 7):
        check(some, native("int8", threads), native("int8", 1), [1] * 16, dtype, (0, 0.0, None))
