"""Turns a plan into the flat arrays that cross every boundary.

Invariant: a `Batch` says where each token's K/V goes and what each sequence may see, and nothing
about why.  Pure translation: changes no sequence.  T tokens, S sequences, M blocks of the longest
table, R rows with logits, E tokens whose hidden states are wanted, B tokens per block.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, repeat
from typing import TypeAlias

import numpy as np

from flyweight.draft.tree import list_path
from flyweight.engine.step import Chunk, Plan
from flyweight.sampling.arrays import LogitsRow, columns
from flyweight.wire import I32, U32, Batch, SampleBatch

View: TypeAlias = "tuple[array[int], int, int]"  # blocks, and the positions that a step computes


def build(
    plan: Plan,
    block_size: int,
    adapters: Mapping[str, int] | None = None,
    lay: Callable[[Sequence[LogitsRow]], SampleBatch] = columns,
    masks: Mapping[int, U32] | None = None,
) -> Batch:
    """The batch of a plan's chunks, in their order; `adapters` are the numbers of those there
    are, by name, `masks` what grammars allow, by row.  Many arrays for few numbers: lists
    of C integers are quicker than NumPy here.
    """
    tokens, positions, slots = array("i"), array("i"), array("i")  # [T]
    starts, contexts = array("i", (0,)), array("i")  # [S+1], [S]
    rows, hidden = array("i"), array("i")  # [R], [E]
    views: list[View] = []  # [S]
    count = len(plan.chunks)
    for c in plan.chunks:
        tokens += c.seq.list_known(c.start, c.start + c.count)
        for view in list_views(c):
            blocks, at, stop = view
            views.append(view)
            positions.extend(range(at, stop))
            while at < stop:  # block by block
                slot = blocks[at // block_size] * block_size + at % block_size
                part = min(stop - at, block_size - at % block_size)
                slots.extend(range(slot, slot + part))
                at += part
            starts.append(len(slots))
            contexts.append(stop)
        ended = len(tokens)
        rows.extend(range(ended - len(c.scored) - len(c.drawn), ended))
        hidden.extend(range(ended - len(c.hidden), ended))
    return Batch(
        tokens=_to_ints(tokens),
        positions=_to_ints(positions),
        slots=_to_ints(slots),
        starts=_to_ints(starts),
        contexts=_to_ints(contexts),
        tables=_pad_tables(views, block_size),
        rows=_to_ints(rows),
        sampling=(columns if masks else lay)(_list_logits_rows(plan.chunks, masks or {})),
        adapters=_list_owners(plan.chunks, adapters) if adapters else None,
        hidden=_to_ints(hidden) if plan.hidden else None,
        ancestors=list_ancestors(plan.chunks, block_size) if len(views) > count else None,
        branches=len(views) - count,
    )


def list_views(chunk: Chunk) -> Sequence[View]:
    """The sequences that a chunk is for the model: one, and one more for each branch of a draft."""
    seq, start = chunk.seq, chunk.start
    if not seq.branches:
        return ((seq.table.blocks, start, start + chunk.count),)
    trunk = seq.table.blocks, start, start + 1 + seq.branches[0].run.first
    return (trunk, *((b.table.blocks, b.position, b.stop) for b in seq.branches))


def list_ancestors(chunks: list[Chunk], block_size: int) -> tuple[I32, I32] | None:
    """Slots written in this step, and where branches see the same tokens in blocks of their own."""
    src, dst = array("i"), array("i")
    for c in chunks:
        seq = c.seq
        if not seq.branches:
            continue
        assert seq.parents is not None, "branches of a chain"
        written = [
            blocks[p // block_size] * block_size + p % block_size
            for blocks, at, stop in list_views(c)
            for p in range(at, stop)
        ]  # of the last known token, then of draft tokens
        for b in seq.branches:
            first = max(c.start, b.position // block_size * block_size)
            path = [0, *(i + 1 for i in list_path(seq.parents, b.run.parent))]
            for p in range(first, b.position):
                src.append(written[path[p - c.start]])
                dst.append(b.table.blocks[p // block_size] * block_size + p % block_size)
    return (_to_ints(src), _to_ints(dst)) if src else None


def _to_ints(numbers: "array[int]") -> I32:
    return np.frombuffer(numbers, np.int32)


def _list_owners(chunks: list[Chunk], adapters: Mapping[str, int]) -> I32:
    """The number of each sequence's adapter, -1 for none: [S]."""
    owners = [adapters.get(c.seq.request.adapter, -1) for c in chunks]
    return np.repeat(np.array(owners, np.int32), [1 + len(c.seq.branches) for c in chunks])


def list_moves(plan: Plan, block_size: int) -> tuple[I32, I32] | None:
    """Slots to copy from and to before anything is written; None where no block was shared."""
    copies = [c.copy for c in plan.chunks if c.copy]
    copies += [b.copy for c in plan.chunks for b in c.seq.branches if b.copy]
    if not copies:
        return None
    src = [range(c.src * block_size, c.src * block_size + c.count) for c in copies]
    dst = [range(c.dst * block_size, c.dst * block_size + c.count) for c in copies]
    return _list_slots(src), _list_slots(dst)


def _list_slots(ranges: list[range]) -> I32:
    return np.fromiter(chain.from_iterable(ranges), np.int32)


def _pad_tables(views: list[View], block_size: int) -> I32:
    """The blocks that hold each sequence's context, padded with 0: [S, M]."""
    width = -(-max(stop for _, _, stop in views) // block_size)
    blocks = array("i")
    for held, _, stop in views:
        used = -(-stop // block_size)
        blocks += held[:used]
        if used < width:
            blocks.extend(repeat(0, width - used))
    return _to_ints(blocks).reshape(len(views), width)


def _list_logits_rows(chunks: list[Chunk], masks: Mapping[int, U32]) -> list[LogitsRow]:
    """One row for each token to draw: the next one, and the one after each draft token, as if those
    that lead to it had been accepted; before these, the rows whose next token is given.
    """
    rows: list[LogitsRow] = []
    for chunk in chunks:
        seq = chunk.seq
        if chunk.scored and seq.scorer is not None:
            first = chunk.start + chunk.count - chunk.rows + 1
            for i in range(first, first + len(chunk.scored)):
                rows.append(LogitsRow(seq.scorer, i, (), given=seq.tokens[i]))
        for i in range(len(chunk.drawn)):
            seen = seq.tokens if seq.options.plain else seq.list_seen(i)  # a copy: only if read
            position, mask = seq.find_position(i), masks.get(len(rows))
            rows.append(LogitsRow(seq.options, position, seen, seq.mu, mask=mask))
    return rows
