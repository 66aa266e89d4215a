"""A draft that is a tree, laid out by hand, and its paths as plain drafts.

The context has 21 tokens; the last known one, r, is at position 21.  The trunk is r a b; a branch
c d goes from r, and from c another branch, e.  The blocks have 16 tokens, so each branch has a copy
of positions 16 to 20, and of its ancestors.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from op_cases import ids, normal, still

from flyweight.ops.operands import Rotation
from flyweight.sampling.arrays import columns
from flyweight.spec import KVGroup
from flyweight.wire import F32, Batch

BLOCK, BLOCKS, KNOWN = 16, 7, 21
TOKENS = "rabcde"
POSITIONS = {"r": 21, "a": 22, "b": 23, "c": 22, "d": 23, "e": 23}
PATHS = ("rab", "rcd", "rce")
TRUNK, FIRST, SECOND = [3, 1], [3, 5], [3, 2]


def find_slots(table: list[int], first: int, last: int) -> list[int]:
    """Slots of positions first:last."""
    return [table[p // BLOCK] * BLOCK + p % BLOCK for p in range(first, last)]


TAILS = (  # what is copied before the step
    ids(*find_slots(TRUNK, 16, KNOWN) * 2),
    ids(*find_slots(FIRST, 16, KNOWN), *find_slots(SECOND, 16, KNOWN)),
)
ANCESTORS = (  # r to both branches, c to the second
    ids(*find_slots(TRUNK, 21, 22) * 2, *find_slots(FIRST, 22, 23)),
    ids(*find_slots(FIRST, 21, 22), *find_slots(SECOND, 21, 23)),
)


def make_batch(views: list[tuple[list[int], int, int]]) -> Batch:
    """Sequences: a table, and the positions to be computed."""
    positions = ids(*(p for _, first, last in views for p in range(first, last)))
    return Batch(
        tokens=np.zeros_like(positions),
        positions=positions,
        slots=ids(*(slot for view in views for slot in find_slots(*view))),
        starts=ids(*np.cumsum([0, *(last - first for _, first, last in views)])),
        contexts=ids(*(last for _, _, last in views)),
        tables=ids(*(block for table, _, _ in views for block in table)).reshape(len(views), 2),
        rows=ids(0),
        sampling=columns([]),
    )


@dataclass(frozen=True)
class TreeCase:
    """Random rows of the context and of the tree's tokens, by name."""

    group: KVGroup
    heads: int
    context: F32
    rows: dict[str, F32]

    def attend(self, ops: Any, dtype: str, options: dict[str, Any]) -> dict[str, dict[str, F32]]:
        """What each token sees: in the tree, and on each path as a plain draft."""
        batch = make_batch([(TRUNK, 21, 24), (FIRST, 22, 24), (SECOND, 23, 24)])
        tree = self._run(ops, dtype, TOKENS, replace(batch, ancestors=ANCESTORS), options)
        chain = make_batch([(TRUNK, 21, 24)])
        return {"": tree} | {path: self._run(ops, dtype, path, chain, options) for path in PATHS}

    def _run(
        self, ops: Any, dtype: str, tokens: str, batch: Batch, options: dict[str, Any]
    ) -> dict[str, F32]:
        kv = ops.make_kv_layer(self.group, BLOCKS, BLOCK, dtype)
        known = make_batch([(TRUNK, 0, KNOWN)])
        ops.rope_store(ops.upload(self.context), kv, known, self._turn(KNOWN), None)
        if batch.ancestors is not None:
            ops.move_kv(kv, *TAILS)
        rows = ops.upload(np.concatenate([self.rows[name] for name in tokens]))
        q = ops.rope_store(rows, kv, batch, self._turn(len(tokens)), None)
        out = ops.fetch(ops.attend(q, kv, batch, 0.3, **options))
        return dict(zip(tokens, out, strict=True))

    def _turn(self, tokens: int) -> Rotation:
        return still(tokens, self.group.k_dim // 2)


def make_case(group: KVGroup, heads: int) -> TreeCase:
    rng = np.random.default_rng(3)
    width = heads * group.k_dim + group.width
    return TreeCase(
        group, heads, normal(rng, KNOWN, width), {name: normal(rng, 1, width) for name in TOKENS}
    )


def check_tree(ops: Any, case: TreeCase, dtype: str, **options: Any) -> None:
    """A token of the tree has the bits of the same token on each path that has it."""
    found = case.attend(ops, dtype, options)
    tree = found.pop("")
    for path, rows in found.items():
        for name, row in rows.items():
            assert np.isfinite(row).all()
            assert (row == tree[name]).all(), f"{name} on {path}"
    assert (tree["d"] != tree["e"]).any() and (tree["b"] != tree["d"]).any()
