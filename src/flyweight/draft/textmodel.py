"""A draft model with another vocabulary: it reads the target's text and writes text.

The settled tokens are spelled in the draft model's pieces, and what it writes in the target's.

Invariant: K and V are in blocks of its own pool, of the pieces that `DraftText.written` lists; it
proposes whole words only.  Knows no scheduler.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from sys import maxsize

import numpy as np

from flyweight.draft.drafter import Draft, DraftRequest
from flyweight.draft.model import make_draft_options
from flyweight.draft.spelling import Speller
from flyweight.kv.blocks import BlockPool, Table
from flyweight.models.decoder import Decoder
from flyweight.ops.operands import KVLayer
from flyweight.sampling.arrays import LogitsRow, columns
from flyweight.sampling.options import SequenceOptions
from flyweight.wire import Batch, Tensor

PIECES = 3  # pieces drawn for each draft token, at most


@dataclass(slots=True)
class DraftText:
    """One sequence in the draft model's vocabulary: `pieces` of its first `seen` tokens; `written`
    are those that K and V were computed of, drawn ones among them.
    """

    options: SequenceOptions
    table: Table
    pieces: list[int] = field(default_factory=list)
    seen: int = 0
    written: list[int] = field(default_factory=list)


@dataclass(slots=True)
class WritingRow:
    """One request while its draft is written.  `starts` counts the words begun after the first."""

    request: DraftRequest
    text: DraftText
    drawn: list[int] = field(default_factory=list)
    starts: int = 0
    ended: bool = False

    @property
    def pending(self) -> list[int]:
        """Pieces without K and V."""
        pieces, written = self.text.pieces, len(self.text.written)
        return pieces[written:] + self.drawn[max(0, written - len(pieces)) :]

    def make_logits_row(self) -> LogitsRow:
        position = len(self.request.tokens) + self.starts + bool(self.drawn)
        return LogitsRow(self.text.options, position, ())


class TextDrafter:
    """A `Drafter` with a model, a pool and K/V of its own; `read` spells the target's tokens for
    it, `write` its pieces for the target.  A step computes `budget` tokens at most.
    """

    taps = ()

    def __init__(
        self,
        model: Decoder,
        kv: Sequence[KVLayer],
        pool: BlockPool,
        spellers: tuple[Speller, Speller],
        budget: int,
    ) -> None:
        self.model, self.ops, self.kv, self.pool = model, model.ops, kv, pool
        self.read, self.write = spellers
        self.budget, self.length = budget, model.spec.positions or maxsize
        self.texts: dict[Hashable, DraftText] = {}

    def observe(self, batch: Batch, taps: Mapping[int, Tensor]) -> None:
        """Nothing: the text is in the requests."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        rows = [self._begin(request) for request in requests]
        live = [row for row in rows if row is not None]
        while growing := [row for row in live if not row.ended]:
            self._step(growing)
        return [Draft(()) if row is None else self._finish(row) for row in rows]

    def forget(self, id: Hashable) -> None:
        text = self.texts.pop(id, None)
        if text is not None:
            self.pool.release(text.table)

    def _begin(self, request: DraftRequest) -> WritingRow | None:
        """None where nothing can be written: no text, or no room."""
        text = self.texts.get(request.id)
        if text is None:
            options = make_draft_options(request.sampling, same=False)
            text = self.texts[request.id] = DraftText(options, Table(b""))
        self._read(text, request.tokens)
        stop = len(text.pieces) + PIECES * request.limit
        if not text.pieces or not request.limit or stop > self.length:
            return None
        if self.pool.count_needed(text.table, 0, stop) > len(self.pool.free):
            return None
        self.pool.grow(text.table, 0, stop)
        return WritingRow(request, text)

    def _read(self, text: DraftText, tokens: Sequence[int]) -> None:
        """Spells new tokens, and forgets what was written beyond them; the last piece is computed
        again, as what follows is drawn from it.
        """
        same = len(text.pieces)
        for token in tokens[text.seen :]:
            text.pieces += self.read.spell(token)
        text.seen = len(tokens)
        written, pieces = text.written, text.pieces
        most = min(len(written), len(pieces) - 1)
        while same < most and written[same] == pieces[same]:
            same += 1
        del written[max(0, min(same, most)) :]

    def _step(self, rows: Sequence[WritingRow]) -> None:
        """Computes what is pending of as many rows as a step may have, and draws what follows."""
        left, chosen = self.budget, []
        for row in rows:
            if left:
                chosen.append((row, row.pending[:left]))
                left -= len(chosen[-1][1])
        drawing = [i for i, (row, pieces) in enumerate(chosen) if len(pieces) == len(row.pending)]
        batch = self._make_batch(chosen, drawing)
        hidden = self.model.compute_hidden(batch, self.kv, batch.rows)
        for row, pieces in chosen:
            row.text.written += pieces
        if drawing:
            logits = self.model.compute_logits(hidden)
            tokens = self.ops.sample(logits, batch.sampling).tokens.tolist()
            for i, token in zip(drawing, tokens, strict=True):
                self._take(chosen[i][0], token)

    def _take(self, row: WritingRow, piece: int) -> None:
        """Adds a piece; what is written ends with enough words, or with the text."""
        row.starts += bool(row.drawn) and self._is_start(piece)
        row.drawn.append(piece)
        limit = row.request.limit
        ended = not self.write.spell(piece) or piece in self.write.source.special_ids
        row.ended = ended or row.starts >= limit or len(row.drawn) >= PIECES * limit

    def _is_start(self, piece: int) -> bool:
        """Whether a word may have ended before a piece."""
        first = self.write.source.token_bytes(piece)[:1]
        return not (first.isalnum() or first >= b"\x80")

    def _finish(self, row: WritingRow) -> Draft:
        """The target's tokens of what was written, less a last word that may go on."""
        drawn, last = row.drawn, row.drawn[-1]
        special = last in self.write.source.special_ids
        end: tuple[int, ...] = self.write.spell(last) if special else ()
        if special:
            drawn = drawn[:-1]
        else:
            begun = [i for i, piece in enumerate(drawn) if i and self._is_start(piece)]
            drawn = drawn[: begun[-1]] if begun else drawn
        raw = b"".join([self.write.source.token_bytes(piece) for piece in drawn])
        tokens = (*self.write.encode(raw), *end)
        return Draft(tokens[: row.request.limit])

    def _make_batch(
        self, chosen: Sequence[tuple[WritingRow, list[int]]], drawing: Sequence[int]
    ) -> Batch:
        """Pending pieces of each sequence; the last of those that are `drawing` gives logits."""
        B = self.pool.block_size
        begun = np.array([len(row.text.written) for row, _ in chosen], np.int32)
        counts = np.array([len(pieces) for _, pieces in chosen], np.int32)
        starts = np.zeros(len(chosen) + 1, np.int32)
        np.cumsum(counts, out=starts[1:])
        contexts = begun + counts
        tables = np.zeros((len(chosen), -(-int(contexts.max()) // B)), np.int32)
        for table, (row, _), context in zip(tables, chosen, contexts.tolist(), strict=True):
            used = -(-context // B)
            table[:used] = row.text.table.blocks[:used]
        owners = np.repeat(np.arange(len(chosen)), counts)
        positions = np.arange(starts[-1], dtype=np.int32) + (begun - starts[:-1])[owners]
        return Batch(
            tokens=np.array([piece for _, pieces in chosen for piece in pieces], np.int32),
            positions=positions,
            slots=tables[owners, positions // B] * np.int32(B) + positions % np.int32(B),
            starts=starts,
            contexts=contexts,
            tables=tables,
            rows=starts[1:][list(drawing)] - np.int32(1),
            sampling=columns([chosen[i][0].make_logits_row() for i in drawing]),
        )
