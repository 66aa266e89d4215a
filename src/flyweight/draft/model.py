"""A draft model: proposes what a smaller model draws, with the target's own random numbers.

Each draw uses the seed, choice and position of the target's, and its temperature and cuts, so equal
distributions draw equal tokens.  Where the vocabularies differ, ids are mapped, and a token that
the other vocabulary lacks ends the draft.

Invariant: the draft model's K and V of every computed token are in the slots where the target's
are, so tables, prefix hits, copies and preemption hold for both.  `propose` writes beyond the known
tokens, in blocks that its requests alone hold.  Knows no scheduler and no text.
"""

from array import array
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from flyweight.draft.ahead import NO_ROWS, AheadTokens, FedTokens
from flyweight.draft.drafter import Draft, DraftRequest, DraftSampling
from flyweight.draft.handover import WRITE_ON, HandOver
from flyweight.draft.vocabulary import IdMap
from flyweight.models.decoder import Decoder
from flyweight.ops.operands import KVLayer
from flyweight.ops.reference_sample import WORD
from flyweight.ops.rejection import list_distributions
from flyweight.sampling.arrays import LogitsRow, OptionColumns
from flyweight.sampling.options import SequenceOptions
from flyweight.sampling_params import SamplingParams
from flyweight.wire import F32, I32, Batch, SampleBatch, Sampled, Tensor

# where drafts end may depend on what was drawn, which the target's draw there must not
OWN_NUMBERS = 0x2545F4914F6CDD1D


@dataclass(slots=True)
class DraftRow:
    """One request while its draft grows, in the draft model's vocabulary: the newest token is at
    `position`, `pending` are the newest ones that are not computed (none: the draft has ended), and
    `fed` those that are, from the last known token on.  `drawn` are ids of the target's.
    """

    request: DraftRequest
    options: SequenceOptions
    blocks: I32
    pending: list[int]
    position: int
    drawn: list[int] = field(default_factory=list)
    probs: list[F32] = field(default_factory=list)
    fed: list[int] = field(default_factory=list)
    sure: float = 1.0

    def finish(self) -> Draft:
        """The draft, with what its tokens were drawn from where that was kept."""
        count = len(self.drawn)
        return Draft(
            tuple(self.drawn), probs=np.stack(self.probs[:count]) if self.probs and count else None
        )

    @property
    def growing(self) -> bool:
        """Whether a token may still be drawn."""
        limit, drawn = self.request.limit, self.drawn
        ended = bool(drawn) and drawn[-1] in self.options.stop_ids
        return bool(self.pending) and len(drawn) < limit and not ended

    def make_logits_row(self) -> LogitsRow:
        """The next draw.  Tokens so far are listed only where an option reads them."""
        plain = self.options.plain
        tokens = () if plain else array("i", [*self.request.tokens, *self.drawn])
        return LogitsRow(self.options, self.position + 1, tokens)

    def take(self, token: int, known: int) -> None:
        """Adds a drawn token, which the target knows as `known`; -1 ends the draft."""
        self.fed.append(self.pending[-1])
        if known < 0:
            self.pending = []
            return
        self.drawn.append(known)
        self.pending, self.position = [token], self.position + 1


class ModelDrafter:
    """A `Drafter` with a model of its own and K/V `layers` in the target's blocks.  `ids` maps the
    vocabularies where they differ.  With `probs`, drafts say what each token was drawn from, for
    rejection sampling, and are drawn with random numbers of their own.
    """

    taps = ()

    def __init__(
        self, model: Decoder, layers: Sequence[KVLayer], ids: IdMap | None = None, *,
        probs: bool = False, hand_over: HandOver = WRITE_ON,
    ) -> None:  # fmt: skip
        self.probs, self.hand_over = probs, hand_over
        self.model, self.ops, self.layers, self.ids = model, model.ops, layers, ids
        self.block_size = layers[0].block_size
        self._options: dict[Hashable, SequenceOptions] = {}
        self._columns = OptionColumns()
        self.ahead = AheadTokens()

    def observe(self, batch: Batch, taps: Mapping[int, Tensor]) -> None:
        """Computes K and V of those of the step's tokens that were not while it drafted; a token
        that the draft model lacks counts as its first.
        """
        tokens = batch.tokens
        if self.ids is not None:
            tokens = np.maximum(self.ids.to_draft[tokens], 0)
        late = self.ahead.take_late()
        rest = self.ahead.take_rest(replace(batch, tokens=tokens, adapters=None))
        for own in (late, rest):
            if own is not None:
                self.model.compute_hidden(own, self.layers, NO_ROWS)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Every request's next tokens, one of each at a time."""
        rows = [self._begin(request) for request in requests]
        while growing := [row for row in rows if row.growing]:
            drawn = self._draw(growing)
            tokens, known = drawn.tokens.tolist(), self._choose(growing, drawn).tolist()
            for row, *token in zip(growing, tokens, known, strict=True):
                row.take(*token)
        for row in rows:
            self._note(row)
        return [row.finish() for row in rows]

    def forget(self, id: Hashable) -> None:
        self._options.pop(id, None)
        self.ahead.forget(id)

    def _choose(self, rows: Sequence[DraftRow], drawn: Sampled) -> I32:
        """The target's ids of drawn tokens; -1 ends the draft."""
        tokens = drawn.tokens if self.ids is None else self.ids.to_target[drawn.tokens]
        return self.hand_over.end_drafts(rows, drawn, tokens)

    def _begin(self, request: DraftRequest) -> DraftRow:
        options = self._options.get(request.id)
        if options is None:
            options = make_draft_options(request.sampling, self.ids is None, own=self.probs)
            options = self._options[request.id] = self.hand_over.request_scores(options)
        last = len(request.tokens) - 1
        used = -(-(last + request.limit) // self.block_size)
        blocks = np.array(request.blocks[:used], np.int32)
        newest = self._translate(request.tokens[last])
        row = DraftRow(request, options, blocks, [newest] if newest >= 0 else [], last)
        late = self.ahead.late.get(request.id)
        if late is not None and row.growing:
            del self.ahead.late[request.id]
            same = late.position == last - 1
            if same and late.token == self._translate(request.tokens[last - 1]):
                row.pending.insert(0, late.token)
        return row

    def _translate(self, token: int) -> int:
        """The draft model's id of a token; -1 where it has none."""
        return token if self.ids is None else int(self.ids.to_draft[token])

    def _note(self, row: DraftRow) -> None:
        """Keeps what was computed of a request for the next step."""
        if row.fed:
            position, B = len(row.request.tokens) - 1, self.block_size
            slot = int(row.blocks[position // B]) * B + position % B
            self.ahead.fed[slot] = FedTokens(row.request.id, position, row.fed)

    def _draw(self, rows: Sequence[DraftRow]) -> Sampled:
        """The token that follows each row's newest."""
        sampling = self._columns([row.make_logits_row() for row in rows])
        batch = make_batch(rows, self.block_size, sampling)
        hidden = self.model.compute_hidden(batch, self.layers, batch.rows)
        logits = self.model.compute_logits(hidden)
        if self.probs:
            drawn_from = list_distributions(self.ops.fetch(logits), batch.sampling)
            for row, probs in zip(rows, drawn_from, strict=True):
                row.probs.append(probs if self.ids is None else self.ids.spread(probs))
        return self.ops.sample(logits, batch.sampling)


def make_draft_options(
    sampling: DraftSampling, same: bool, *, own: bool = False, best: int | None = None
) -> SequenceOptions:
    """How a request's draft tokens are drawn: as the target draws, without what is only reported or
    needs more than the tokens so far; with `own`, by random numbers that are not the target's.
    Options that name ids are of no use unless the vocabulary is the `same`.  Of so many `best`
    tokens, log-probabilities come with each draw.
    """
    options, flips = sampling.options, OWN_NUMBERS if own else 0
    if options is None or not same:
        params = SamplingParams(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
        )
        return SequenceOptions(
            params, (sampling.seed ^ flips) & WORD, sampling.choice, 0, best=best
        )
    params = replace(
        options.params,
        logprobs=None,
        logprob_token_ids=(),
        prompt_logprobs=None,
        echo=False,
        structured_outputs=None,
    )
    keys = (options.seed ^ flips) & WORD, options.choice, options.prompt
    return SequenceOptions(params, *keys, options.stop_ids, options.words, best)


def make_batch(rows: Sequence[DraftRow], block_size: int, sampling: SampleBatch) -> Batch:
    """The pending tokens of each row; the logits of the last are wanted."""
    count = len(rows)
    counts = np.array([len(row.pending) for row in rows], np.int32)
    contexts = np.array([row.position + 1 for row in rows], np.int32)
    tables = np.zeros((count, -(-int(contexts.max()) // block_size)), np.int32)
    for table, row in zip(tables, rows, strict=True):
        used = row.position // block_size + 1
        table[:used] = row.blocks[:used]
    starts: I32 = np.zeros(count + 1, np.int32)
    np.cumsum(counts, out=starts[1:])
    owners = np.repeat(np.arange(count), counts)
    positions = np.arange(starts[-1], dtype=np.int32) + (contexts - starts[1:])[owners]
    held = tables[owners, positions // block_size]
    return Batch(
        tokens=np.array([token for row in rows for token in row.pending], np.int32),
        positions=positions,
        slots=held * np.int32(block_size) + positions % np.int32(block_size),
        starts=starts,
        contexts=contexts,
        tables=tables,
        rows=starts[1:] - np.int32(1),
        sampling=sampling,
    )
