"""Turns a plan into the flat arrays that cross every boundary.

Invariant: a `Batch` says where each token's K/V goes and what each sequence may see, and nothing
about why.  Pure translation: changes no sequence.  T tokens, S sequences, M blocks of the longest
table, R rows with logits, E tokens whose hidden states are wanted, B tokens per block.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, repeat

import numpy as np

from flyweight.engine.step import Chunk, Plan
from flyweight.sampling.arrays import LogitsRow, columns
from flyweight.wire import I32, U32, Batch, SampleBatch


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
    for c in plan.chunks:
        at, stop, blocks = c.start, c.start + c.count, c.seq.table.blocks
        tokens += c.seq.list_known(at, stop)
        positions.extend(range(at, stop))
        while at < stop:  # block by block
            slot = blocks[at // block_size] * block_size + at % block_size
            count = min(stop - at, block_size - at % block_size)
            slots.extend(range(slot, slot + count))
            at += count
        ended = len(tokens)
        starts.append(ended)
        contexts.append(stop)
        rows.extend(range(ended - len(c.scored) - len(c.drawn), ended))
        hidden.extend(range(ended - len(c.hidden), ended))
    return Batch(
        tokens=_to_ints(tokens),
        positions=_to_ints(positions),
        slots=_to_ints(slots),
        starts=_to_ints(starts),
        contexts=_to_ints(contexts),
        tables=_pad_tables(plan.chunks, contexts, block_size),
        rows=_to_ints(rows),
        sampling=(columns if masks else lay)(_list_logits_rows(plan.chunks, masks or {})),
        adapters=_list_owners(plan.chunks, adapters) if adapters else None,
        hidden=_to_ints(hidden) if plan.hidden else None,
    )


def _to_ints(numbers: "array[int]") -> I32:
    return np.frombuffer(numbers, np.int32)


def _list_owners(chunks: list[Chunk], adapters: Mapping[str, int]) -> I32:
    """The number of each sequence's adapter, -1 for none: [S]."""
    return np.array([adapters.get(c.seq.request.adapter, -1) for c in chunks], np.int32)


def list_moves(plan: Plan, block_size: int) -> tuple[I32, I32] | None:
    """Slots to copy from and to before anything is written; None where no block was shared."""
    copies = [c.copy for c in plan.chunks if c.copy]
    if not copies:
        return None
    src = [range(c.src * block_size, c.src * block_size + c.count) for c in copies]
    dst = [range(c.dst * block_size, c.dst * block_size + c.count) for c in copies]
    return _list_slots(src), _list_slots(dst)


def _list_slots(ranges: list[range]) -> I32:
    return np.fromiter(chain.from_iterable(ranges), np.int32)


def _pad_tables(chunks: list[Chunk], contexts: "array[int]", block_size: int) -> I32:
    """The blocks that hold each sequence's context, padded with 0: [S, M]."""
    width = -(-max(contexts) // block_size)
    blocks = array("i")
    for c, context in zip(chunks, contexts, strict=True):
        used = -(-context // block_size)
        blocks += c.seq.table.blocks[:used]
        if used < width:
            blocks.extend(repeat(0, width - used))
    return _to_ints(blocks).reshape(len(chunks), width)


def _list_logits_rows(chunks: list[Chunk], masks: Mapping[int, U32]) -> list[LogitsRow]:
    """One row for each token to draw: the next one, and the one after each draft token, as if the
    draft tokens before it had been accepted; before these, the rows whose next token is given.
    """
    rows: list[LogitsRow] = []
    for chunk in chunks:
        seq, held = chunk.seq, len(chunk.seq.tokens)
        if chunk.scored and seq.scorer is not None:
            first = chunk.start + chunk.count - chunk.rows + 1
            for i in range(first, first + len(chunk.scored)):
                rows.append(LogitsRow(seq.scorer, i, (), given=seq.tokens[i]))
        for i in range(held, held + len(chunk.drawn)):
            tokens = seq.list_known(0, i) if i > held else seq.tokens
            rows.append(LogitsRow(seq.options, i, tokens, seq.mu, mask=masks.get(len(rows))))
    return rows
