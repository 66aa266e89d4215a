"""Lays the sampling options of a step's rows out as columns: `Row` in, `wire.SampleBatch` out.

Invariant: a row's entries depend on that row only.  History, bias and bans cost nothing for the
rows that use none of them.  The order in which options act is `ops.sample`'s business, not ours.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from flyweight.sampling.options import Options
from flyweight.wire import I32, SampleBatch

# `options.RECORD`, field by field
RECORD = np.dtype(
    [
        ("temperature", np.float32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("penalties", np.float32, 3),
        ("top_k", np.int32),
        ("logprobs", np.int32),
        ("choice", np.int32),
        ("prompt", np.int32),
        ("seed", np.uint64),
    ]
)

NONE: I32 = np.zeros(0, np.int32)


class Row(NamedTuple):
    """One logits row.  `position` is the index in the sequence of the token to be drawn, `tokens`
    those before it (drafts among them count; read only where a penalty is asked).
    """

    options: Options
    position: int
    tokens: Sequence[int]


def columns(rows: Sequence[Row]) -> SampleBatch:
    """The rows' options, in order, as flat arrays (about a microsecond a row)."""
    table = np.frombuffer(b"".join([row.options.record for row in rows]), RECORD)
    special = [(i, row) for i, row in enumerate(rows) if not row.options.plain]
    count = len(rows)
    history = [(i, row.tokens) for i, row in special if row.options.penalised]
    bias = [(i, row.options.params.logit_bias) for i, row in special]
    banned = [
        (i, tuple(row.options.stop_ids))
        for i, row in special
        if row.position - row.options.prompt < row.options.params.min_tokens
    ]
    history_ids, history_starts = _ragged(history, count)
    bias_ids, bias_starts = _ragged([(i, tuple(b)) for i, b in bias], count)
    banned_ids, banned_starts = _ragged(banned, count)
    return SampleBatch(
        **{name: np.ascontiguousarray(table[name]) for name in RECORD.names or ()},
        position=np.array([row.position for row in rows], np.int32),
        history=history_ids,
        history_starts=history_starts,
        bias_ids=bias_ids,
        bias_values=np.array([v for _, b in bias for v in b.values()], np.float32),
        bias_starts=bias_starts,
        banned_ids=banned_ids,
        banned_starts=banned_starts,
    )


def _ragged(lists: Iterable[tuple[int, Sequence[int]]], rows: int) -> tuple[I32, I32]:
    """Ids of some rows, by ascending row, end to end, and where each row's start: [sum], [R+1]."""
    starts = np.zeros(rows + 1, np.int32)
    parts: list[I32] = []
    for row, ids in lists:
        starts[row + 1] = len(ids)
        parts.append(np.asarray(ids, np.int32))
    if not parts:
        return NONE, starts
    return np.concatenate(parts), np.cumsum(starts, dtype=np.int32)
