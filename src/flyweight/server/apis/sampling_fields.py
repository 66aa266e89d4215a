"""The options of a completion that OpenAI, vLLM and llama.cpp share, as a body has them.

Invariant: a body that passes makes `SamplingParams`, or is refused by the name of a field.
"""

from functools import cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from flyweight.errors import RequestError
from flyweight.params.options import OPENAI
from flyweight.params.repetition import LARGEST, LONGEST, RepetitionDetectionParams
from flyweight.server.apis.body import limited
from flyweight.server.apis.fields import ALWAYS, UNLESS_FALSE, Fields
from flyweight.server.apis.option_fields import Id as Id
from flyweight.server.apis.option_fields import bounded, with_options
from flyweight.server.apis.output_formats import (
    ResponseFormat,
    Source,
    StructuredFields,
    constraint,
    place_of,
)
from flyweight.server.settings import MOST_PRIORITY
from flyweight.server.transport.guard import LETTERS
from flyweight.types import (
    CUTS,
    MAX_CHOICES,
    MAX_LOGPROBS,
    OPTIONS,
    SamplingParams,
)
from flyweight.validation.untrusted import shown

WIDTH = "x-width"  # marks lengths of vectors
Text = Annotated[str, Field(min_length=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
StopText = Annotated[str, Field(min_length=1, max_length=1024)]
Bias = Annotated[float, Field(ge=-100, le=100)]
IDLE = "Has no effect."
KEYS = "Has no effect: whatever was computed is kept."
Priority = Annotated[
    int | None,
    Field(
        ge=-MOST_PRIORITY, le=MOST_PRIORITY, json_schema_extra=limited("max_priority", both=True)
    ),
]
Idle = Annotated[str | None, Field(description=IDLE, json_schema_extra=ALWAYS)]
Retention = Annotated[str | None, Field(description=KEYS, json_schema_extra=ALWAYS)]
Metadata = Annotated[dict[str, Any] | None, Field(description=IDLE, json_schema_extra=ALWAYS)]
Stored = Annotated[
    bool | None, Field(description="Nothing is kept here.", json_schema_extra=UNLESS_FALSE)
]
RequestId = Annotated[str | None, Field(pattern=f"^{LETTERS}{{1,128}}$")]
Salt = Annotated[str | None, Field(min_length=1, max_length=1024)]
Explain = Annotated[
    bool | None, Field(description="Return what was found in the prefix cache, and why not more.")
]
OWN = ("n", "prompt_logprobs", "logprob_token_ids", "thinking_token_budget")  # of some bodies


def _off(value: bool) -> bool:
    if value:
        raise ValueError("false")
    return value


def _on(value: bool) -> bool:
    if not value:
        raise ValueError("true")
    return value


def _some(value: int) -> int:
    if value == 0:
        raise ValueError("1 or more, or -1")
    return value


Truncation = Annotated[
    Annotated[int, AfterValidator(_some)] | None,
    Field(
        ge=-1,
        lt=2**31,
        description="Tokens of a prompt that are kept; -1: what fits.",
        json_schema_extra={"not": {"const": 0}},
    ),
]
No = Annotated[bool, AfterValidator(_off), WithJsonSchema({"const": False})]  # a switch left off
Nothing = Annotated[dict[str, Any] | None, Field(max_length=0)]
Yes = Annotated[bool, AfterValidator(_on), WithJsonSchema({"const": True})]


class StreamOptions(Fields):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: No | None = Field(None, description="Chunks are as long as their text.")

    @property
    def running(self) -> bool:
        """Whether every chunk has the usage so far: `include_usage: false` wins, as in vLLM."""
        return bool(self.continuous_usage_stats) and self.include_usage is not False


class RepetitionFields(Fields):
    """Patterns of so many tokens, and how often one must stand in a row; none of 0 tokens."""

    max_pattern_size: int | None = Field(None, ge=0, le=LARGEST)
    min_pattern_size: int | None = Field(None, ge=0, le=LARGEST)
    min_count: int | None = Field(None, ge=0, le=LONGEST)


class SamplingFields(Fields):
    """How tokens are drawn, under names all dialects share; `None` is as good as absent."""

    api: ClassVar[str] = OPENAI
    temperature: float | None = bounded("temperature")
    top_p: float | None = bounded("top_p")
    ignore_eos: bool | None = bounded("ignore_eos")
    mirostat: int | None = bounded("mirostat")
    seed: int | None = Field(None, ge=-(2**63), lt=2**63, description=OPTIONS["seed"].doc)

    def drawn(self, defaults: dict[str, Any]) -> dict[str, Any]:
        """`SamplingParams`' keywords: the server's defaults, and over them what was given."""
        given = {name: getattr(self, theirs, None) for name, theirs in _taken(self.api).items()}
        given = {name: value for name, value in given.items() if value is not None}
        return {**beside(self.mirostat, defaults), **given}


@with_options(OPENAI)
class VllmFields(SamplingFields):
    """What vLLM's servers take beside OpenAI's fields, in all of OpenAI's bodies."""

    skip_special_tokens: bool | None = bounded("skip_special_tokens")
    logit_bias: dict[str, Bias] | None = Field(None, json_schema_extra=limited("max_logit_bias"))
    structured_outputs: StructuredFields | None = None
    repetition_detection: RepetitionFields | None = Field(
        None, description="Ends an answer whose last tokens repeat a pattern so often."
    )
    truncate_prompt_tokens: Truncation = None
    truncation_side: Literal["left", "right"] | None = None
    spaces_between_special_tokens: Yes | None = None
    priority: Priority = None
    cache_salt: Salt = None
    watermarking: No | None = None
    vllm_xargs: Nothing = None
    media_io_kwargs: Nothing = None
    mm_processor_kwargs: Nothing = None
    return_mm_kwargs: No | None = None
    return_token_offsets: No | None = None
    kv_transfer_params: Nothing = None
    ec_transfer_params: Nothing = None


class SamplingBody(VllmFields):
    """What is the same in OpenAI's bodies of chat and completions."""

    model: str | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES, json_schema_extra=limited("max_choices"))
    prompt_logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, json_schema_extra=limited("max_logprobs")
    )
    logprob_token_ids: list[Id] | None = Field(
        None, max_length=MAX_LOGPROBS, fail_fast=True, json_schema_extra=limited("max_logprobs"),
        description="Returned in place of the most likely ones.",
    )  # fmt: skip
    response_format: ResponseFormat | None = None
    grammar: Source | None = Field(None, description="GBNF, or Lark; empty: none.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stream_interval: int | None = Field(
        None, ge=1, lt=2**31, description="Tokens of a chunk, from the second on."
    )
    use_beam_search: bool | None = None
    length_penalty: float | None = Field(None, ge=-10, le=10)
    user: Idle = None
    store: Stored = None
    metadata: Metadata = None
    prediction: Metadata = None
    service_tier: Idle = None
    safety_identifier: Idle = None
    prompt_cache_key: str | None = Field(None, description=KEYS)
    prompt_cache_retention: Retention = None
    cache_prompt: bool | None = Field(
        None, description=f"llama-server's. {KEYS}", json_schema_extra=ALWAYS
    )
    request_id: RequestId = None
    return_cache_explanation: Explain = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None

    @property
    def form_place(self) -> str:
        """Where the body has a schema, if that is not `structured_outputs`."""
        return "grammar" if self.grammar else place_of(self.response_format)

    def options(self, defaults: dict[str, Any]) -> dict[str, Any]:
        """`SamplingParams`' keywords.  Raises `RequestError`."""
        if self.stream_options is not None and not self.stream:
            raise RequestError(
                "can be set only for streams", "stream_options", allowed="only if stream is true"
            )
        found = self.drawn(defaults)
        if self.logit_bias:
            found["logit_bias"] = biases(self.logit_bias)
        if self.repetition_detection is not None:
            sizes = self.repetition_detection.model_dump(exclude_none=True)
            found["repetition_detection"] = RepetitionDetectionParams(**sizes)
        form = constraint(self.response_format, self.structured_outputs, self.grammar)
        if form is not None:
            found["structured_outputs"] = form
        return found


@cache
def _taken(api: str) -> dict[str, str]:
    """Options that bodies of an API may have, with their names there."""
    found = {name: one.name_in(name, api) for name, one in OPTIONS.items() if api in one.apis}
    return found | {name: name for name in OWN}


def beside(mirostat: int | None, defaults: dict[str, Any]) -> dict[str, Any]:
    """Defaults without those that mirostat, where it is asked for, decides by itself."""
    if not mirostat:
        return defaults
    return {name: value for name, value in defaults.items() if name not in CUTS}


def params_of(options: dict[str, Any]) -> SamplingParams:
    """Raises `RequestError`."""
    return SamplingParams(**options)


def alternatives(logprobs: bool | None, most: int | None) -> int | None:
    """How many are told of beside each token; none where no log-probabilities are asked for.
    Raises `RequestError`.
    """
    if most and not logprobs:
        raise RequestError(
            "needs logprobs = true",
            "top_logprobs",
            value=most,
            allowed="0, or with logprobs = true",
        )
    return most or 0 if logprobs else None


def listing(ids: list[int] | None, scored: bool, allowed: str) -> None:
    """Raises `RequestError` where ids are listed and log-probabilities are not asked for."""
    if ids and not scored:
        raise RequestError(
            "needs log-probabilities",
            "logprob_token_ids",
            allowed=f"with logprobs = {allowed}",
        )


def biases(given: dict[str, float]) -> dict[int, float]:
    """OpenAI's keys are ids as text.  Raises `RequestError`."""
    found: dict[int, str] = {}
    for key in given:
        if not key.isascii() or not key.isdecimal() or len(key) > 10:
            raise RequestError(
                f": {shown(key)} is not a token id", "logit_bias", allowed="ids as text"
            )
        other = found.setdefault(int(key), key)
        if other != key:
            raise RequestError(
                f": {shown(other)} and {shown(key)} are the same token id",
                "logit_bias",
                allowed="each id once",
            )
    return {token: given[key] for token, key in found.items()}
