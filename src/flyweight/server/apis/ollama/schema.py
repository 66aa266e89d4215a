"""The bodies of Ollama's routes, also as its client in Go writes them.

Invariant: a field is supported, or refused by name, or accepted with the one value that changes
nothing.  Go's zero value is such a value, and no body is refused for it.
"""

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from flyweight.errors import RequestError
from flyweight.params.options import OLLAMA
from flyweight.params.structured import StructuredOutputs
from flyweight.server.apis.fields import ALWAYS, Fields
from flyweight.server.apis.openai.chat_schema import LOGPROBS
from flyweight.server.apis.openai.embeddings import Dimensions
from flyweight.server.apis.output_formats import schema_in
from flyweight.server.apis.sampling_fields import (
    Explain,
    No,
    Priority,
    ReturnCost,
    Salt,
    SamplingFields,
    Yes,
    count_alternatives,
    with_options,
)
from flyweight.server.apis.slo import Slo
from flyweight.server.apis.tools import TOOLS, Tool
from flyweight.server.served_model import ServedModel

LATEST = ":latest"  # what Ollama's clients put behind a name without a tag
HUB_HOSTS = ("hf.co/", "huggingface.co/")
KEEP = "How long the model stays loaded: seconds, 5m, -1.  A server's only model always stays."
# A duration as Go's time.ParseDuration takes it: numbers with units, such as 1h30m, or a zero.
DURATION = r"^[+-]?(0|(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$"
MODELFILE = "There are no Modelfiles here."
Media = Annotated[list[str], Field(max_length=0, description="Images are not read here.")]
MACHINE = "Has no effect: the server's command line says how the machine is used."
Unset = Literal[""]
Machine = Annotated[int | None, Field(description=MACHINE, json_schema_extra=ALWAYS)]
MachineSwitch = Annotated[bool | None, Field(description=MACHINE, json_schema_extra=ALWAYS)]


def _check_duration(value: str) -> str:
    if not re.fullmatch(DURATION, value):
        raise ValueError("a duration such as 5m, a number of seconds, or -1")
    return value


Duration = Annotated[
    str, AfterValidator(_check_duration), Field(json_schema_extra={"pattern": DURATION})
]
Keep = Annotated[Duration | float | None, Field(description=KEEP, json_schema_extra=ALWAYS)]
SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}


def count_seconds(keep: str | float) -> float:
    """How long a model is kept; a negative duration is for ever."""
    if isinstance(keep, str):
        parts = re.findall(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)", keep)
        total = sum(float(number) * SECONDS[unit] for number, unit in parts)
        keep = -total if keep.startswith("-") else total
    return keep if keep >= 0 else float("inf")


def resolve_name(serves: Callable[[str], bool], name: str) -> str:
    """The name that a model is served under; a missing tag is `:latest`, as in Ollama, and a name
    of the Hub may begin with its host.
    """
    bare = name.removesuffix(LATEST)
    hosted = [bare.removeprefix(host) for host in HUB_HOSTS if bare.startswith(host)]
    known = (name, bare, name + LATEST, *hosted)
    return next((one for one in known if serves(one)), known[1])


def require_name(field: str) -> dict[str, Any]:
    """The schema of a body that has a name in this field."""
    return {"required": [field], "properties": {field: {"type": "string", "minLength": 1}}}


class Shared(Fields):
    """`options` that affect where a request runs, not its answer."""

    num_ctx: int | None = Field(
        None, ge=1, lt=2**31, json_schema_extra=ALWAYS,
        description="Has no effect: the context is --max-model-len, and a prompt is never cut.",
    )  # fmt: skip
    num_thread: Machine = None
    num_gpu: Machine = None
    main_gpu: Machine = None
    num_batch: Machine = None
    num_keep: int | None = Field(
        None, description="Has no effect: nothing is shifted.", json_schema_extra=ALWAYS
    )
    use_mmap: MachineSwitch = None
    use_mlock: MachineSwitch = None
    numa: MachineSwitch = None
    low_vram: MachineSwitch = None
    f16_kv: MachineSwitch = None
    logits_all: MachineSwitch = None
    vocab_only: No | None = None
    embedding_only: No | None = None
    cache_salt: Salt = None
    priority: Priority = None


@with_options(OLLAMA)
class OllamaOptions(SamplingFields, Shared):
    """`options` of a request."""

    api = OLLAMA

    num_predict: int | None = Field(None, ge=-2, lt=2**31)
    tfs_z: float | None = Field(None, ge=1, le=1, description="1: off.")
    penalize_newline: Yes | None = None

    def to_options(self) -> dict[str, Any]:
        """Fields of a `ChatBody`.  Raises `RequestError`."""
        if self.num_predict == 0:
            raise RequestError(
                "requests no tokens",
                "options.num_predict",
                value=0,
                allowed="1 or more, or -1 for as many as fit",
            )
        found = self.read_options({})
        if self.num_predict is not None and self.num_predict > 0:
            found["max_tokens"] = self.num_predict
        if self.seed == -1:
            found.pop("seed", None)
        return found


class OllamaBody(Fields):
    """What both routes take."""

    model: str
    stream: bool = True
    options: OllamaOptions | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    keep_alive: Keep = None
    think: bool | Literal["low", "medium", "high"] | None = None
    truncate: No | None = Field(None, description="What does not fit is refused.")
    shift: No | None = Field(None, description="An answer ends where the context does.")
    logprobs: bool | None = None
    top_logprobs: int | None = LOGPROBS
    slo: Slo = None
    rendered: No | None = Field(None, alias="_debug_render_only")
    return_cache_explanation: Explain = None
    return_cost: ReturnCost = None

    def to_options(self) -> dict[str, Any]:
        """Fields of a `ChatBody`.  Raises `RequestError`."""
        return {} if self.options is None else self.options.to_options()

    @property
    def most(self) -> int | None:
        """The alternatives per token, or None without log-probabilities.  Raises `RequestError`."""
        return count_alternatives(self.logprobs, self.top_logprobs)

    def context_fields(self, model: ServedModel) -> dict[str, Any]:
        """The fields of a `ChatBody` that affect where it runs."""
        options = self.options or OllamaOptions.model_validate({})
        return {
            "model": resolve_name(model.serves, self.model),
            "cache_salt": options.cache_salt,
            "priority": options.priority,
            "return_cache_explanation": self.return_cache_explanation,
            "return_cost": self.return_cost,
        }

    @property
    def form(self) -> StructuredOutputs | None:
        """The constraint of the answer.  Raises `RequestError`."""
        if not self.format:
            return None
        if isinstance(self.format, str):
            return StructuredOutputs(json_object=True)
        return schema_in("format", self.format)


class OllamaCall(Fields):
    """A tool call of an earlier answer."""

    model_config = ConfigDict(extra="allow", strict=True)

    id: str | None = None
    function: dict[str, Any]

    def to_chat(self) -> dict[str, Any]:
        """The call in OpenAI's format, which has no index in it."""
        function = {name: value for name, value in self.function.items() if name != "index"}
        own = {"id": self.id} if self.id else {}
        return {**own, "type": "function", "function": function}


class OllamaMessage(Fields):
    """One message."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: Media | None = None
    tool_calls: list[OllamaCall] | None = Field(None, fail_fast=True)
    tool_name: str | None = None
    tool_call_id: str | None = None

    def to_chat(self) -> dict[str, Any]:
        """The message in OpenAI's format."""
        found: dict[str, Any] = {"role": self.role, "content": self.content or ""}
        if self.thinking is not None:
            found["reasoning"] = self.thinking
        if self.tool_name is not None:
            found["name"] = self.tool_name
        if self.tool_call_id is not None:
            found["tool_call_id"] = self.tool_call_id
        if self.tool_calls is not None:
            found["tool_calls"] = [call.to_chat() for call in self.tool_calls]
        return found


class OllamaChatBody(OllamaBody):
    """A conversation to be answered; without messages the model is only loaded."""

    messages: list[OllamaMessage] = Field(default_factory=list, fail_fast=True)
    tools: list[Tool] | None = TOOLS


class OllamaGenerateBody(OllamaBody):
    """A prompt to be answered through the model's template, or (`raw`) continued."""

    prompt: str = ""
    system: str = ""
    raw: bool = False
    images: Media | None = None
    suffix: Unset | None = None
    template: Unset | None = Field(None, description="The server's own: --chat-template.")
    context: list[int] | None = Field(None, max_length=0, description="Nothing is kept here.")

    def check_raw(self) -> None:
        """Raises `RequestError` for options of a template that the prompt does not pass."""
        why = "raw = true" if self.raw else "this model has no chat template"
        if self.think:
            raise RequestError(
                f"is not supported, because {why} and the prompt is used unchanged",
                "think",
                value=self.think,
                allowed="false",
            )
        if self.system and self.raw:
            raise RequestError(
                f"is not supported, because {why} and the prompt is used unchanged; leave it "
                "out, or add it to the prompt",
                "system",
            )


class EmbedBody(Fields):
    """Texts whose vectors are requested; `truncate` cuts those that are too long."""

    model: str
    input: str | Annotated[list[str], Field(fail_fast=True)] = ""
    truncate: bool = True
    dimensions: Dimensions | Literal[0] | None = None
    keep_alive: Keep = None
    options: Shared | None = None
    return_cache_explanation: Explain = None
    return_cost: ReturnCost = None


class EmbeddingsBody(Fields):
    """One text whose vector is requested, in the format before /api/embed."""

    model: str
    prompt: str = ""
    keep_alive: Keep = None
    options: Shared | None = None
    return_cache_explanation: Explain = None
    return_cost: ReturnCost = None


class ShowBody(Fields):
    """A model to be described; `name` is the old name of `model`."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [require_name(name) for name in ("model", "name")]},
    )

    model: str = ""
    name: str = ""
    verbose: bool = Field(False, description="Has no effect.")
    system: Unset = Field("", description=MODELFILE)
    template: Unset = Field("", description=MODELFILE)
    options: dict[str, Any] | None = Field(None, max_length=0, description=MODELFILE)
