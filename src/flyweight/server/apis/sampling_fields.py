"""The sampling options as bodies have them, made from their declarations.

Invariant: a field has the range that `SamplingParams` has.  A body that passes makes
`SamplingParams`, or is refused by the name of a field.
"""

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, Field, WithJsonSchema, create_model

from flyweight.errors import RequestError
from flyweight.params.options import (
    OPENAI,
    NumberOption,
    RealOption,
    SamplingOption,
    SwitchOption,
    TextsOption,
    TokenIdsOption,
)
from flyweight.params.repetition import LARGEST, LONGEST, RepetitionDetectionParams
from flyweight.server.apis.body import TOKEN, mark_limit
from flyweight.server.apis.fields import ALWAYS, UNLESS_FALSE, Fields
from flyweight.server.apis.output_formats import (
    ResponseFormat,
    Source,
    StructuredFields,
    constraint,
    place_of,
)
from flyweight.server.apis.slo import Slo
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
        ge=-MOST_PRIORITY, le=MOST_PRIORITY, json_schema_extra=mark_limit("max_priority", both=True)
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
ReturnCost = Annotated[
    bool | None, Field(description="Return the time, the energy and the cost of the steps.")
]
OWN = ("n", "prompt_logprobs", "logprob_token_ids", "thinking_token_budget")  # of some bodies
Body = TypeVar("Body", bound=BaseModel)
Id = Annotated[int, Field(ge=0, lt=2**31, json_schema_extra={TOKEN: True})]
MOST = 2**31 - 1  # whole numbers without another maximum


def with_options(api: str) -> Callable[[type[Body]], type[Body]]:
    """A class decorator: the body, with those options of an API that it does not have yet."""

    def extend(body: type[Body]) -> type[Body]:
        made: dict[str, Any] = {
            option.name_in(name, api): (find_body_type(option) | None, make_field(name))
            for name, option in OPTIONS.items()
            if api in option.apis and option.name_in(name, api) not in body.model_fields
        }
        return create_model(
            body.__name__, __base__=body, __module__=body.__module__, __doc__=body.__doc__, **made
        )

    return extend


def make_field(name: str, default: Any = None) -> Any:
    """A field with the meaning, the range and the limit of an option."""
    option = OPTIONS[name]
    more: dict[str, Any] = {"json_schema_extra": mark_limit(option.limit)} if option.limit else {}
    if isinstance(option, NumberOption):
        above = isinstance(option, RealOption) and option.above
        more["gt" if above else "ge"] = option.lowest
        more["le"] = MOST if option.high is None else option.high
    return Field(default, description=option.doc, **more)


def find_body_type(option: SamplingOption) -> Any:
    """The type of an option's value in a body."""
    if isinstance(option, TextsOption):
        text = Annotated[str, Field(min_length=1, max_length=option.longest)]
        many = Annotated[list[text], Field(max_length=option.most)]
        return text | many if option.alone else many
    if isinstance(option, TokenIdsOption):
        least = 1 if option.none else 0
        return Annotated[list[Id], Field(min_length=least, max_length=option.most, fail_fast=True)]
    if isinstance(option, SwitchOption):
        return bool
    return float if isinstance(option, RealOption) else int


def _check_false(value: bool) -> bool:
    if value:
        raise ValueError("false")
    return value


def _check_true(value: bool) -> bool:
    if not value:
        raise ValueError("true")
    return value


def _check_nonzero(value: int) -> int:
    if value == 0:
        raise ValueError("1 or more, or -1")
    return value


Truncation = Annotated[
    Annotated[int, AfterValidator(_check_nonzero)] | None,
    Field(
        ge=-1,
        lt=2**31,
        description="Tokens of a prompt that are kept; -1: what fits.",
        json_schema_extra={"not": {"const": 0}},
    ),
]
No = Annotated[
    bool, AfterValidator(_check_false), WithJsonSchema({"const": False})
]  # a switch left off
Nothing = Annotated[dict[str, Any] | None, Field(max_length=0)]
Yes = Annotated[bool, AfterValidator(_check_true), WithJsonSchema({"const": True})]


class StreamOptions(Fields):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: No | None = Field(None, description="Chunks are as long as their text.")

    @property
    def running(self) -> bool:
        """Whether every chunk has the usage so far: `include_usage: false` wins, as in vLLM."""
        return bool(self.continuous_usage_stats) and self.include_usage is not False


class RepetitionFields(Fields):
    """The size of patterns, and how often one must repeat; none of 0 tokens."""

    max_pattern_size: int | None = Field(None, ge=0, le=LARGEST)
    min_pattern_size: int | None = Field(None, ge=0, le=LARGEST)
    min_count: int | None = Field(None, ge=0, le=LONGEST)


class SamplingFields(Fields):
    """The sampling options that all APIs share."""

    api: ClassVar[str] = OPENAI
    temperature: float | None = make_field("temperature")
    top_p: float | None = make_field("top_p")
    ignore_eos: bool | None = make_field("ignore_eos")
    mirostat: int | None = make_field("mirostat")
    seed: int | None = Field(None, ge=-(2**63), lt=2**63, description=OPTIONS["seed"].doc)

    def read_options(self, defaults: dict[str, Any]) -> dict[str, Any]:
        """The keywords of `SamplingParams`: the server's defaults, replaced by what was given."""
        given = {
            name: getattr(self, theirs, None) for name, theirs in _list_options(self.api).items()
        }
        given = {name: value for name, value in given.items() if value is not None}
        return {**drop_mirostat_cuts(self.mirostat, defaults), **given}


@with_options(OPENAI)
class VllmFields(SamplingFields):
    """What vLLM's servers take in addition to OpenAI's fields, in all of OpenAI's bodies."""

    skip_special_tokens: bool | None = make_field("skip_special_tokens")
    logit_bias: dict[str, Bias] | None = Field(None, json_schema_extra=mark_limit("max_logit_bias"))
    structured_outputs: StructuredFields | None = None
    repetition_detection: RepetitionFields | None = Field(
        None, description="Ends an answer whose last tokens repeat a pattern so often."
    )
    truncate_prompt_tokens: Truncation = None
    truncation_side: Literal["left", "right"] | None = None
    spaces_between_special_tokens: Yes | None = None
    priority: Priority = None
    slo: Slo = None
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
    n: int | None = Field(None, ge=1, le=MAX_CHOICES, json_schema_extra=mark_limit("max_choices"))
    prompt_logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, json_schema_extra=mark_limit("max_logprobs")
    )
    logprob_token_ids: list[Id] | None = Field(
        None, max_length=MAX_LOGPROBS, fail_fast=True, json_schema_extra=mark_limit("max_logprobs"),
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
    return_cost: ReturnCost = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None

    @property
    def form_place(self) -> str:
        """Where the body has a schema, if that is not `structured_outputs`."""
        return "grammar" if self.grammar else place_of(self.response_format)

    def options(self, defaults: dict[str, Any]) -> dict[str, Any]:
        """The keywords of `SamplingParams`.  Raises `RequestError`."""
        if self.stream_options is not None and not self.stream:
            raise RequestError("requires stream = true", "stream_options", code="bad_value")
        found = self.read_options(defaults)
        if self.logit_bias:
            found["logit_bias"] = read_biases(self.logit_bias)
        if self.repetition_detection is not None:
            sizes = self.repetition_detection.model_dump(exclude_none=True)
            found["repetition_detection"] = RepetitionDetectionParams(**sizes)
        form = constraint(self.response_format, self.structured_outputs, self.grammar)
        if form is not None:
            found["structured_outputs"] = form
        return found


@cache
def _list_options(api: str) -> dict[str, str]:
    """The options that bodies of an API may have, with their names there."""
    found = {name: one.name_in(name, api) for name, one in OPTIONS.items() if api in one.apis}
    return found | {name: name for name in OWN}


def drop_mirostat_cuts(mirostat: int | None, defaults: dict[str, Any]) -> dict[str, Any]:
    """The defaults without those that mirostat, if requested, replaces."""
    if not mirostat:
        return defaults
    return {name: value for name, value in defaults.items() if name not in CUTS}


def make_sampling_params(options: dict[str, Any]) -> SamplingParams:
    """Raises `RequestError`."""
    return SamplingParams(**options)


def count_alternatives(logprobs: bool | None, most: int | None) -> int | None:
    """The alternatives per token; None without log-probabilities.  Raises `RequestError`."""
    if most and not logprobs:
        raise RequestError(
            "needs logprobs = true",
            "top_logprobs",
            value=most,
            allowed="0, or with logprobs = true",
        )
    return most or 0 if logprobs else None


def check_listed_ids(ids: list[int] | None, scored: bool, allowed: str) -> None:
    """Raises `RequestError` if ids are listed without log-probabilities."""
    if ids and not scored:
        raise RequestError(
            "needs log-probabilities",
            "logprob_token_ids",
            allowed=f"with logprobs = {allowed}",
        )


def read_biases(given: dict[str, float]) -> dict[int, float]:
    """OpenAI's keys are ids as text.  Raises `RequestError`."""
    found: dict[int, str] = {}
    for key in given:
        if not key.isascii() or not key.isdecimal() or len(key) > 10:
            raise RequestError(
                f": {shown(key)} is not a token id",
                "logit_bias",
                code="bad_value",
                allowed="ids as text",
            )
        other = found.setdefault(int(key), key)
        if other != key:
            raise RequestError(
                f": {shown(other)} and {shown(key)} are the same token id",
                "logit_bias",
                code="bad_value",
                allowed="each id once",
            )
    return {token: given[key] for token, key in found.items()}
