"""Turns a plan into the flat arrays that cross every boundary.

Invariant: a `Batch` says where each token's K/V goes and what each sequence may see, and nothing
about why.  Pure translation: changes no sequence.  T tokens, S sequences, M blocks of the longest
table, R rows, B tokens per block.
"""

from array import array
from collections.abc import Mapping
from itertools import chain

import numpy as np

from flyweight.engine.sequence import Chunk, Plan
from flyweight.sampling.arrays import Row, columns
from flyweight.wire import I32, Batch


def build(plan: Plan, block_size: int, adapters: Mapping[str, int] | None = None) -> Batch:
    """The batch of a plan's chunks, in their order; `adapters` are the numbers of those there
    are, by name.
    """
    chunks = plan.chunks
    starts_at = np.array([c.start for c in chunks], np.int32)  # [S]
    counts = np.array([c.count for c in chunks], np.int32)  # [S]
    contexts = starts_at + counts
    starts = _starts(counts)
    owner = np.repeat(np.arange(len(chunks)), counts)  # [T] which sequence
    positions = (np.arange(starts[-1]) - (starts[:-1] - starts_at)[owner]).astype(np.int32)
    tables = _tables(chunks, contexts, block_size)
    slots = tables[owner, positions // block_size] * block_size + positions % block_size
    drawn = [c.rows for c in chunks]  # how many rows of each want logits
    if plan.hidden:
        drawn = [0 if c.pooled else c.rows for c in chunks]
    return Batch(
        tokens=np.frombuffer(_tokens(chunks), np.int32),
        positions=positions,
        slots=slots,
        starts=starts,
        contexts=contexts,
        tables=tables,
        rows=_rows(drawn, starts),
        sampling=columns(_sampling(chunks, drawn)),
        adapters=_owners(chunks, adapters) if adapters else None,
        hidden=_rows([c.rows * c.pooled for c in chunks], starts) if plan.hidden else None,
    )


def _owners(chunks: list[Chunk], adapters: Mapping[str, int]) -> I32:
    """The number of each sequence's adapter, -1 for none: [S]."""
    return np.array([adapters.get(c.seq.request.adapter, -1) for c in chunks], np.int32)


def moves(plan: Plan, block_size: int) -> tuple[I32, I32] | None:
    """Slots to copy from and to before anything is written; None where no block was shared."""
    copies = [c.copy for c in plan.chunks if c.copy]
    if not copies:
        return None
    src = [range(c.src * block_size, c.src * block_size + c.count) for c in copies]
    dst = [range(c.dst * block_size, c.dst * block_size + c.count) for c in copies]
    return _slots(src), _slots(dst)


def _slots(ranges: list[range]) -> I32:
    return np.fromiter(chain.from_iterable(ranges), np.int32)


def _starts(counts: I32) -> I32:
    """Where each run of a ragged array begins: [S] -> [S+1]."""
    starts = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=starts[1:])
    return starts


def _tokens(chunks: list[Chunk]) -> "array[int]":
    tokens = array("i")
    for c in chunks:
        tokens += c.seq.known(c.start, c.start + c.count)
    return tokens


def _tables(chunks: list[Chunk], contexts: I32, block_size: int) -> I32:
    """The blocks that hold each sequence's context, padded with 0: [S, M]."""
    used = -(-contexts // block_size)
    tables = np.zeros((len(chunks), int(used.max())), np.int32)
    blocks = array("i")
    for n, c in zip(used.tolist(), chunks, strict=True):
        blocks += c.seq.table.blocks[:n]
    tables[np.arange(tables.shape[1]) < used[:, None]] = blocks
    return tables


def _rows(counts: list[int], starts: I32) -> I32:
    """The last so many tokens of every chunk: [R]."""
    wanted = np.array(counts, np.int32)
    first = _starts(wanted)
    shift = np.repeat(starts[1:] - wanted - first[:-1], wanted)
    return shift + np.arange(first[-1], dtype=np.int32)


def _sampling(chunks: list[Chunk], drawn: list[int]) -> list[Row]:
    """For each chunk that wants logits (`drawn` rows of them) one row for the next token, and one
    after each guess, as if the guesses before it had been accepted; before these, the rows whose
    next token is given.
    """
    rows: list[Row] = []
    for chunk, count in zip(chunks, drawn, strict=True):
        seq, held = chunk.seq, len(chunk.seq.tokens)
        if seq.scorer is not None:
            first = chunk.start + chunk.count - chunk.rows + 1
            for i in range(first, first + chunk.scored):
                rows.append(Row(seq.scorer, i, (), given=seq.tokens[i]))
        for i in range(held, held + count - chunk.scored):
            tokens = seq.known(0, i) if i > held else seq.tokens
            rows.append(Row(seq.options, i, tokens, seq.mu))
    return rows
