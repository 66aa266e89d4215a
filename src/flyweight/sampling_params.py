"""How tokens are chosen: vLLM's module of this name, with its classes.

Invariant: a `SamplingParams` that exists is valid.  Standard library only; does not know models,
arrays, or tokenizers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from flyweight.errors import RequestError, nearest
from flyweight.params.repetition import RepetitionDetectionParams
from flyweight.params.structured import StructuredOutputs
from flyweight.params.tasks import BeamSearchParams as BeamSearchParams
from flyweight.params.tasks import PoolingParams as PoolingParams
from flyweight.validation.ranges import listed, number, require, strings, whole, within

StructuredOutputsParams = StructuredOutputs  # vLLM's name
Processor = Callable[..., Any]  # a row of logits to another, see `SamplingParams`
ALL = -1  # log-probabilities: those of the whole vocabulary
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
LAST = "thinking_token_budget"  # the field that is set last
FLAGS = ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "echo")
CUTS = {  # what keeps some candidates only, and the values that keep all
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "top_n_sigma": 0.0,
    "xtc_probability": 0.0,
}

if TYPE_CHECKING:
    Kept = TypeVar("Kept", covariant=True)
    Taken = TypeVar("Taken", contravariant=True)

    class ParamField(Generic[Kept, Taken]):
        """What a field keeps, and what may be assigned to it."""

        def __get__(self, params: object, kind: object = None) -> Kept: ...
        def __set__(self, params: object, value: Taken) -> None: ...

    Texts = ParamField[tuple[str, ...], str | Sequence[str] | None]
    Ids = ParamField[tuple[int, ...], Sequence[int] | None]
    SomeIds = ParamField[tuple[int, ...] | None, Sequence[int] | None]
    Processors = ParamField[tuple[Processor, ...], Sequence[Processor] | None]
else:
    Texts, Ids = tuple[str, ...], tuple[int, ...]
    SomeIds, Processors = Ids | None, tuple[Processor, ...]
EMPTY: Any = ()
UNSET: Any = None
BREAKERS: Any = DRY_BREAKERS


@dataclass(slots=True)
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
    `logprob_token_ids` asks for these ids' log-probabilities in place of the best ones.  Where
    `max_logprobs` of the engine is -1, -1 asks for those of the whole vocabulary.
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
    stop: Texts = EMPTY
    stop_token_ids: Ids = EMPTY
    ignore_eos: bool = False
    logprobs: int | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    allowed_token_ids: SomeIds = UNSET
    bad_words: Texts = EMPTY
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: Texts = BREAKERS
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    guidance_scale: float = 1.0
    prompt_logprobs: int | None = None
    echo: bool = False
    best_of: int | None = None
    logits_processors: Processors = EMPTY
    structured_outputs: StructuredOutputs | None = None
    logprob_token_ids: Ids = EMPTY
    repetition_detection: RepetitionDetectionParams | None = None
    thinking_token_budget: int | None = None

    if (
        TYPE_CHECKING
    ):  # what a caller may give, where a field is narrower; a test compares the names

        def __init__(
            self,
            *,
            n: int = 1,
            temperature: float = 1.0,
            top_p: float = 1.0,
            top_k: int = 0,
            min_p: float = 0.0,
            repetition_penalty: float = 1.0,
            presence_penalty: float = 0.0,
            frequency_penalty: float = 0.0,
            repeat_last_n: int = -1,
            logit_bias: Mapping[int, float] | None = None,
            seed: int | None = None,
            max_tokens: int | None = 16,
            min_tokens: int = 0,
            stop: str | Sequence[str] | None = None,
            stop_token_ids: Sequence[int] | None = None,
            ignore_eos: bool = False,
            logprobs: int | None = None,
            include_stop_str_in_output: bool = False,
            skip_special_tokens: bool = True,
            allowed_token_ids: Sequence[int] | None = None,
            bad_words: str | Sequence[str] | None = None,
            typical_p: float = 1.0,
            top_n_sigma: float = 0.0,
            xtc_probability: float = 0.0,
            xtc_threshold: float = 0.1,
            dry_multiplier: float = 0.0,
            dry_base: float = 1.75,
            dry_allowed_length: int = 2,
            dry_penalty_last_n: int = -1,
            dry_sequence_breakers: Sequence[str] = ...,
            mirostat: int = 0,
            mirostat_tau: float = 5.0,
            mirostat_eta: float = 0.1,
            guidance_scale: float = 1.0,
            prompt_logprobs: int | None = None,
            echo: bool = False,
            best_of: int | None = None,
            logits_processors: Sequence[Processor] | None = None,
            structured_outputs: StructuredOutputs | None = None,
            logprob_token_ids: Sequence[int] | None = None,
            repetition_detection: RepetitionDetectionParams | None = None,
            thinking_token_budget: int | None = None,
        ) -> None: ...

    def clone(self) -> Self:
        """A copy; vLLM's name."""
        made = object.__new__(type(self))
        for known in self.__slots__:
            object.__setattr__(made, known, getattr(self, known))
        return made

    def __setattr__(self, name: str, value: Any) -> None:
        """Checked as when it was made; a request under way has a copy."""
        if not hasattr(self, LAST):
            object.__setattr__(self, name, value)
            return
        if name not in self.__slots__:
            hint = nearest(name, self.__slots__)
            raise AttributeError(f"SamplingParams has no option {name!r}{hint}")
        found = replace(self, **{name: value})
        for known in self.__slots__:
            object.__setattr__(self, known, getattr(found, known))

    @property
    def scored(self) -> int | None:
        """How many log-probabilities come beside each token's own, if any do; -1 is `ALL`."""
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
                "is not supported: requests have no negative prompt",
                "guidance_scale",
                value=scale,
                allowed="1.0",
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
        self._settle_whole("logprobs", ALL, MAX_LOGPROBS, none=True)
        self._settle_whole("prompt_logprobs", ALL, MAX_LOGPROBS, none=True)
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
                f"is less than n = {self.n}, the number of choices to return",
                "best_of",
                value=self.best_of,
                hint=f"nearest valid: {self.n}",
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
                "cannot be combined with max_tokens = 0; leave one of them out",
                "logprob_token_ids",
            )
        cuts = [name for name, off in CUTS.items() if getattr(self, name) != off]
        if self.mirostat and cuts:
            raise RequestError(
                f"cannot be combined with {', '.join(cuts)}; leave one of them out",
                "mirostat",
                value=self.mirostat,
            )
