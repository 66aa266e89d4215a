"""The body of /v1/chat/completions, and what of it the model's chat template uses.

Invariant: a field that has no effect because the template does not read it is refused by name, or
ignored and listed if the server is lenient.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError
from starlette.requests import Request

from flyweight.errors import OWN_NAMES, FieldNames, RequestError, nearest, translate_path
from flyweight.server.apis.body import FIRST, mark_limit
from flyweight.server.apis.fields import Fields
from flyweight.server.apis.openai.idle_time import IdleTime
from flyweight.server.apis.sampling_fields import (
    IDLE,
    SamplingBody,
    check_listed_ids,
    count_alternatives,
)
from flyweight.server.apis.tools import TOOLS, Choice, Tool, demands_call
from flyweight.server.request_model import RequestModel
from flyweight.server.transport.replies import ignore_also
from flyweight.text.chat import choose
from flyweight.text.messages import OWN, join_text
from flyweight.text.template_reads import list_variables
from flyweight.types import MAX_LOGPROBS
from flyweight.validation.untrusted import shown

LOGPROBS = Field(None, ge=0, le=MAX_LOGPROBS, json_schema_extra=mark_limit("max_logprobs"))
Switch = Annotated[str, Field(max_length=64)]
Plain = bool | int | float | Annotated[str, Field(max_length=4096)] | None
Switches = Annotated[dict[Switch, Plain], Field(max_length=32)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Budget = Annotated[
    int | None,
    Field(ge=-1, lt=2**31, description="Tokens of reasoning, which then is closed; -1: any."),
]
UNSEEN = {  # by templates
    "annotations", "prefix", "audio", "function_call", "provider_specific_fields",
}  # fmt: skip
Role = Literal["system", "developer", "user", "assistant", "tool", "function"]
THINKING = ("enable_thinking", "thinking")  # template variables that switch reasoning
EFFORT = "reasoning_effort"
GOING_ON = "continue_final_message"  # is no template's to read
WITH_TOOLS = ("tools", "tool_choice", "parallel_tool_calls")


class TextPart(Fields):
    """A part of a message's content; `input_text` and `output_text` are names of /v1/responses."""

    type: Literal["text", "input_text", "output_text"]
    text: str
    annotations: list[Any] | None = Field(None, description=IDLE)
    cache_control: dict[str, Any] | None = Field(None, description=IDLE)


class HasText(Protocol):
    """A part of a message's content, in any API."""

    @property
    def text(self) -> str: ...


def join_parts(content: str | Sequence[HasText] | None) -> str:
    """The text of a content and all its parts."""
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content or ())


class Message(Fields):
    """One message; all of it goes to the model's template."""

    role: Role
    content: str | Annotated[list[TextPart], FIRST] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = Field(None, fail_fast=True)
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = Field(None, description="The same as `reasoning`.")
    thinking: str | None = Field(None, description="The same as `reasoning`.")
    refusal: str | None = None
    annotations: list[Any] | None = Field(None, description=IDLE)
    prefix: bool | None = Field(
        None, description="Of the last message, the assistant's: the answer goes on with it."
    )
    audio: None = Field(None, description="Sounds are not read here.")
    function_call: None = Field(None, description="`tool_calls` took its place.")
    provider_specific_fields: dict[str, Any] | None = Field(
        None, description=f"litellm adds it to the answers it returns. {IDLE}"
    )

    @model_validator(mode="after")
    def _with_content(self) -> Self:
        """An assistant's message may only have calls; a user or tool message has content."""
        if self.content is None and self.role in ("user", "tool"):
            raise PydanticCustomError("missing_content", "")
        return self

    def to_chat(self) -> dict[str, Any]:
        """The message as templates read it, with the text of its parts only."""
        found = self.model_dump(exclude_unset=True, exclude=UNSEEN)
        if isinstance(self.content, list):
            found["content"] = [{"type": "text", "text": part.text} for part in self.content]
        return found


class ChatBody(SamplingBody):
    """A conversation to be answered."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_tokens: int | None = Field(None, ge=1, lt=2**31)
    max_completion_tokens: int | None = Field(None, ge=1, lt=2**31)
    logprobs: bool | None = None
    top_logprobs: int | None = LOGPROBS
    echo: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Switches | None = None
    documents: list[dict[str, Any]] | None = Field(None, fail_fast=True)
    tools: list[Tool] | None = TOOLS
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    reasoning_effort: Effort | None = None
    thinking_token_budget: Budget = None
    verbosity: Literal["low", "medium", "high"] | None = Field(
        None, description="Given to the model's template."
    )
    add_special_tokens: bool | None = None
    return_prompt_text: bool | None = None
    modalities: list[Literal["text"]] | None = Field(None, min_length=1, max_length=1)
    ttl: IdleTime = None
    chat_template: None = Field(None, description="The server's own: --chat-template.")
    functions: None = Field(None, description="`tools` took their place.")
    function_call: None = Field(None, description="`tool_choice` took its place.")

    @property
    def goes_on(self) -> bool | None:
        """Whether the answer continues the last message.  Raises `RequestError`."""
        *others, last = self.messages
        misplaced = next((i for i, one in enumerate(others) if one.prefix), None)
        if last.prefix and last.role != "assistant":
            misplaced = len(others)
        if misplaced is not None:
            place = f"messages.{misplaced}.prefix"
            raise RequestError(
                "is not valid",
                place,
                value=True,
                allowed="in the last message, if it is the assistant's",
            )
        return True if last.prefix else self.continue_final_message

    @property
    def continued(self) -> str | None:
        """The text that the answer continues."""
        return join_text(self.messages[-1].to_chat().get("content")) if self.goes_on else None

    @property
    def most(self) -> int | None:
        """Alternatives per token; None if ids are listed instead."""
        return None if self.logprob_token_ids else self.top_logprobs or 0

    def to_options(self, defaults: dict[str, Any]) -> dict[str, Any]:
        """`SamplingParams`' keywords.  Raises `RequestError`."""
        most = self.max_completion_tokens or self.max_tokens or defaults.get("max_tokens")
        found = {**self.options(defaults), "max_tokens": most}
        scored = count_alternatives(self.logprobs, self.top_logprobs)
        check_listed_ids(self.logprob_token_ids, bool(self.logprobs), "true")
        return found if scored is None else {**found, "logprobs": scored}


def check_template_fields(
    model: RequestModel, request: Request, body: ChatBody, names: FieldNames = OWN_NAMES
) -> ChatBody:
    """The body without the fields that have no effect; `names` are the API's field names.  Raises
    `RequestError`.
    """
    reads = find_variables(model, tools=bool(body.tools) and body.tool_choice != "none")
    if reads is None:
        return body
    less: dict[str, Any] = {}
    for name in _list_unused(model, body, reads):
        reject_unused_field(model, request, name, reads, names)
        less |= dict.fromkeys(WITH_TOOLS if name == "tools" else (name,))
    own = body.chat_template_kwargs or {}
    unused = [name for name in own if name not in (*reads, *OWN, GOING_ON)]
    for name in unused:
        reject_unused_field(model, request, f"chat_template_kwargs.{name}", reads, names)
    if unused:
        less["chat_template_kwargs"] = {n: v for n, v in own.items() if n not in unused}
    return body.model_copy(update=less) if less else body


def find_variables(model: RequestModel, *, tools: bool = False) -> frozenset[str] | None:
    """The variables that the template reads; None if that is not known."""
    return list_variables(choose(model.tokenizer.marks.templates, None, tools=tools))


def make_effort_variables(model: RequestModel, body: ChatBody) -> dict[str, Any]:
    """Template variables for the effort of reasoning and the verbosity.  A template without efforts
    only has a switch, which any effort turns on.
    """
    found: dict[str, Any] = {}
    if body.reasoning_effort is not None:
        found[EFFORT] = body.reasoning_effort
        thinks = body.reasoning_effort != "none"
        reads = find_variables(model, tools=bool(body.tools)) or frozenset({EFFORT})
        if not thinks or EFFORT not in reads:
            found |= dict.fromkeys(THINKING, thinks)
    if body.verbosity is not None:
        found["verbosity"] = body.verbosity
    return found


def make_thinking_variables(
    model: RequestModel, request: Request, place: str, wanted: bool | None
) -> dict[str, bool]:
    """The template's switch for reasoning.  Empty if it has none and the wanted state, if any, is
    the only one.  Raises `RequestError` that names `place`.
    """
    reads = find_variables(model)
    found = [name for name in THINKING if reads is None or name in reads]
    if found and wanted is None and not model.settings.template_defaults.keys().isdisjoint(found):
        return {}  # as the operator says
    if found:
        return dict.fromkeys(found, wanted is not False)
    if wanted is not None and wanted is not (model.chat_format.reasoning is not None):
        reject_unused_field(model, request, place, reads or frozenset())
    return {}


def reject_unused_field(
    model: RequestModel,
    request: Request,
    name: str,
    reads: frozenset[str],
    names: FieldNames = OWN_NAMES,
) -> None:
    """Refuses a field that has no effect, or notes it if the server is lenient.  Raises
    `RequestError`.
    """
    if model.settings.ignore_unknown_fields:
        ignore_also(request, translate_path(name, names))
        return
    field, _, switch = name.partition(".")
    theirs = sorted(reads - {"tools", "documents", "add_generation_prompt"})
    listed = f"; it reads: {', '.join(theirs)}" if theirs else ""
    place = f"{field}.{shown(switch)[1:-1]}" if switch else field
    raise RequestError(
        "has no effect: the model's chat template does not read it"
        f"{nearest(switch, theirs) if switch else ''}{listed[:300]}; leave it out",
        place,
    )


def _list_unused(model: RequestModel, body: ChatBody, reads: frozenset[str]) -> list[str]:
    """Given fields that have no effect."""
    found = []
    shown = bool(body.tools) and body.tool_choice != "none"
    if shown and "tools" not in reads and not demands_call(body.tool_choice):
        found.append("tools")
    if body.documents and "documents" not in reads:
        found.append("documents")
    if body.verbosity is not None and "verbosity" not in reads:
        found.append("verbosity")
    silent = body.reasoning_effort == "none" and model.chat_format.reasoning is None
    if body.reasoning_effort is not None and not silent and not {EFFORT, *THINKING} & reads:
        found.append(EFFORT)
    return found
