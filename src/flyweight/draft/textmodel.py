"""A draft model with another vocabulary: it reads the target's text and writes text.

The settled tokens are spelled in the draft model's pieces, and what it writes in the target's.

Invariant: K and V are in blocks of its own pool, of the pieces that `DraftText.written` lists; it
proposes whole words only, and reads no more pieces at a call than a step may have, few of them
while it drafts.  Knows no scheduler.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from sys import maxsize

import numpy as np

from flyweight.draft.drafter import Draft, DraftRequest, TextOnlyDrafter
from flyweight.draft.handover import WRITE_ON, HandOver
from flyweight.draft.latetokens import FEW
from flyweight.draft.model import make_draft_options
from flyweight.draft.spelling import Speller
from flyweight.kv.blocks import BlockPool, Table
from flyweight.models.decoder import Decoder
from flyweight.ops.operands import KVLayer
from flyweight.sampling.arrays import LogitsRow, columns
from flyweight.sampling.options import SequenceOptions
from flyweight.wire import I32, Batch, SampleBatch, Sampled, Tensor

PIECES = 3  # pieces drawn for each draft token, at most
NO_ROWS: I32 = np.zeros(0, np.int32)


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
    sure: float = 1.0

    @property
    def pending(self) -> list[int]:
        """Pieces without K and V."""
        pieces, written = self.text.pieces, len(self.text.written)
        return pieces[written:] + self.drawn[max(0, written - len(pieces)) :]

    @property
    def unread(self) -> int:
        """Pieces without K and V before the last one."""
        return len(self.text.pieces) + len(self.drawn) - len(self.text.written) - 1

    def make_logits_row(self) -> LogitsRow:
        position = len(self.request.tokens) + self.starts + bool(self.drawn)
        return LogitsRow(self.text.options, position, ())


class TextDrafter(TextOnlyDrafter):
    """A `ReadingDrafter` and `LateDrafter` with a model, a pool and K/V of its own; the `reader`
    spells the target's tokens for it, the `writer` its pieces for the target.  A call reads
    `budget` pieces at most.
    """

    def __init__(
        self,
        model: Decoder,
        kv: Sequence[KVLayer],
        pool: BlockPool,
        spellers: tuple[Speller, Speller],
        budget: int,
        hand_over: HandOver = WRITE_ON,
    ) -> None:
        self.model, self.ops, self.kv, self.pool = model, model.ops, kv, pool
        self.reader, self.writer = spellers
        self.budget, self.length = budget, model.spec.positions or maxsize
        self.few = min(FEW, budget // 4)  # pieces read along with a draft's first
        self.hand_over = hand_over
        self.texts: dict[Hashable, DraftText] = {}

    def read(self, requests: Sequence[DraftRequest]) -> None:
        """Reads what is known of prompts, but for the last piece, which the first draw reads."""
        self._read_parts([WritingRow(request, self._open(request)) for request in requests])

    def catch_up(self, requests: Sequence[DraftRequest]) -> None:
        """The same for texts of which more is unread than a draft reads along with its first
        piece: of those with the fewest pieces first.
        """
        rows = [WritingRow(request, self._open(request)) for request in requests]
        behind = [row for row in rows if row.unread > self.few]
        self._read_parts(sorted(behind, key=lambda row: row.unread))

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Drafts for requests whose texts are read, but for a few pieces."""
        rows = [self._begin(request) for request in requests]
        growing = self._choose_read([row for row in rows if row is not None])
        while growing:
            drawn = self._draw(growing)
            pieces = self.hand_over.end_drafts(growing, drawn, drawn.tokens).tolist()
            for row, piece in zip(growing, pieces, strict=True):
                self._take(row, piece)
            growing = [row for row in growing if not row.ended]
        return [Draft(()) if row is None else self._finish(row) for row in rows]

    def forget(self, id: Hashable) -> None:
        text = self.texts.pop(id, None)
        if text is not None:
            self.pool.release(text.table)

    def _open(self, request: DraftRequest) -> DraftText:
        """The text of a request, spelled as far as it is known."""
        text = self.texts.get(request.id)
        if text is None:
            options = make_draft_options(request.sampling, same=False)
            text = DraftText(self.hand_over.request_scores(options), Table(b""))
            self.texts[request.id] = text
        self._spell(text, request.tokens)
        return text

    def _begin(self, request: DraftRequest) -> WritingRow | None:
        """None where nothing can be written: no text, or no room."""
        text = self._open(request)
        stop = len(text.pieces) + PIECES * request.limit
        if not text.pieces or not request.limit or not self._reserve(text, stop):
            return None
        return WritingRow(request, text)

    def _reserve(self, text: DraftText, stop: int) -> bool:
        """Makes room for `stop` pieces; false where there is none."""
        needed = self.pool.count_needed(text.table, 0, stop)
        if stop > self.length or needed > len(self.pool.free):
            return False
        self.pool.grow(text.table, 0, stop)
        return True

    def _read_parts(self, rows: Sequence[WritingRow]) -> None:
        """Reads unread pieces, as many as the budget allows."""
        left, parts = self.budget, []
        for row in rows:
            pieces = row.pending[:-1][:left]
            if pieces and self._reserve(row.text, len(row.text.written) + len(pieces)):
                parts.append((row, pieces))
                left -= len(pieces)
        if parts:
            self._compute(parts)

    def _choose_read(self, rows: Sequence[WritingRow]) -> list[WritingRow]:
        """The rows that can draw, as few pieces are left to be read for them: those with the
        fewest.
        """
        left, ready = self.budget, list[WritingRow]()
        for row in sorted(rows, key=lambda row: row.unread):
            if row.unread > min(self.few, left - 1):
                break
            left -= row.unread + 1
            ready.append(row)
        return ready

    def _spell(self, text: DraftText, tokens: Sequence[int]) -> None:
        """Spells new tokens, and forgets what was written beyond them; the last piece is computed
        again, as what follows is drawn from it.
        """
        same = len(text.pieces)
        for token in tokens[text.seen :]:
            text.pieces += self.reader.spell(token)
        text.seen = len(tokens)
        written, pieces = text.written, text.pieces
        most = min(len(written), len(pieces) - 1)
        while same < most and written[same] == pieces[same]:
            same += 1
        del written[max(0, min(same, most)) :]

    def _draw(self, rows: Sequence[WritingRow]) -> Sampled:
        """The piece after each row's last."""
        sampling = columns([row.make_logits_row() for row in rows])
        states = self._compute([(row, row.pending) for row in rows], sampling)
        return self.ops.sample(self.model.compute_logits(states), sampling)

    def _compute(
        self, chosen: Sequence[tuple[WritingRow, list[int]]], sampling: SampleBatch | None = None
    ) -> Tensor:
        """Writes pieces of each row; the states of the last ones where they are drawn from."""
        batch = self._make_batch(chosen, sampling)
        states = self.model.compute_hidden(batch, self.kv, batch.rows)
        for row, pieces in chosen:
            row.text.written += pieces
        return states

    def _take(self, row: WritingRow, piece: int) -> None:
        """Adds a piece; what is written ends with enough words, with the text, or with no piece."""
        if piece < 0:
            row.ended = True
            return
        row.starts += bool(row.drawn) and self._is_start(piece)
        row.drawn.append(piece)
        limit = row.request.limit
        ended = not self.writer.spell(piece) or piece in self.writer.source.special_ids
        row.ended = ended or row.starts >= limit or len(row.drawn) >= PIECES * limit

    def _is_start(self, piece: int) -> bool:
        """Whether a word may have ended before a piece."""
        first = self.writer.source.token_bytes(piece)[:1]
        return not (first.isalnum() or first >= b"\x80")

    def _finish(self, row: WritingRow) -> Draft:
        """The target's tokens of what was written, less a last word that may go on."""
        drawn = row.drawn
        if not drawn:
            return Draft(())
        last = drawn[-1]
        special = last in self.writer.source.special_ids
        end: tuple[int, ...] = self.writer.spell(last) if special else ()
        if special:
            drawn = drawn[:-1]
        else:
            begun = [i for i, piece in enumerate(drawn) if i and self._is_start(piece)]
            drawn = drawn[: begun[-1]] if begun else drawn
        raw = b"".join([self.writer.source.token_bytes(piece) for piece in drawn])
        tokens = (*self.writer.encode(raw), *end)
        return Draft(tokens[: row.request.limit])

    def _make_batch(
        self, chosen: Sequence[tuple[WritingRow, list[int]]], sampling: SampleBatch | None
    ) -> Batch:
        """Pieces of each sequence; the last of each is drawn from where there is a `sampling`."""
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
            rows=NO_ROWS if sampling is None else starts[1:] - np.int32(1),
            sampling=columns(()) if sampling is None else sampling,
        )
