"""The messages of the engine: what a caller asks and what comes back.  Frozen data, standard
library only.

Invariant: a `SamplingParams` that exists is valid; a `Request` holds tokens, never text.  This
module does not know models, arrays, or tokenizers.
"""

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from flyweight.errors import RequestError
from flyweight.ranges import listed, number, require, strings, whole, within
from flyweight.repetition import RepetitionDetectionParams
from flyweight.structured import StructuredOutputs
from flyweight.tasks import BeamSearchParams, PoolingParams

Processor = Callable[..., Any]  # a row of logits to another, see `SamplingParams`
MAX_LOGPROBS = 64  # beside a token's own; the native sampler lists no more
MAX_CHOICES = 128
MAX_STOPS, LONGEST_STOP = 64, 1024  # stop strings, and characters of one
MAX_BAD_WORDS = 128
LEAST_REPETITION = 1e-4  # a logit divided by less may leave float32
COLDEST, HOTTEST = 1e-4, 1e6  # temperatures; below is as good as greedy, above as uniform
DRY_BREAKERS = ("\n", ":", '"', "*")  # llama.cpp's
RANGES = {  # options that may be any real number between two
    "min_p": (0, 1),
    "repetition_penalty": (LEAST_REPETITION, 10),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "top_n_sigma": (0, 1000),
    "xtc_probability": (0, 1),
    "xtc_threshold": (0, 0.5),  # above a half nothing else can reach it
    "dry_multiplier": (0, 100),
    "dry_base": (1, 100),
    "mirostat_tau": (0, 100),
    "mirostat_eta": (0, 1),
}
FLAGS = ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "echo")
CUTS = {  # what keeps some candidates only, and the values that keep all
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "top_n_sigma": 0.0,
    "xtc_probability": 0.0,
}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens; names and meanings are vLLM's, and llama.cpp's where vLLM has none.
    Raises `RequestError` when out of range.  docs/sampling.md says what each does, and in what
    order they act.

    `repeat_last_n` is the window of the three penalties before it: the last tokens they look at, -1
    for all, 0 for none.  `temperature` 0 is greedy.  `top_k` 0 or -1 keeps every token.  `seed`
    None draws one for the request.  `logprobs` n asks for the n best raw log-probabilities beside
    the chosen token's.
    `stop` strings are cut from the text unless `include_stop_str_in_output`.  `max_tokens` None
    means up to the context's end.  `prompt_logprobs` asks the same of every token of the prompt;
    `echo` puts the prompt before the text, and its log-probabilities where there are `logprobs`.
    With either, `max_tokens` 0 leaves it at that.  `best_of` draws so many choices and returns the
    `n` likeliest.  `logits_processors` are functions f(generated ids, row) or f(prompt ids,
    generated ids, row) that return the row to draw from, a float32 array of the vocabulary's size.
    `structured_outputs` says what the text must look like; where it is complete, it ends.
    `logprob_token_ids` asks for these ids' log-probabilities in place of the best ones.
    `repetition_detection` ends an answer that goes round in circles, `thinking_token_budget` the
    reasoning before one after so many tokens; -1 is none.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int = -1
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = DRY_BREAKERS
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    guidance_scale: float = 1.0
    prompt_logprobs: int | None = None
    echo: bool = False
    best_of: int | None = None
    logits_processors: tuple[Processor, ...] = ()
    structured_outputs: StructuredOutputs | None = None
    logprob_token_ids: tuple[int, ...] = ()
    repetition_detection: RepetitionDetectionParams | None = None
    thinking_token_budget: int | None = None

    @property
    def scored(self) -> int | None:
        """How many log-probabilities come beside each token's own, if any do."""
        return len(self.logprob_token_ids) or self.logprobs

    def __post_init__(self) -> None:
        self._check_lists()
        self._check_numbers()
        for name in FLAGS:
            flag = getattr(self, name)
            require(isinstance(flag, bool), name, flag, "true or false")
        self._check_counts()
        self._check_company()

    def _settle(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_lists(self) -> None:
        for name, most in (
            ("stop", MAX_STOPS),
            ("bad_words", MAX_BAD_WORDS),
            ("dry_sequence_breakers", MAX_STOPS),
        ):
            self._settle(name, strings(name, getattr(self, name), most, LONGEST_STOP))
        for name in ("stop_token_ids", "logprob_token_ids"):
            ids = (whole(name, i, 0, None) for i in listed(name, getattr(self, name)))
            self._settle(name, tuple(dict.fromkeys(ids)))
        if self.allowed_token_ids is not None:
            name = "allowed_token_ids"
            given = {whole(name, i, 0, None) for i in listed(name, self.allowed_token_ids)}
            require(bool(given), name, [], "one id or more, or none for all")
            self._settle(name, tuple(sorted(given)))
        functions = listed("logits_processors", self.logits_processors)
        for f in functions:
            require(callable(f), "logits_processors", f, "functions")
        self._settle("logits_processors", functions)
        bias = self.logit_bias or {}
        require(isinstance(bias, Mapping), "logit_bias", bias, "a mapping of token ids to numbers")
        for i, b in bias.items():
            whole("logit_bias", i, 0, None)
            within("logit_bias", b, -100, 100)
        self._settle("logit_bias", {int(i): float(b) for i, b in bias.items()})

    def _check_numbers(self) -> None:
        t = number("temperature", self.temperature)
        near = HOTTEST if t > 1 else 0.0 if t < COLDEST / 2 else COLDEST
        allowed = f"0 (greedy), or {COLDEST} to {HOTTEST:.0f}"
        require(t == 0 or COLDEST <= t <= HOTTEST, "temperature", t, allowed, near)
        self._settle("temperature", t)
        for name in ("top_p", "typical_p"):
            p = number(name, getattr(self, name))
            require(0 < p <= 1, name, p, "above 0, up to 1", 1.0 if p > 1 else 0.01)
            self._settle(name, p)
        for name, (low, high) in RANGES.items():
            self._settle(name, within(name, getattr(self, name), low, high))
        scale = number("guidance_scale", self.guidance_scale)
        if scale != 1:
            raise RequestError(
                f"guidance_scale = {scale} is not offered: it would run every request twice, with "
                "and without a negative prompt, and no request here has one; allowed: 1.0",
                "guidance_scale",
            )

    def _check_counts(self) -> None:
        self._settle("top_k", 0 if self.top_k == -1 else self.top_k)
        for name, low, high in (
            ("n", 1, MAX_CHOICES),
            ("top_k", 0, None),
            ("dry_allowed_length", 1, None),
            ("dry_penalty_last_n", -1, None),
            ("repeat_last_n", -1, None),
            ("mirostat", 0, 2),
        ):
            self._settle_whole(name, low, high)
        self._settle_whole("best_of", 1, MAX_CHOICES, none=True)
        self._settle_whole("seed", -(2**63), 2**64 - 1, none=True)
        self._settle_whole("logprobs", 0, MAX_LOGPROBS, none=True)
        self._settle_whole("prompt_logprobs", 0, MAX_LOGPROBS, none=True)
        if self.echo and self.prompt_logprobs is None:
            self._settle("prompt_logprobs", self.logprobs)
        if self.thinking_token_budget == -1:
            self._settle("thinking_token_budget", None)
        self._settle_whole("thinking_token_budget", 0, None, none=True)
        about_the_prompt = self.echo or self.prompt_logprobs is not None
        self._settle_whole("max_tokens", 0 if about_the_prompt else 1, None, none=True)
        self._settle_whole("min_tokens", 0, self.max_tokens)

    def _settle_whole(self, name: str, low: int, high: int | None, *, none: bool = False) -> None:
        value = getattr(self, name)
        found = whole(name, value, low, high, none=none)
        self._settle(name, None if value is None else found)

    def _check_company(self) -> None:
        """Options that exclude each other."""
        if self.best_of is not None and self.best_of < self.n:
            raise RequestError(
                f"best_of = {self.best_of} is less than n = {self.n}, the choices to return; "
                f"nearest valid: {self.n}",
                "best_of",
            )
        outputs = self.structured_outputs
        known = outputs is None or isinstance(outputs, StructuredOutputs)
        require(known, "structured_outputs", type(outputs).__name__, "a StructuredOutputs, or none")
        circles = self.repetition_detection
        known = circles is None or isinstance(circles, RepetitionDetectionParams)
        allowed = "a RepetitionDetectionParams, or none"
        require(known, "repetition_detection", type(circles).__name__, allowed)
        if self.logprob_token_ids and self.max_tokens == 0:
            raise RequestError(
                "logprob_token_ids, and max_tokens = 0 leaves no token to tell of them with; leave "
                "one of them out",
                "logprob_token_ids",
            )
        cuts = [name for name, off in CUTS.items() if getattr(self, name) != off]
        if self.mirostat and cuts:
            raise RequestError(
                f"mirostat = {self.mirostat} decides by itself how many candidates stay; "
                f"leave out {', '.join(cuts)}, or mirostat",
                "mirostat",
            )


class Finish(Enum):
    """Why a sequence ended; the values are OpenAI's words where it has one,
    else vLLM's."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REPETITION = "repetition"


@dataclass(frozen=True, slots=True)
class Thought:
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
class Words:
    """What a request's strings mean in its model's vocabulary: `bad` sequences of ids that may not
    be completed, ids at which repetitions end, and how a `thought` is closed that has a budget.
    """

    bad: tuple[tuple[int, ...], ...] = ()
    breakers: frozenset[int] = frozenset()
    thought: Thought | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What one caller asked, as tokens.  `salt` separates tenants in the prefix cache; `stop_ids`
    is the resolved union of the model's end-of-sequence ids (empty when `ignore_eos`) and
    `params.stop_token_ids`, `words` what the params' strings are as ids.  Lower `priority` goes
    first.  With `pooling` it asks for a vector and no tokens, and `max_tokens` is 0; with `beam`
    for the answers of a search, which ends as a whole.  `explain` asks what became of its prompt in
    the prefix cache.  Raises `RequestError`.
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
    words: Words = Words()
    pooling: PoolingParams | None = None
    beam: BeamSearchParams | None = None
    explain: bool = False

    @property
    def width(self) -> int:
        """Sequences it takes to answer one choice."""
        return 1 if self.beam is None else self.beam.beam_width

    def __post_init__(self) -> None:
        require(isinstance(self.salt, str), "salt", self.salt, "text")
        whole("priority", self.priority, -(2**63), 2**63 - 1)


@dataclass(frozen=True, slots=True)
class Timings:
    """Monotonic seconds: `arrival`, `scheduled` (first step), `first` (first token), `last` (newest
    token).
    """

    arrival: float
    scheduled: float
    first: float
    last: float


@dataclass(frozen=True, slots=True)
class Reuse:
    """What became of a prompt in the prefix cache: `hit` tokens were found.  `reason` is why no
    more were: caching_off, short (of a block), rows_wanted (log-probabilities of the prompt, or its
    hidden states), evicted, not_yet (another request is computing them), new_salt, never_seen; ""
    where all were found that can be.  `diverged` is the first token up to which nothing known
    agrees with the prompt, None where all of it is known.
    """

    hit: int
    reason: str
    diverged: int | None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Raw log-probabilities at one position: the chosen token's, its rank (1 = best), and the best
    few.
    """

    chosen: float
    rank: int
    top_ids: tuple[int, ...] = ()
    top: tuple[float, ...] = ()


@dataclass(slots=True)
class Event:
    """The engine's only output: new tokens of choice `index` of request `id`.  `finish` is set on
    the last one.  `prompt_logprobs` go on where the last event's ended, from the prompt's second
    token on; they come before the first token.  `vector` is the answer of a request that asked for
    one, `error` says what a function of the caller's raised, or why the option `field` cannot be
    served; `total` and `score` are the log-probability of an answer found by a search, and what
    ranked it; `reuse` comes with timings, where it was asked for.  (Not frozen: that would cost 128
    sequences 0.2 ms a step.)
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
    error: str = ""
    total: float | None = None
    score: float | None = None
    reuse: Reuse | None = None
    field: str = ""
