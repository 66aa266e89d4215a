"""The blocks of a draft that is a tree, for one step.

Its trunk is written to the sequence's own table.  Each other run of it, a branch, has a table of
its own: it shares the blocks before the one of its first token, and holds copies of the tokens
before it in that block.  So a branch is a sequence like any other for the model, and its rows have
the bits of the same tokens as a plain draft.

Invariant: branches hold blocks from the plan of a step to its commit.  Standard library only.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from flyweight.draft.tree import Run
from flyweight.kv.blocks import BlockPool, Copy, Table


@dataclass(slots=True, eq=False)
class Branch:
    """Tokens run.first:run.stop of a draft, the first of them at `position` of the sequence, with
    the `table` of all up to them.  `copy`: what its first own block takes of the context.
    """

    run: Run
    position: int
    table: Table
    copy: Copy | None

    @property
    def stop(self) -> int:
        """The position after its last token."""
        return self.position + self.run.stop - self.run.first


def count_blocks(runs: Seq[Run], start: int, block_size: int) -> int:
    """Blocks that the branches of a tree take, its last known token being at `start`."""
    total = 0
    for run in runs[1:]:
        first = start + 1 + run.depth
        total += -(-(first + run.stop - run.first) // block_size) - first // block_size
    return total


def take_blocks(
    pool: BlockPool, table: Table, runs: Seq[Run], start: int, copy: Copy | None
) -> list[Branch]:
    """The branches of a tree whose trunk is in `table`, which took `copy` for it."""
    B = pool.block_size
    tables, branches = [table], list[Branch]()
    for run in runs[1:]:
        first = start + 1 + run.depth
        at = next((i for i, r in enumerate(runs) if r.first <= run.parent < r.stop), 0)
        own = pool.branch(tables[at], first, first + run.stop - run.first)
        held = start - first // B * B  # tokens of the context in its first own block
        source = copy.src if copy is not None else table.blocks[start // B]
        tail = Copy(source, own.blocks[start // B], held) if held > 0 else None
        tables.append(own)
        branches.append(Branch(run, first, own, tail))
    return branches


def release(pool: BlockPool, branches: list[Branch]) -> None:
    """Gives up the blocks of all branches."""
    for branch in branches:
        pool.release(branch.table)
    branches.clear()


def keep(pool: BlockPool, table: Table, branches: list[Branch], accepted: int) -> None:
    """Leaves in `table` the blocks of the run with draft token `accepted`, the last that was; gives
    up the others.
    """
    for branch in branches:
        if branch.run.first <= accepted < branch.run.stop:
            table.blocks, branch.table.blocks = branch.table.blocks, table.blocks
    release(pool, branches)
