"""What the scheduler moves around: one choice of one request, from its prompt to its last token.

Invariant: K/V is valid exactly for tokens[:computed]; everything known beyond that, drafts
included, is still to be computed.  There are no phases.  Standard library only; knows no arrays and
no text.
"""

from array import array
from dataclasses import dataclass, field
from enum import Enum
from typing import Optional

from flyweight.draft.tree import list_path
from flyweight.engine.branches import Branch
from flyweight.kv.blocks import Table
from flyweight.sampling.beam import make_rules
from flyweight.sampling.options import SequenceOptions
from flyweight.types import Request, Reuse, SamplingParams, Timings


class SequenceState(Enum):
    """A waiting sequence holds no blocks; a finished one is forgotten."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of one request.  Lower `order` goes first.  `leader` is the choice
    whose prompt blocks this one shares.  `cached` counts prompt tokens found in the prefix cache,
    `scored` those whose successors' log-probabilities are known or not wanted, where the first
    choice has a `scorer`.  One whose tokens are all computed is held: it is not planned until it
    gets a token or is ended.  `parents` are those of a `draft` that is a tree, in order, `branches`
    the blocks of it while a step is in flight.  `looked_up`: an external prefix cache
    was searched, `sought`: its peers too.  `awaited`: the last block that it waits for, as another
    computes it; `found` tokens were in the prefix cache when this wait began.
    """

    request: Request
    index: int
    order: tuple[int, int, int]
    table: Table
    tokens: "array[int]"
    leader: Optional["Sequence"] = None
    computed: int = 0
    draft: list[int] = field(default_factory=list)
    parents: list[int] | None = None
    branches: list[Branch] = field(default_factory=list)
    state: SequenceState = SequenceState.WAITING
    in_flight: bool = False
    cached: int = 0
    scheduled: float = 0.0
    first: float = 0.0
    last: float = 0.0
    reuse: Reuse | None = None
    mu: float = field(init=False)  # mirostat's state, which every token it draws moves
    options: SequenceOptions = field(init=False)
    scorer: SequenceOptions | None = None
    scored: int = 0
    looked_up: bool = False
    sought: bool = False
    awaited: int | None = None
    found: int = 0

    def __post_init__(self) -> None:
        r = self.request
        best = None if r.beam is None else make_rules(r).candidates
        own = r.seed, self.index, len(r.tokens)
        self.options = SequenceOptions(r.params, *own, r.stop_ids, r.words, best)
        self.options.drafts = self.options.drafts and r.drafted
        self.mu = 2 * r.params.mirostat_tau
        if self.index == 0 and r.params.prompt_logprobs is not None:
            wanted = SamplingParams(temperature=0, logprobs=r.params.prompt_logprobs)
            self.scorer = SequenceOptions(wanted, seed=0, choice=0, prompt=0)
            self.scored = max(self.scored, r.score_from)

    @property
    def prompt(self) -> int:
        """Tokens of the prompt."""
        return self.options.prompt

    @property
    def generated(self) -> int:
        """Tokens produced so far."""
        return len(self.tokens) - self.options.prompt

    @property
    def unscored(self) -> int:
        """Tokens of the prompt whose successors' log-probabilities are still wanted."""
        return 0 if self.scorer is None else self.prompt - 1 - self.scored

    @property
    def tokens_left(self) -> int:
        """Tokens it may still produce."""
        return self.request.max_tokens - self.generated

    @property
    def decoding(self) -> bool:
        """Whether only the newest token is still to be computed, to draw the next."""
        return self.computed + 1 == len(self.tokens) and self.request.pooling is None

    @property
    def extensible(self) -> bool:
        """Whether a search may add a token: all is computed, or it waits.  Between
        these it has blocks for the tokens that it had when it was admitted, and no others.
        """
        return self.state is not SequenceState.RUNNING or self.computed == len(self.tokens)

    @property
    def every_row(self) -> bool:
        """Whether the rows of all its tokens are wanted, so that none may be skipped."""
        pooling = self.request.pooling
        return pooling is not None and pooling.pooling == "mean"

    @property
    def first_row(self) -> int:
        """The first token whose row is wanted: a prefix may be taken from elsewhere up to it."""
        if self.every_row:
            return 0
        return self.scored if self.unscored else len(self.tokens) - 1

    def count_rows(self, count: int) -> int:
        """How many of the next `count` tokens, the last ones, have rows that are wanted."""
        return max(0, self.computed + count - max(self.computed, self.first_row))

    def count_scores(self, count: int) -> int:
        """How many of these rows are wanted for the prompt's log-probabilities."""
        end = min(self.computed + count, self.prompt - 1)
        return max(0, end - max(self.computed, self.scored)) if self.unscored else 0

    def list_known(self, start: int, stop: int) -> "array[int]":
        """Known tokens start:stop, drafts included."""
        held = len(self.tokens)
        if stop <= held:
            return self.tokens[start:stop]
        drafts = self.draft[max(0, start - held) : stop - held]
        return self.tokens[start:] + array("i", drafts)

    def find_depth(self, place: int) -> int:
        """How many draft tokens lead to the one at `place` of the draft."""
        return place if self.parents is None else len(list_path(self.parents, place)) - 1

    def find_position(self, row: int) -> int:
        """The position of the token that is drawn at a row, as `list_seen` numbers them."""
        return len(self.tokens) + (1 + self.find_depth(row - 1) if row else 0)

    def list_seen(self, row: int) -> "array[int]":
        """The tokens before the one that is drawn at the row of draft token `row` - 1, 0 being the
        row of the last known token.
        """
        if row == 0:
            return self.tokens
        if self.parents is None:
            return self.tokens + array("i", self.draft[:row])
        return self.tokens + array("i", [self.draft[i] for i in list_path(self.parents, row - 1)])

    def read_timings(self) -> Timings:
        return Timings(self.request.arrival, self.scheduled, self.first, self.last)
