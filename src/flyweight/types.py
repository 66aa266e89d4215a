"""The messages of the engine: requests of a caller and what comes back.  Frozen data, standard
library only.

Invariant: a `Request` holds tokens, never text.  This
module does not know models, arrays, or tokenizers.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Protocol

from flyweight.errors import FlyweightError
from flyweight.params.tasks import BeamSearchParams, PoolingParams
from flyweight.sampling_params import ALL as ALL
from flyweight.sampling_params import COLDEST as COLDEST
from flyweight.sampling_params import CUTS as CUTS
from flyweight.sampling_params import DRY_BREAKERS as DRY_BREAKERS
from flyweight.sampling_params import HOTTEST as HOTTEST
from flyweight.sampling_params import LEAST_REPETITION as LEAST_REPETITION
from flyweight.sampling_params import LONGEST_STOP as LONGEST_STOP
from flyweight.sampling_params import MAX_BAD_WORDS as MAX_BAD_WORDS
from flyweight.sampling_params import MAX_CHOICES as MAX_CHOICES
from flyweight.sampling_params import MAX_LOGPROBS as MAX_LOGPROBS
from flyweight.sampling_params import MAX_STOPS as MAX_STOPS
from flyweight.sampling_params import OPTIONS as OPTIONS
from flyweight.sampling_params import Processor as Processor
from flyweight.sampling_params import SamplingParams as SamplingParams
from flyweight.validation.ranges import require, whole


class Finish(Enum):
    """Why a sequence ended; the values are OpenAI's words where it has one,
    else vLLM's."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REPETITION = "repetition"


@dataclass(frozen=True, slots=True)
class ThinkingBudget:
    """A thought of `budget` tokens at most, of which `spent` end the prompt where it is `opened`
    there; the marks it stands between, what closes it as ids, and the bytes of the tokens that hold
    some of a mark.
    """

    budget: int
    opened: bool
    spent: int
    opening: bytes
    closing: bytes
    ids: tuple[int, ...]
    parts: dict[int, bytes]


@dataclass(frozen=True, slots=True)
class RequestWords:
    """What a request's strings mean in its model's vocabulary: `bad` sequences of ids that may not
    be completed, ids at which repetitions end, and how a `thought` is closed that has a budget.
    """

    bad: tuple[tuple[int, ...], ...] = ()
    breakers: frozenset[int] = frozenset()
    thought: ThinkingBudget | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One request, as tokens.  `salt` separates tenants in the prefix cache; `stop_ids`
    is the resolved union of the model's end-of-sequence ids (empty when `ignore_eos`) and
    `params.stop_token_ids`, `words` what the params' strings are as ids.  Lower `priority` goes
    first.  With `pooling` it requests a vector and no tokens, and `max_tokens` is 0; with `beam`
    for the answers of a search, which ends as a whole.  `explain` requests what became of its
    prompt in the prefix cache, `measure` what its steps took.  Log-probabilities of the prompt
    begin with the successor of token `score_from`.  It will meet its deadline if its first step
    begins at `start_by`, of the clock of `arrival`; infinity: it has none.  Without `drafted`,
    nothing is drafted for it.  Raises `RequestError`.
    """

    id: str
    tokens: tuple[int, ...]
    params: SamplingParams
    stop_ids: frozenset[int] = frozenset()
    max_tokens: int = 16
    seed: int = 0
    priority: int = 0
    arrival: float = 0.0
    salt: str = ""
    adapter: str = ""
    words: RequestWords = RequestWords()
    pooling: PoolingParams | None = None
    beam: BeamSearchParams | None = None
    explain: bool = False
    measure: bool = False
    score_from: int = 0
    start_by: float = inf
    drafted: bool = True

    @property
    def width(self) -> int:
        """Sequences it takes to answer one choice."""
        return 1 if self.beam is None else self.beam.beam_width

    def __post_init__(self) -> None:
        require(isinstance(self.salt, str), "salt", self.salt, "text")
        whole("priority", self.priority, -(2**63), 2**63 - 1)
        whole("score_from", self.score_from, 0, max(0, len(self.tokens) - 1))


@dataclass(frozen=True, slots=True)
class Timings:
    """Monotonic seconds: `arrival`, `scheduled` (first step), `first` (first token), `last` (newest
    token).  At the end `draft_speedup` is how many times as fast decode steps were with drafts
    while the request took part in them; None where that was not measured.
    """

    arrival: float
    scheduled: float
    first: float
    last: float
    draft_speedup: float | None = None


@dataclass(frozen=True, slots=True)
class Reuse:
    """What became of a prompt in the prefix cache: `hit` tokens were found.  `reason` is why no
    more were: caching_off, short (of a block), rows_wanted (log-probabilities of the prompt, or its
    hidden states), evicted, not_yet (another request is computing them), new_salt, never_seen; ""
    where all were found that can be.  `diverged` is the first token up to which nothing known
    agrees with the prompt, None where all of it is known; `expected` are the tokens that the known
    sequence most like it has there, which are of an earlier answer (`in_answer`) or of a prompt.
    """

    hit: int
    reason: str
    diverged: int | None
    expected: tuple[int, ...] = ()
    in_answer: bool = False
    block_size: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class StepUse:
    """A request's share of its steps so far: seconds, and the energy of the processors, None where
    that cannot be read.
    """

    seconds: float
    joules: float | None

    def __add__(self, other: "StepUse") -> "StepUse":
        known = self.joules is not None and other.joules is not None
        joules = (self.joules or 0.0) + (other.joules or 0.0) if known else None
        return StepUse(self.seconds + other.seconds, joules)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Raw log-probabilities at one position: the chosen token's, its rank (1 = best), and the best
    few.
    """

    chosen: float
    rank: int
    top_ids: Sequence[int] = ()
    top: Sequence[float] = ()


@dataclass(slots=True)
class Event:
    """The engine's only output: new tokens of choice `index` of request `id`.  `finish` is set on
    the last one.  `prompt_logprobs` go on where the last event's ended, from the prompt's second
    token on; they come before the first token.  `vector` is the answer of a request that wants
    one, `error` says what a function of the caller's raised, or why the request cannot be served
    (`refused`: before it began); `total` and `score` are the log-probability of an answer found by
    a search, and what ranked it; `reuse` comes with timings, where it was requested, and `use` in
    each event of a request that is measured.  (Not frozen: that would cost 128 sequences 0.2 ms a
    step.)
    """

    id: str
    index: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish: Finish | None = None
    stop_token: int | None = None
    cached: int = 0
    timings: Timings | None = None
    vector: "array[float] | None" = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    error: FlyweightError | None = None
    total: float | None = None
    score: float | None = None
    reuse: Reuse | None = None
    refused: bool = False
    use: StepUse | None = None


class EventCollector(Protocol):
    """Takes one request's events; `feed` is true when a choice has ended that the engine knows
    nothing of (a stop string), `take_next` is the request that follows one that has ended.
    """

    @property
    def request(self) -> Request: ...
    @property
    def finished(self) -> bool: ...
    def feed(self, event: Event) -> bool: ...
    def take_next(self) -> Request | None: ...
