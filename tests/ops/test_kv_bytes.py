"""Blocks of K/V as bytes: `read_kv` and `write_kv` of docs/ops.md, for every backend."""

import numpy as np
import pytest
from op_cases import Make, normal, paged, still

from flyweight.spec import KV_TYPES, KVGroup


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(29)


@pytest.mark.parametrize("v_in_k", [False, True])
@pytest.mark.parametrize("dtype", KV_TYPES)
def test_blocks_of_kv_are_copied_out_and_in(
    make: Make, rng: np.random.Generator, dtype: str, v_in_k: bool
) -> None:
    ops, pages = make(), paged(rng, [(0, 48)], 16)
    group = KVGroup(1, 40, 24, v_in_k=True) if v_in_k else KVGroup(2, 24, 40)
    width = (4 + group.heads) * group.k_dim + (0 if v_in_k else group.heads * group.v_dim)
    batch, blocks = pages.step([(0, 48)]), pages.tables[0, :3].tolist()
    first, second = (ops.make_kv_layer(group, pages.blocks, 16, dtype) for _ in range(2))
    q = ops.rope_store(normal(rng, 48, width), first, batch, still(48, 0), None)
    kept = np.zeros((3, first.block_bytes), np.uint8)
    ops.read_kv(first, blocks, kept)
    others = [block for block in range(pages.blocks) if block not in blocks]
    before = np.zeros((len(others), first.block_bytes), np.uint8)
    after = before.copy()
    ops.read_kv(second, others, before)
    ops.write_kv(second, blocks[:2], kept[:2])
    ops.write_kv(second, blocks[2:], kept[2:])
    ops.read_kv(second, others, after)
    assert (before == after).all()
    assert (ops.attend(q, second, batch, 0.3) == ops.attend(q, first, batch, 0.3)).all()
    again = np.zeros_like(kept)
    ops.read_kv(second, blocks[::-1], again)
    assert (again[::-1] == kept).all()
