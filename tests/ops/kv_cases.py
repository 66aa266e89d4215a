"""What every backend must do with blocks of K/V as bytes."""

import numpy as np
from op_cases import normal, paged, still

from flyweight.ops.base import Ops
from flyweight.spec import KVGroup


def check_copied_blocks(ops: Ops, rng: np.random.Generator, dtype: str, v_in_k: bool) -> None:
    """Blocks that were read and written elsewhere are attended to with the same bits; other blocks
    stay as they were.
    """
    pages = paged(rng, [(0, 48)], 16)
    group = KVGroup(1, 40, 24, v_in_k=True) if v_in_k else KVGroup(2, 24, 40)
    width = (4 + group.heads) * group.k_dim + (0 if v_in_k else group.heads * group.v_dim)
    batch, blocks = pages.step([(0, 48)]), pages.tables[0, :3].tolist()
    first, second = (ops.make_kv_layer(group, pages.blocks, 16, dtype) for _ in range(2))
    qkv = ops.upload(normal(rng, 48, width))
    q = ops.rope_store(qkv, first, batch, still(48, 0), None)
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
    found, expected = (ops.fetch(ops.attend(q, kv, batch, 0.3)) for kv in (second, first))
    assert (found == expected).all()
    again = np.zeros_like(kept)
    ops.read_kv(second, blocks[::-1], again)
    assert (again[::-1] == kept).all()
