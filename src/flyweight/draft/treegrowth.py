"""Grows trees of draft tokens with a layer that makes states: the likeliest paths, or one shape.

A level at a time: of every path that goes on, the pair of its last token is computed, and the best
few tokens after it become its children.

Each path has a table of its own: the request's blocks before the newest pair's, then blocks that
belong to the drafter, with copies of what is in the request's block and of the path so far.

Invariant: K and V of a request's own blocks are of true states only, however its trees grow.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from flyweight.draft.drafter import Draft
from flyweight.draft.model import DraftRow
from flyweight.draft.tree import ROOT
from flyweight.draft.treerules import GrowingTree, GrownPath, TreeRule
from flyweight.ops.base import Ops
from flyweight.ops.operands import KVLayer
from flyweight.sampling.arrays import LogitsRow, columns
from flyweight.wire import F32, I32, Batch, Sampled, Tensor

ROWS = 32  # paths that are computed at once, unless one tree has more


class StateLayer(Protocol):
    """Makes the state [H] after a pair, and the logits of what follows it."""

    @property
    def ops(self) -> Ops: ...

    def compute_states(self, batch: Batch, states: F32, kv: Sequence[KVLayer]) -> Tensor:
        """The states [T,H] after the batch's pairs, whose K and V are written."""
        ...

    def compute_logits(self, states: Tensor) -> Tensor:
        """Of the tokens that follow states that were computed, [R,H] -> [R,V]."""
        ...


def count_scratch(rule: TreeRule | None, block_size: int) -> int:
    """Blocks besides the target's: two sets, so that a level copies from the one before."""
    if rule is None:
        return 0
    return 2 * max(ROWS, rule.paths) * count_tail(rule, block_size)


def count_tail(rule: TreeRule, block_size: int) -> int:
    """Blocks of one path, from the one that holds the newest pair."""
    return 1 + (block_size - 1 + rule.depth) // block_size


class TreeGrower:
    """Grows trees by a rule; blocks from `first` on are its own."""

    def __init__(
        self, model: StateLayer, layers: Sequence[KVLayer], rule: TreeRule, first: int
    ) -> None:
        self.model, self.ops, self.layers, self.rule = model, model.ops, layers, rule
        self.block_size = layers[0].block_size
        rows, tail = max(ROWS, rule.paths), count_tail(rule, self.block_size)
        own = first + np.arange(2 * rows * tail, dtype=np.int32)
        self._tails = own.reshape(2, rows, tail)

    def grow(self, rows: Sequence[DraftRow], states: F32) -> list[Draft]:
        """A draft for each row, whose newest computed token has this state."""
        each = max(1, ROWS // self.rule.paths)
        drafts: list[Draft] = []
        for first in range(0, len(rows), each):
            part = slice(first, first + each)
            drafts += self._grow_some(rows[part], states[part])
        return drafts

    def _grow_some(self, rows: Sequence[DraftRow], states: F32) -> list[Draft]:
        trees = [GrowingTree(row) for row in rows]
        for tree, state in zip(trees, states, strict=True):
            tree.grown[ROOT] = GrownPath(state, tree.row.blocks)
        level = 0
        while any(tree.open for tree in trees):
            self._grow_level(trees, level)
            level += 1
            for tree in trees:
                found = self.rule.choose_open(tree, level)
                tree.open = [node for node in found if tree.goes_on(node)]
        return [tree.finish(self.rule.choose_kept(tree)) for tree in trees]

    def _grow_level(self, trees: Sequence[GrowingTree], level: int) -> None:
        """Computes the open nodes, and adds their children."""
        growing = [(tree, node) for tree in trees for node in tree.open]
        before = [tree.grown[tree.nodes[node].parent if level else ROOT] for tree, node in growing]
        tables = self._lay_tables(growing, before, level)
        made, found = self._compute(growing, before, tables, level)
        states = self.ops.fetch(made)
        for tree in trees:
            tree.grown = {}
        rows = zip(
            found.tokens.tolist(), found.top_ids.tolist(), found.top_logprobs.tolist(), strict=True
        )
        for i, ((tree, node), (drawn, ids, scores)) in enumerate(zip(growing, rows, strict=True)):
            tree.grown[node] = GrownPath(states[i], tables[i])
            count = sum(one >= 0 for one in ids)  # a small vocabulary has fewer
            tree.add_children(node, drawn, ids[:count], scores[:count])

    def _lay_tables(
        self, growing: Sequence[tuple[GrowingTree, int]], before: Sequence[GrownPath], level: int
    ) -> list[I32]:
        """The table of each path, with copies of all pairs before its last one's."""
        if level == 0:
            return [path.table for path in before]
        size, tables = self.block_size, list[I32]()
        sources: list[I32] = []
        targets: list[I32] = []
        for i, ((tree, _), path) in enumerate(zip(growing, before, strict=True)):
            newest = tree.row.position - 1
            shared = newest // size
            table = np.concatenate([tree.row.blocks[:shared], self._tails[level % 2, i]])
            held = np.arange(shared * size, newest + level, dtype=np.int32)
            sources.append(path.table[held // size] * size + held % size)
            targets.append(table[held // size] * size + held % size)
            tables.append(table)
        for layer in self.layers:
            self.ops.move_kv(layer, np.concatenate(sources), np.concatenate(targets))
        return tables

    def _compute(
        self, growing: Sequence[tuple[GrowingTree, int]], before: Sequence[GrownPath],
        tables: Sequence[I32], level: int,
    ) -> tuple[Tensor, Sampled]:  # fmt: skip
        """The state after each node, and what may follow it."""
        size, count = self.block_size, len(growing)
        newest = [tree.row.position - 1 for tree, _ in growing]
        positions = np.array(newest, np.int32) + np.int32(level)
        padded = np.zeros((count, int(positions.max()) // size + 1), np.int32)
        for own, table, position in zip(padded, tables, positions.tolist(), strict=True):
            used = position // size + 1
            own[:used] = table[:used]
        rows = np.arange(count)
        tokens, wanted = list[int](), list[LogitsRow]()
        for tree, node in growing:
            path, row = tree.list_tokens(node), tree.row
            tokens.append(path[-1] if path else row.pending[-1])
            seen = () if row.options.plain else [*row.request.tokens, *path]
            wanted.append(LogitsRow(row.options, row.position + 1 + len(path), seen))
        batch = Batch(
            tokens=np.array(tokens, np.int32),
            positions=positions,
            slots=padded[rows, positions // size] * np.int32(size) + positions % np.int32(size),
            starts=np.arange(count + 1, dtype=np.int32),
            contexts=positions + np.int32(1),
            tables=padded,
            rows=rows.astype(np.int32),
            sampling=columns(wanted),
        )
        states = np.stack([path.state for path in before])
        made = self.model.compute_states(batch, states, self.layers)
        return made, self.ops.sample(self.model.compute_logits(made), batch.sampling)
