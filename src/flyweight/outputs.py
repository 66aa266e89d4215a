"""What a caller gets back: vLLM's names, with timings and cached-token counts on every result.

Data only, except for log-probabilities, which are spelled out when they are looked at.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload


@dataclass(frozen=True, slots=True)
class Logprob:
    """One candidate at one position: its raw log-probability, its rank (1 = most likely), its
    text.
    """

    logprob: float
    rank: int | None
    decoded_token: str


class PositionLogprobs(Sequence[dict[int, Logprob]]):
    """One dictionary a position, as vLLM lists them: the chosen token first, then the best.

    Kept packed, 8 bytes a candidate where dictionaries would take two hundred; an entry is made
    when it is read.  `ids` and `values` hold `width` candidates a position, the chosen token
    first; `ranks` the chosen token's; id -1 is no candidate.  Others than the best (not `ranked`)
    have no rank.
    """

    __slots__ = ("_ids", "_length", "_ranked", "_ranks", "_spell", "_start", "_values", "_width")

    def __init__(
        self,
        ids: "array[int]",
        values: "array[float]",
        ranks: "array[int]",
        width: int,
        spell: Callable[[int], str],
        ranked: bool = True,
        start: int = 0,
    ) -> None:
        self._start, self._ranked = start, ranked
        self._ids, self._values, self._ranks = ids, values, ranks
        self._width, self._spell = width, spell
        self._length = len(ranks) - start  # the arrays may grow after a part was handed out

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int) -> dict[int, Logprob]: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[dict[int, Logprob], ...]: ...
    def __getitem__(self, at: int | slice) -> dict[int, Logprob] | tuple[dict[int, Logprob], ...]:
        places = range(self._length)[at]
        if isinstance(places, range):
            return tuple(self._make_entry(i) for i in places)
        return self._make_entry(places)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __reduce__(self) -> tuple[type, tuple[tuple[dict[int, Logprob], ...]]]:
        return tuple, (tuple(self),)

    def slice_from(self, at: int) -> "PositionLogprobs":
        """Those from position `at` on; none of them is made before it is looked at."""
        start = self._start + at
        return PositionLogprobs(
            self._ids, self._values, self._ranks, self._width, self._spell, self._ranked, start
        )

    def _make_entry(self, at: int) -> dict[int, Logprob]:
        at += self._start
        first = at * self._width
        chosen = self._ids[first]
        found = {chosen: Logprob(self._values[first], self._ranks[at], self._spell(chosen))}
        for i in range(1, self._width):
            id, rank = self._ids[first + i], i if self._ranked else None
            if id >= 0:
                found.setdefault(id, Logprob(self._values[first + i], rank, self._spell(id)))
        return found


class PromptLogprobs(Sequence[dict[int, Logprob] | None]):
    """One entry a token of the prompt, as vLLM lists them: none for the first, which nothing
    foretells, then those of `rest`.
    """

    __slots__ = ("_rest",)

    def __init__(self, rest: PositionLogprobs) -> None:
        self._rest = rest

    def __len__(self) -> int:
        return 1 + len(self._rest)

    @overload
    def __getitem__(self, at: int) -> dict[int, Logprob] | None: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[dict[int, Logprob] | None, ...]: ...
    def __getitem__(
        self, at: int | slice
    ) -> dict[int, Logprob] | tuple[dict[int, Logprob] | None, ...] | None:
        places = range(len(self))[at]
        if isinstance(places, range):
            return tuple(self[i] for i in places)
        return self._rest[places - 1] if places else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __reduce__(self) -> tuple[type, tuple[tuple[dict[int, Logprob] | None, ...]]]:
        return tuple, (tuple(self),)


@dataclass(frozen=True, slots=True)
class AttemptReport:
    """How many attempts were made at an answer that is checked against its schema, and whether the
    last one, which is the answer, is valid; None: that could not be found out.
    """

    attempts: int
    valid: bool | None


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One choice.  `delta` is the text that is new since the last output of a stream.
    `finish_reason` is "stop", "length", "abort", "error", "repetition" or None while running;
    `stop_reason` the stop string or the id of `stop_token_ids` that ended it, None where it was the
    model's own end, or what a function of the caller's raised; `score` what ranked an answer of a
    beam search; `structured_output` is set with `strictness="validate"`.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: Sequence[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    delta: str = ""
    score: float | None = None
    structured_output: AttemptReport | None = None


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Seconds: `queued` before the first step, `ttft` from arrival to the first token, `total` from
    arrival to the newest token; `decode_rate` tokens per second after the first, over all choices.
    `draft_speedup` is how many times as fast decode steps were with drafts, by the measured costs
    of steps; None without drafts, or before the end.
    """

    queued: float = 0.0
    ttft: float = 0.0
    total: float = 0.0
    decode_rate: float = 0.0
    draft_speedup: float | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A request's result so far; `finished` when every choice has ended.  `prompt_logprobs`, where
    requested, has an entry for each token of the prompt; `cache_explanation` comes on request too.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: tuple[CompletionOutput, ...]
    finished: bool
    num_cached_tokens: int = 0
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    prompt_logprobs: Sequence[dict[int, Logprob] | None] | None = None
    cache_explanation: "CacheExplanation | None" = None


@dataclass(frozen=True, slots=True)
class CacheExplanation:
    """What became of a prompt in the prefix cache.  Up to token `diverged_at` a known sequence is
    the same; there it goes on with `expected`, and the prompt with `got` (None: not known, or not
    shown).  `reason` is a name for programs, None where all was found that can be; `fix` says how
    more is found.
    """

    prompt_tokens: int
    hit_tokens: int
    reason: str | None
    explanation: str
    diverged_at: int | None
    expected: str | None
    got: str | None
    fix: str | None
    block_size: int


@dataclass(frozen=True, slots=True)
class BeamSearchSequence:
    """One beam as vLLM has it: `tokens` and `text` begin with the prompt's."""

    tokens: list[int]
    text: str
    cum_logprob: float
    score: float
    logprobs: Sequence[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(frozen=True, slots=True)
class BeamSearchOutput(RequestOutput):
    """The result of `beam_search`: `outputs` are the answers, best first; `sequences` the same as
    vLLM has them, after `prompt_text`.
    """

    prompt_text: str = ""

    @property
    def sequences(self) -> list[BeamSearchSequence]:
        return [
            BeamSearchSequence(
                tokens=[*self.prompt_token_ids, *one.token_ids],
                text=self.prompt_text + one.text,
                cum_logprob=one.cumulative_logprob or 0.0,
                score=one.score or 0.0,
                logprobs=one.logprobs,
                finish_reason=one.finish_reason,
                stop_reason=one.stop_reason,
            )
            for one in self.outputs
        ]


@dataclass(frozen=True, slots=True)
class Counter:
    """A total of `LLM.get_metrics`, since the engine began."""

    name: str
    value: int
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gauge:
    """A number of `LLM.get_metrics`, at the moment."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """A prompt's vector."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(frozen=True, slots=True)
class EmbeddingRequestOutput:
    """The result of `embed`."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: EmbeddingOutput
    finished: bool = True
    num_cached_tokens: int = 0
