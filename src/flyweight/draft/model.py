"""A draft model: proposes what a smaller model draws, with the target's own random numbers.

Each draw uses the seed, choice and position of the target's, and its temperature and cuts, so equal
distributions draw equal tokens.  Where the vocabularies differ, ids are mapped, unless the draft
model only has more at the end; a token that the other vocabulary lacks ends the draft.

Nothing is computed in a step: a text is once a draft of it is wanted.

Invariant: the draft model's K and V of a token are in the slot where the target's are, or late, so
tables, prefix hits, copies and preemption hold for both.  `propose` writes beyond the known tokens,
in blocks that its requests alone hold.  Knows no scheduler and no text.
"""

from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from flyweight.draft.drafter import Draft, DraftRequest, DraftSampling, TextOnlyDrafter
from flyweight.draft.handover import WRITE_ON, HandOver
from flyweight.draft.latetokens import LateTokens
from flyweight.draft.vocabulary import IdMap, scale_probs
from flyweight.models.decoder import Decoder
from flyweight.ops.operands import KVLayer
from flyweight.ops.reference_sample import WORD
from flyweight.ops.rejection import list_distributions
from flyweight.sampling.arrays import LogitsRow, OptionColumns, columns
from flyweight.sampling.options import SequenceOptions
from flyweight.sampling_params import SamplingParams
from flyweight.wire import F32, I32, Batch, SampleBatch, Sampled, Tensor

# where drafts end may depend on what was drawn, which the target's draw there must not
OWN_NUMBERS = 0x2545F4914F6CDD1D


@dataclass(slots=True)
class DraftRow:
    """One request while its draft grows, in the draft model's vocabulary: the newest token is at
    `position`, and `pending` are the newest ones that are not computed (none: the draft has ended).
    `drawn` are ids of the target's, and `key` is that of the tokens up to `position`.
    """

    request: DraftRequest
    options: SequenceOptions
    blocks: I32
    pending: list[int]
    position: int
    drawn: list[int] = field(default_factory=list)
    probs: list[F32] = field(default_factory=list)
    key: int = 0
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
        if known < 0:
            self.pending = []
            return
        self.drawn.append(known)
        self.pending, self.position = [token], self.position + 1


class ModelDrafter(TextOnlyDrafter):
    """A `Drafter` with a model of its own and K/V `layers` in the target's blocks, some of which
    are `late`.  `ids` maps the vocabularies where they differ; `vocab` is the size of the target's
    where the draft model has more tokens after these.  With `probs`, drafts say what each token was
    drawn from, for rejection sampling, and are drawn with random numbers of their own.
    """

    def __init__(
        self, model: Decoder, layers: Sequence[KVLayer], late: LateTokens,
        ids: IdMap | None = None, *, vocab: int | None = None, probs: bool = False,
        hand_over: HandOver = WRITE_ON,
    ) -> None:  # fmt: skip
        self.vocab, self.probs, self.hand_over = vocab, probs, hand_over
        self.model, self.ops, self.layers, self.ids = model, model.ops, layers, ids
        self.block_size, self.late = layers[0].block_size, late
        self._options: dict[Hashable, SequenceOptions] = {}
        self._columns, self._undrawn = OptionColumns(), columns(())

    def copy_slots(self, source: I32, target: I32) -> None:
        self.late.copy(source, target)

    def read(self, requests: Sequence[DraftRequest]) -> None:
        """Computes what is known of prompts, as far as the budget allows."""
        self._compute_late([(request, len(request.tokens)) for request in requests])

    def catch_up(self, requests: Sequence[DraftRequest]) -> None:
        """The same for requests that lack more than a draft computes along with its first token."""
        behind = [(request, len(request.tokens) - 1) for request in requests]
        few = self.late.few
        self._compute_late([one for one in behind if self._count_late(*one) > few])

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Every request's next tokens, one of each at a time; what is late is computed with the
        first.  None for requests that still lack too much.
        """
        rows = [self._begin(request) for request in requests]
        growing = self._claim_ready([row for row in rows if row.growing])
        while growing:
            drawn = self._draw(growing)
            tokens, known = drawn.tokens.tolist(), self._choose(growing, drawn).tolist()
            for row, *token in zip(growing, tokens, known, strict=True):
                row.take(*token)
            growing = [row for row in growing if row.growing]
            for row in growing:
                row.key = self.late.add(row.request, row.position, row.key, row.drawn[-1])
        return [row.finish() for row in rows]

    def forget(self, id: Hashable) -> None:
        self._options.pop(id, None)
        self.late.forget(id)

    def _choose(self, rows: Sequence[DraftRow], drawn: Sampled) -> I32:
        """The target's ids of drawn tokens; -1 ends the draft."""
        tokens = drawn.tokens
        if self.ids is not None:
            tokens = self.ids.to_target[tokens]
        elif self.vocab is not None:
            tokens = np.where(tokens < self.vocab, tokens, np.int32(-1))
        return self.hand_over.end_drafts(rows, drawn, tokens)

    def _begin(self, request: DraftRequest) -> DraftRow:
        options = self._options.get(request.id)
        if options is None:
            options = make_draft_options(request.sampling, self.ids is None, own=self.probs)
            options = self._options[request.id] = self.hand_over.request_scores(options)
        last = len(request.tokens) - 1
        used = -(-(last + max(1, request.limit)) // self.block_size)
        blocks = np.array(request.blocks[:used], np.int32)
        newest = request.tokens[last]
        known = self.ids is None or self.ids.to_draft[newest] >= 0
        return DraftRow(request, options, blocks, [newest] if known else [], last)

    def _count_late(self, request: DraftRequest, stop: int) -> int:
        """The tokens before `stop` that are not computed."""
        return stop - self.late.find_first(request, stop)

    def _claim_ready(self, rows: Sequence[DraftRow]) -> list[DraftRow]:
        """The rows whose late tokens are computed together with their newest: those with the
        fewest.
        """
        left, ready = self.late.budget, list[DraftRow]()
        for row in sorted(rows, key=lambda row: self._count_late(row.request, row.position)):
            first = self.late.find_first(row.request, row.position)
            if row.position - first > min(self.late.few, left - 1):
                break
            left -= row.position + 1 - first
            self._claim(row, first, row.position + 1)
            ready.append(row)
        return ready

    def _compute_late(self, wanted: Sequence[tuple[DraftRequest, int]]) -> None:
        """Computes late tokens of requests, each before a position, as many as the budget allows:
        of those with the fewest first.
        """
        left, rows = self.late.budget, list[DraftRow]()
        for request, stop in sorted(wanted, key=lambda one: self._count_late(*one)):
            first = self.late.find_first(request, stop)
            count = min(stop - first, left)
            if count:
                row = self._begin(request)
                self._claim(row, first, first + count)
                rows.append(row)
                left -= count
        if rows:
            self._compute(rows, self._undrawn)

    def _claim(self, row: DraftRow, first: int, stop: int) -> None:
        """These tokens are computed next; one that the draft model lacks counts as its first."""
        row.key = self.late.claim(row.request, stop)
        tokens = list(row.request.tokens[first:stop])
        if self.ids is not None:
            tokens = np.maximum(self.ids.to_draft[tokens], 0).tolist()
        row.pending, row.position = tokens, stop - 1

    def _compute(self, rows: Sequence[DraftRow], sampling: SampleBatch) -> Tensor:
        """K and V of pending tokens, and the states of each row's last.  Where it fails, nothing
        counts as computed.
        """
        try:
            batch = make_batch(rows, self.block_size, sampling)
            return self.model.compute_hidden(batch, self.layers, batch.rows)
        except BaseException:
            self.late.forget_all()
            raise

    def _draw(self, rows: Sequence[DraftRow]) -> Sampled:
        """The token that follows each row's newest."""
        sampling = self._columns([row.make_logits_row() for row in rows])
        logits = self.model.compute_logits(self._compute(rows, sampling))
        if self.probs:
            drawn_from = list_distributions(self.ops.fetch(logits), sampling)
            for row, probs in zip(rows, drawn_from, strict=True):
                row.probs.append(self._convert(probs))
        return self.ops.sample(logits, sampling)

    def _convert(self, probs: F32) -> F32:
        """Probabilities of the target's tokens, where the token drawn is one of these."""
        if self.ids is not None:
            return self.ids.spread(probs)
        return probs if self.vocab is None else scale_probs(probs[: self.vocab])


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
