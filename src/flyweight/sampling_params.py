"""How tokens are chosen: vLLM's module of this name, with its classes.

Invariant: a `SamplingParams` that exists is valid, and an option is declared here and nowhere else.
Standard library only; does not know models, arrays, or tokenizers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Generic, Self, TypeVar

from flyweight.errors import RequestError, nearest
from flyweight.params.options import (
    LLAMACPP,
    OLLAMA,
    OPENAI,
    ObjectOption,
    RealOption,
    SamplingOption,
    SwitchOption,
    TemperatureOption,
    TextsOption,
    TokenIdsOption,
    WholeOption,
    check_biases,
    check_functions,
    make_instance_check,
)
from flyweight.params.repetition import RepetitionDetectionParams
from flyweight.params.structured import StructuredOutputs
from flyweight.params.tasks import BeamSearchParams as BeamSearchParams
from flyweight.params.tasks import PoolingParams as PoolingParams
from flyweight.validation.ranges import number, whole

StructuredOutputsParams = StructuredOutputs  # vLLM's name
Processor = Callable[..., Any]  # a row of logits to another, see `SamplingParams`
ALL = -1  # log-probabilities: those of the whole vocabulary
MAX_LOGPROBS = 64  # in addition to a token's own; the native sampler lists no more
MAX_CHOICES = 128
MAX_STOPS, LONGEST_STOP = 64, 1024  # stop strings, and characters of one
MAX_BAD_WORDS = 128
LEAST_REPETITION = 1e-4  # a logit divided by less may leave float32
COLDEST, HOTTEST = 1e-4, 1e6  # temperatures; below is as good as greedy, above as uniform
DRY_BREAKERS = ("\n", ":", '"', "*")  # llama.cpp's

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
    Biases = ParamField[Mapping[int, float], Mapping[int, float] | None]
else:
    Texts, Ids, Biases = tuple[str, ...], tuple[int, ...], Mapping[int, float]
    SomeIds, Processors = Ids | None, tuple[Processor, ...]
EMPTY: Any = ()
UNSET: Any = None
BREAKERS: Any = DRY_BREAKERS
NO_BIASES: Any = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    """How to choose tokens; names and meanings are vLLM's, and llama.cpp's where vLLM has none.
    Raises `RequestError` when out of range.

    Each field declares its option: see `params.options`, and docs/sampling.md for the list.  From
    `logits_processors` on, they choose tokens, in the order in which they act.
    """

    # fmt: off
    n: Annotated[int, WholeOption(
        "Number of answers to return.", 1, MAX_CHOICES,
        details="They share the prompt's KV-cache blocks.", names={LLAMACPP: "n_cmpl"},
        limit="max_choices", apis=(),
    )] = 1
    best_of: Annotated[int | None, WholeOption(
        "Generate this many answers and return the n with the highest cumulative log-probability.",
        1, MAX_CHOICES, details="Best first; not with streaming.", none=True,
        values=f"n to {MAX_CHOICES}, or none", apis=(),
    )] = None
    max_tokens: Annotated[int | None, WholeOption(
        "Maximum number of tokens of an answer.", 1,
        details="None: up to the end of the context; 0 is allowed with `echo` or "
        "`prompt_logprobs`.", none=True, names={LLAMACPP: "n_predict", OLLAMA: "num_predict"},
        cli="N", flags=("-n", "--max-tokens"), cli_default="no limit",
        generation_config="max_new_tokens", apis=(),
    )] = 16
    seed: Annotated[int | None, WholeOption(
        "Seed of the random choices; the same seed gives the same text.", -(2**63), 2**64 - 1,
        details="None: a random seed per request.", none=True, values="64 bits", cli="N",
        cli_default="random",
    )] = None
    stop: Annotated[Texts, TextsOption(
        "End the answer before one of these strings.", MAX_STOPS, LONGEST_STOP, alone=True,
        limit="max_stop_strings", cli="TEXT",
    )] = EMPTY
    stop_token_ids: Annotated[Ids, TokenIdsOption(
        "End the answer at one of these ids, as at the model's end-of-sequence ids.", 1024,
        apis=(OPENAI,),
    )] = EMPTY
    ignore_eos: Annotated[bool, SwitchOption(
        "Continue after the model's end-of-sequence tokens.", cli="-",
    )] = False
    repetition_detection: Annotated[RepetitionDetectionParams | None, ObjectOption(
        "End an answer that [repeats itself](#repetition-detection).",
        make_instance_check(RepetitionDetectionParams), values="a `RepetitionDetectionParams`",
    )] = None
    thinking_token_budget: Annotated[int | None, WholeOption(
        "Maximum number of reasoning tokens.", 0,
        details="[The reasoning is then closed](tool-calls.md#reasoning-with-a-budget).", none=True,
        same={-1: None}, apis=(),
    )] = None
    logprobs: Annotated[int | None, WholeOption(
        "Return the raw log-probabilities of each token and of this many most likely ones.", ALL,
        MAX_LOGPROBS, details="-1, where `max_logprobs` is -1: of the whole vocabulary.", none=True,
        values=f"0 to `max_logprobs`: 20, or up to {MAX_LOGPROBS}", names={LLAMACPP: "n_probs"},
        limit="max_logprobs", apis=(),
    )] = None
    logprob_token_ids: Annotated[Ids, TokenIdsOption(
        "Return the raw log-probabilities of these ids instead of the most likely ones.",
        MAX_LOGPROBS, details="Without ranks.", values="up to `max_logprobs` ids",
        limit="max_logprobs", apis=(),
    )] = EMPTY
    prompt_logprobs: Annotated[int | None, WholeOption(
        "Return log-probabilities of every prompt token except the first.", ALL, MAX_LOGPROBS,
        none=True, values="0 to `max_logprobs`", limit="max_logprobs", apis=(),
    )] = None
    echo: Annotated[bool, SwitchOption(
        "Start the text with the prompt.",
        details="With `logprobs`, the prompt's log-probabilities are included.", apis=(),
    )] = False
    include_stop_str_in_output: Annotated[bool, SwitchOption(
        "Keep the stop string in the text.", apis=(OPENAI,),
    )] = False
    skip_special_tokens: Annotated[bool, SwitchOption(
        "Omit special tokens from the text.", apis=(OPENAI,),
    )] = True
    logits_processors: Annotated[Processors, ObjectOption(
        "[User functions](#logits-processors) on the model's logits: f(generated ids, row) or "
        "f(prompt ids, generated ids, row).", check_functions, values="functions",
    )] = EMPTY
    logit_bias: Annotated[Biases, ObjectOption(
        "Numbers that are added to the logits of token ids.", check_biases,
        values="ids to -100 … 100", limit="max_logit_bias",
    )] = NO_BIASES
    allowed_token_ids: Annotated[SomeIds, TokenIdsOption(
        "Only these ids can be sampled.", 1 << 15, none=True, apis=(OPENAI,),
    )] = UNSET
    structured_outputs: Annotated[StructuredOutputs | None, ObjectOption(
        "Output constraint: [structured output](structured-output.md).",
        make_instance_check(StructuredOutputs), values="a `StructuredOutputs`",
    )] = None
    min_tokens: Annotated[int, WholeOption(
        "Stop ids cannot be sampled before this many tokens.", 0, values="0 to max_tokens",
        apis=(OPENAI,),
    )] = 0
    bad_words: Annotated[Texts, TextsOption(
        "Never write one of these strings.", MAX_BAD_WORDS, LONGEST_STOP,
        details="After all tokens of a string but the last, the last cannot be sampled; with and "
        "without a leading space.", cli="TEXT", apis=(OPENAI,),
    )] = EMPTY
    repetition_penalty: Annotated[float, RealOption(
        "Penalty for every token of the prompt and the answer; above 1 discourages repetition.",
        LEAST_REPETITION, 10, names={LLAMACPP: "repeat_penalty", OLLAMA: "repeat_penalty"}, cli="R",
        generation_config="repetition_penalty", column="penalties",
    )] = 1.0
    presence_penalty: Annotated[float, RealOption(
        "Penalty for a token that is in the answer.", -2, 2, cli="P", column="penalties",
    )] = 0.0
    frequency_penalty: Annotated[float, RealOption(
        "Penalty for a token, for each time that it is in the answer.", -2, 2, cli="P",
        column="penalties",
    )] = 0.0
    repeat_last_n: Annotated[int, WholeOption(
        "Last tokens that these penalties count; -1: all, 0: none.", -1,
        details="The prompt counts. 64 by default in the llama-server and Ollama APIs, as in "
        "those programs.", cli="N",
    )] = -1
    dry_multiplier: Annotated[float, RealOption(
        "DRY: penalty for a token that continues a repetition; 0: off.", 0, 100,
        details="For a repetition of n tokens: multiplier · base^(n − allowed length).", cli="M",
    )] = 0.0
    dry_base: Annotated[float, RealOption(
        "DRY: growth of the penalty with each token.", 1, 100, cli="B",
    )] = 1.75
    dry_allowed_length: Annotated[int, WholeOption(
        "DRY: longest repetition without a penalty, in tokens.", 1, cli="N",
    )] = 2
    dry_penalty_last_n: Annotated[int, WholeOption(
        "DRY: tokens in which repetitions are searched; -1: all.", -1, details="The prompt counts.",
        cli="N",
    )] = -1
    dry_sequence_breakers: Annotated[Texts, TextsOption(
        "DRY: a token that contains one of these strings ends a repetition.", MAX_STOPS,
        LONGEST_STOP, cli="TEXT", flags=("--dry-sequence-breaker",), cli_default='line end : " *',
    )] = BREAKERS
    top_n_sigma: Annotated[float, RealOption(
        "Keep logits within this many standard deviations of the largest; 0: all.", 0, 1000,
        same={-1: 0}, cli="N", column="cuts", filters=True,
    )] = 0.0
    top_k: Annotated[int, WholeOption(
        "Keep this many most likely tokens; 0: all.", 0, same={-1: 0}, cli="N",
        generation_config="top_k", column="top_k", filters=True,
    )] = 0
    temperature: Annotated[float, TemperatureOption(
        "Divides the logits; 0: greedy.", COLDEST, HOTTEST,
        details="Greedy takes the largest logit, and the other options from `top_n_sigma` on have"
        " no effect.", cli="T", run_default=0.8,
        generation_config="temperature", column="temperature",
    )] = 1.0
    typical_p: Annotated[float, RealOption(
        "Keep the tokens whose surprise is closest to the expected surprise, up to this total "
        "probability.", 0, 1, above=True, cli="P", column="cuts", filters=True,
    )] = 1.0
    top_p: Annotated[float, RealOption(
        "Keep the most likely tokens, up to this total probability.", 0, 1, above=True, cli="P",
        run_default=0.95, generation_config="top_p", column="top_p", filters=True,
    )] = 1.0
    min_p: Annotated[float, RealOption(
        "Keep tokens with at least this probability relative to the most likely one.", 0, 1,
        cli="P", generation_config="min_p", column="min_p",
        filters=True,
    )] = 0.0
    xtc_probability: Annotated[float, RealOption(
        "XTC: with this probability, drop all tokens above the threshold except the least likely "
        "of them.", 0, 1, cli="P", column="cuts", filters=True,
    )] = 0.0
    xtc_threshold: Annotated[float, RealOption(
        "XTC: lowest probability of a token to drop.", 0, 0.5, cli="P", column="cuts",
    )] = 0.1
    mirostat: Annotated[int, WholeOption(
        "Version of mirostat, which keeps the surprise of the answer near a target; 0: off.", 0, 2,
        details="It excludes the other filters.", cli="0|1|2", column="cuts",
    )] = 0
    mirostat_tau: Annotated[float, RealOption(
        "Mirostat: the target surprise in bits.", 0, 100, cli="BITS", column="cuts",
    )] = 5.0
    mirostat_eta: Annotated[float, RealOption(
        "Mirostat: learning rate.", 0, 1, cli="E", column="cuts",
    )] = 0.1
    guidance_scale: Annotated[float, SamplingOption(
        "Not supported: contrastive guidance.", values="1", apis=(),
    )] = 1.0
    # fmt: on

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
        """How many log-probabilities are listed with each token's own, if any; -1 is `ALL`."""
        return len(self.logprob_token_ids) or self.logprobs

    def __post_init__(self) -> None:
        for name, default, check in CHECKS:
            value = getattr(self, name)
            if value is not default:
                object.__setattr__(self, name, check(name, value))
        self._check_lengths()
        self._check_company()

    def _check_lengths(self) -> None:
        """Options whose range or default depends on others."""
        if self.echo and self.prompt_logprobs is None:
            object.__setattr__(self, "prompt_logprobs", self.logprobs)
        if self.max_tokens is not None:
            about_the_prompt = self.echo or self.prompt_logprobs is not None
            most = whole("max_tokens", self.max_tokens, 0 if about_the_prompt else 1, None)
            object.__setattr__(self, "max_tokens", most)
        least = whole("min_tokens", self.min_tokens, 0, self.max_tokens)
        object.__setattr__(self, "min_tokens", least)

    def _check_company(self) -> None:
        """Options that exclude each other."""
        scale = number("guidance_scale", self.guidance_scale)
        if scale != 1:
            raise RequestError(
                "is not supported: requests have no negative prompt",
                "guidance_scale",
                value=scale,
                allowed="1.0",
            )
        if self.best_of is not None and self.best_of < self.n:
            raise RequestError(
                f"is less than n = {self.n}, the number of choices to return",
                "best_of",
                value=self.best_of,
                hint=f"nearest valid: {self.n}",
            )
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


OPTIONS: Mapping[str, SamplingOption] = {  # by name, in the order of their declarations
    f.name: f.type.__metadata__[0]  # type: ignore[union-attr]
    for f in fields(SamplingParams)
}
LAST = tuple(OPTIONS)[-1]  # the field that is set last
CHECKS = tuple(
    (f.name, f.default, OPTIONS[f.name].validate)
    for f in fields(SamplingParams)
    if f.name not in ("max_tokens", "min_tokens")
)
CUTS = {f.name: f.default for f in fields(SamplingParams) if OPTIONS[f.name].filters}
