"""Lays the sampling options of a step's rows out as columns: `LogitsRow` in, `wire.SampleBatch`
out.

Invariant: a row's entries depend on that row only.  History, bias and bans cost nothing for the
rows that use none of them.  The order in which options act is `ops.sample`'s business, not ours.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flyweight.sampling.history import find_completions, force_closing, penalise_repeats
from flyweight.sampling.options import LAYOUT, SequenceOptions, read_unpacked
from flyweight.types import ALL
from flyweight.wire import F32, I32, U32, Cuts, ListedLogprobs, Masks, SampleBatch

KINDS = {"f": np.float32, "i": np.int32, "Q": np.uint64}  # by their codes in a struct
RECORD = np.dtype(
    [(name, KINDS[code], (n,) if n > 1 else ()) for name, (code, n) in LAYOUT.items()]
)

NONE: I32 = np.zeros(0, np.int32)


class LogitsRow(NamedTuple):
    """One logits row.  `position` is the index in the sequence of the token to be drawn, `tokens`
    those before it (drafts among them count; plain options read none).  `mu` is
    mirostat's state, `given` the token where it is known, -1 where it is to be drawn, `mask` the
    ids a grammar allows.
    """

    options: SequenceOptions
    position: int
    tokens: Sequence[int]
    mu: float = 0.0
    given: int = -1
    mask: U32 | None = None


def columns(rows: Sequence[LogitsRow]) -> SampleBatch:
    """The rows' options, in order, as flat arrays (about a microsecond a row)."""
    return SampleBatch(**_options(rows), **_places(rows))


class OptionColumns:
    """`columns` step after step: where the same sequences draw again, and nothing of theirs depends
    on the tokens so far, only their places are laid out anew.
    """

    def __init__(self) -> None:
        self._records: list[bytes] = []  # of the rows whose options are kept
        self._options: dict[str, Any] = _options(())

    def __call__(self, rows: Sequence[LogitsRow]) -> SampleBatch:
        records = [row.options.record for row in rows if row.options.plain]
        if len(records) < len(rows):
            return columns(rows)
        if records != self._records:
            self._records, self._options = records, _options(rows)
        return SampleBatch(**self._options, **_places(rows))


def _places(rows: Sequence[LogitsRow]) -> dict[str, Any]:
    """What every step changes."""
    return {
        "position": np.array([row.position for row in rows], np.int32),
        "given": np.array([row.given for row in rows], np.int32),
    }


def _options(rows: Sequence[LogitsRow]) -> dict[str, Any]:
    """All columns but the places."""
    table = np.frombuffer(b"".join([row.options.record for row in rows]), RECORD)
    special = [
        (i, row) for i, row in enumerate(rows) if not row.options.plain or row.mask is not None
    ]
    count = len(rows)
    prompt = table["prompt"].copy()
    history = [(i, *_window(row)) for i, row in special if row.options.penalised]
    for i, _, callers in history:
        prompt[i] = callers
    history_ids, history_starts = _join_rows([(i, ids) for i, ids, _ in history], count)
    bias = [(i, row.options.params.logit_bias) for i, row in special]
    bias_ids, bias_starts = _join_rows([(i, tuple(b)) for i, b in bias], count)
    due = {i: _due(row) for i, row in special if row.options.words.thought is not None}
    allowed_ids, allowed_starts = _join_rows(
        [(i, due.get(i) or row.options.params.allowed_token_ids or ()) for i, row in special], count
    )
    banned_ids, banned_starts = _join_rows(
        [(i, () if due.get(i) else _list_banned(row)) for i, row in special], count
    )
    repeat_ids, repeat_values, repeat_starts = _penalise(special, count)
    return {
        **{name: np.ascontiguousarray(table[name]) for name in RECORD.names or ()},
        "prompt": prompt,
        "history": history_ids,
        "history_starts": history_starts,
        "bias_ids": bias_ids,
        "bias_values": np.array([v for _, b in bias for v in b.values()], np.float32),
        "bias_starts": bias_starts,
        "allowed_ids": allowed_ids,
        "allowed_starts": allowed_starts,
        "banned_ids": banned_ids,
        "banned_starts": banned_starts,
        "repeat_ids": repeat_ids,
        "repeat_values": repeat_values,
        "repeat_starts": repeat_starts,
        "cuts": _pack_cuts([(i, row) for i, row in special if row.options.cut]),
        "masks": _pack_masks(special),
        "listed": _pack_listed(special),
    }


def _window(row: LogitsRow) -> tuple[Sequence[int], int]:
    """The tokens that penalties look at, and how many of them, from the first on, are the
    caller's.
    """
    last, prompt = row.options.params.repeat_last_n, row.options.prompt
    if last < 0 or last >= len(row.tokens):
        return row.tokens, prompt
    return row.tokens[-last:], max(0, prompt - (len(row.tokens) - last))


def _due(row: LogitsRow) -> tuple[int, ...]:
    """The token that closes a thought, where it alone may come; a grammar has the last word."""
    thought, mask = row.options.words.thought, row.mask
    token = None if thought is None else force_closing(thought, row.tokens, row.options.prompt)
    if token is None or (mask is not None and not mask[token // 32] >> (token % 32) & 1):
        return ()
    return (token,)


def _list_banned(row: LogitsRow) -> list[int]:
    """Stop ids before min_tokens, and what would complete a bad word."""
    options = row.options
    early = row.position - options.prompt < options.params.min_tokens
    banned = list(options.stop_ids) if early else []
    if options.words.bad:
        banned += find_completions(row.tokens, options.prompt, options.words.bad)
    return banned


def _penalise(special: Sequence[tuple[int, LogitsRow]], count: int) -> tuple[I32, F32, I32]:
    """What DRY takes from whom, row after row."""
    found = [
        (i, *penalise_repeats(row.tokens, row.options.params, row.options.words.breakers))
        for i, row in special
        if row.options.dry
    ]
    ids, starts = _join_rows([(i, ids) for i, ids, _ in found], count)
    return ids, np.array([v for _, _, values in found for v in values], np.float32), starts


def _pack_cuts(rows: Sequence[tuple[int, LogitsRow]]) -> Cuts | None:
    """The options that no kernel knows."""
    if not rows:
        return None
    values = [(*read_unpacked(row.options.params), row.mu) for _, row in rows]
    return Cuts(np.array([i for i, _ in rows], np.int32), np.array(values, np.float64))


def _pack_masks(rows: Sequence[tuple[int, LogitsRow]]) -> Masks | None:
    found = [(i, row.mask) for i, row in rows if row.mask is not None]
    if not found:
        return None
    return Masks(np.array([i for i, _ in found], np.int32), np.stack([mask for _, mask in found]))


def _pack_listed(rows: Sequence[tuple[int, LogitsRow]]) -> ListedLogprobs | None:
    """The ids that are listed, for the rows that list some; none for the whole vocabulary."""
    params = [(i, row.options.params) for i, row in rows]
    found = [(i, p.logprob_token_ids) for i, p in params if p.logprob_token_ids or p.scored == ALL]
    if not found:
        return None
    ids, starts = _join_rows([(q, ids) for q, (_, ids) in enumerate(found)], len(found))
    return ListedLogprobs(np.array([i for i, _ in found], np.int32), ids, starts)


def _join_rows(lists: Iterable[tuple[int, Sequence[int] | I32]], rows: int) -> tuple[I32, I32]:
    """Ids of some rows, by ascending row, end to end, and where each row's start: [sum], [R+1]."""
    starts = np.zeros(rows + 1, np.int32)
    parts: list[I32] = []
    for row, ids in lists:
        starts[row + 1] = len(ids)
        parts.append(np.asarray(ids, np.int32))
    if not parts:
        return NONE, starts
    return np.concatenate(parts), np.cumsum(starts, dtype=np.int32)
