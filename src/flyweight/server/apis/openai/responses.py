"""OpenAI's /v1/responses without stored responses: from its bodies to a chat body.

Invariant: nothing of one request is kept for another; fields that need that are refused by name.
"""

from functools import partial
from typing import Annotated, Any, Literal, get_args

from pydantic import Discriminator, Field, Tag
from starlette.requests import Request
from starlette.responses import Response

from flyweight.errors import RequestError, field_names
from flyweight.server.api_server import ApiServer
from flyweight.server.apis.answer import answer
from flyweight.server.apis.body import FIRST
from flyweight.server.apis.fields import Fields
from flyweight.server.apis.openai.chat import prepare_chat
from flyweight.server.apis.openai.chat_schema import LOGPROBS, Budget, Effort, Switches, join_parts
from flyweight.server.apis.openai.content_blocks import make_chat_body
from flyweight.server.apis.openai.responses_stream import ResponseWriter
from flyweight.server.apis.output_formats import NamedSchema
from flyweight.server.apis.sampling_fields import (
    KEYS,
    Explain,
    Idle,
    Metadata,
    No,
    RequestId,
    Retention,
    ReturnCost,
    Stored,
    VllmFields,
)
from flyweight.server.apis.tools import TOOLS, NamedTool, ToolName
from flyweight.server.settings import MOST_TOOLS

TAKEN = (  # as a chat has them
    *VllmFields.model_fields,
    "model", "parallel_tool_calls", "chat_template_kwargs", "return_cache_explanation",
    "return_cost", "thinking_token_budget", "documents", "add_special_tokens",
)  # fmt: skip


class ResponseTextPart(Fields):
    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: list[Any] | None = Field(None, max_length=0)
    logprobs: list[Any] | None = None


class SaidItem(Fields):
    """A message."""

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Annotated[list[ResponseTextPart], FIRST]
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class CallItem(Fields):
    """A call that the model made before."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None


class CallOutput(Fields):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | Annotated[list[ResponseTextPart], FIRST]
    id: str | None = None
    status: str | None = None


class ReasoningPart(Fields):
    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(Fields):
    """Earlier reasoning of the model."""

    type: Literal["reasoning"]
    id: str | None = None
    summary: list[Any] | None = None
    content: list[ReasoningPart] | None = Field(None, fail_fast=True)
    encrypted_content: None = None
    status: str | None = None


KINDS = {
    "message": "SaidItem",
    "function_call": "CallItem",
    "function_call_output": "CallOutput",
    "reasoning": "ReasoningItem",
}


def _kind(given: Any) -> str | None:
    kind = given.get("type") if isinstance(given, dict) else getattr(given, "type", None)
    return KINDS.get(kind or "message") if isinstance(kind, str | None) else None


Item = Annotated[
    Annotated[SaidItem, Tag("SaidItem")]
    | Annotated[CallItem, Tag("CallItem")]
    | Annotated[CallOutput, Tag("CallOutput")]
    | Annotated[ReasoningItem, Tag("ReasoningItem")],
    Discriminator(
        _kind,
        custom_error_type="unknown_item",
        custom_error_message=f"an object whose type is one of {', '.join(map(repr, KINDS))}",
    ),
]
# What a request may have a response include: log-probabilities, and things that this server's never
# have in them; its reasoning is not encrypted, and is there in any case.
SCHEMA = "text.format.schema"
SCORES = "message.output_text.logprobs"
Include = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content", "file_search_call.results", "web_search_call.results",
    "web_search_call.action.sources", "message.input_image.image_url",
    "computer_call_output.output.image_url", "code_interpreter_call.outputs",
]  # fmt: skip
NAMES = {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "prompt": "input",
    "tools.*.function": "tools.*",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "logprobs": "top_logprobs",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
}


class PlainFormat(Fields):
    type: Literal["text", "json_object"]


class NamedFormat(NamedSchema):
    """JSON that satisfies a schema."""

    type: Literal["json_schema"]

    def to_chat(self) -> dict[str, Any]:
        given = self.model_dump(exclude_none=True, by_alias=True, exclude={"type"})
        return {"type": "json_schema", "json_schema": given}


class ResponseTextFormat(Fields):
    format: PlainFormat | NamedFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = Field(
        None, description="Given to the model's template."
    )


class ResponseTool(Fields):
    """A function of the client."""

    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def to_chat(self) -> dict[str, Any]:
        given = self.model_dump(exclude_none=True, exclude={"type"})
        return {"type": "function", "function": given}


class ResponseChoice(NamedTool):
    """One tool that is to be called."""

    type: Literal["function"]


class ResponseAllowed(Fields):
    """The tools that may be called (`auto`), or one of which is to be (`required`)."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[ResponseChoice] = Field(min_length=1, max_length=MOST_TOOLS)

    def to_chat(self) -> dict[str, Any]:
        named = [{"type": "function", "function": {"name": one.name}} for one in self.tools]
        return {"type": self.type, "allowed_tools": {"mode": self.mode, "tools": named}}


class ReasoningChoice(Fields):
    effort: Effort | None = None
    summary: Literal["auto"] | None = Field(
        None, description="There is none: reasoning is returned in full."
    )


class StreamChoice(Fields):
    include_obfuscation: No | None = Field(None, description="Events are as long as their text.")


class ResponseBody(VllmFields):
    """The input of a response."""

    model: str | None = None
    input: str | Annotated[list[Item], Field(min_length=1, fail_fast=True)]
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1, lt=2**31)
    stream: bool | None = None
    text: ResponseTextFormat | None = None
    tools: list[ResponseTool] | None = TOOLS
    tool_choice: Literal["none", "auto", "required"] | ResponseChoice | ResponseAllowed | None = (
        None
    )
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningChoice | None = None
    metadata: Metadata = None
    stream_options: StreamChoice | None = None
    top_logprobs: int | None = LOGPROBS
    store: Stored = None
    previous_response_id: None = Field(None, description="Nothing is kept here.")
    background: No | None = None
    truncation: Literal["disabled"] | None = None
    include: list[Include] | None = Field(None, max_length=len(get_args(Include)))
    service_tier: Idle = None
    user: Idle = None
    safety_identifier: Idle = None
    prompt_cache_key: str | None = Field(None, description=KEYS)
    prompt_cache_retention: Retention = None
    request_id: RequestId = None
    chat_template_kwargs: Switches | None = None
    documents: list[dict[str, Any]] | None = Field(None, fail_fast=True)
    add_special_tokens: bool | None = None
    thinking_token_budget: Budget = None
    return_cache_explanation: Explain = None
    return_cost: ReturnCost = None

    @property
    def form_place(self) -> str:
        """Where the body has a schema, if that is not `structured_outputs`."""
        form = self.text.format if self.text is not None else None
        return SCHEMA if isinstance(form, NamedFormat) else ""

    @property
    def scored(self) -> int | None:
        """Alternatives per token, or None without log-probabilities.  Raises `RequestError`."""
        if SCORES in (self.include or ()):
            return self.top_logprobs or 0
        if self.top_logprobs:
            raise RequestError(
                "needs logprobs in include",
                "top_logprobs",
                value=self.top_logprobs,
                allowed=f"0, or with include = ['{SCORES}']",
            )
        return None

    def to_chat(self) -> dict[str, Any]:
        """The fields of a chat body.  Raises `RequestError`."""
        messages = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else []
        if not isinstance(self.input, str):
            messages = make_messages(self.input)
        if self.instructions:
            messages.insert(0, {"role": "system", "content": self.instructions})
        found: dict[str, Any] = {name: getattr(self, name) for name in TAKEN}
        found |= {"messages": messages, "max_tokens": self.max_output_tokens}
        if self.scored is not None:
            found |= {"logprobs": True, "top_logprobs": self.scored}
        if self.tools:
            found["tools"] = [tool.to_chat() for tool in self.tools]
        found["tool_choice"] = choice = self.tool_choice
        if isinstance(choice, ResponseChoice):
            found["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
        elif isinstance(choice, ResponseAllowed):
            found["tool_choice"] = choice.to_chat()
        form = self.text.format if self.text is not None else None
        if isinstance(form, NamedFormat):
            found["response_format"] = form.to_chat()
        elif form is not None:
            found["response_format"] = {"type": form.type}
        if self.text is not None:
            found["verbosity"] = self.text.verbosity
        if self.reasoning is not None:
            found["reasoning_effort"] = self.reasoning.effort
        return {name: value for name, value in found.items() if value is not None}

    def echo(self) -> dict[str, Any]:
        """The fields of the request that a response repeats."""
        given = self.model_dump(exclude_none=True, by_alias=True)
        return {
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "text": given.get("text") or {"format": {"type": "text"}},
            "tools": given.get("tools") or [],
            "tool_choice": given.get("tool_choice") or "auto",
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "reasoning": {"effort": None, "summary": None, **given.get("reasoning", {})},
            "top_logprobs": self.top_logprobs or 0,
            "metadata": self.metadata or {},
            "user": self.user,
            "store": False,
            "background": False,
            "previous_response_id": None,
            "truncation": "disabled",
        }


async def create_response(server: ApiServer, request: Request, body: ResponseBody) -> Response:
    model = await server.open_to_generate(request, body.model)
    with field_names(NAMES):
        prepared, reading = await prepare_chat(
            model, request, make_chat_body(body.to_chat()), model.defaults, body.form_place, NAMES
        )
    name = body.model or model.names[0]
    head = {"created_at": model.now(), "model": name, **body.echo()}
    if body.request_id is not None:
        head["id"] = f"resp_{body.request_id}"
    write = partial(ResponseWriter, head, reading, body.scored)
    return await answer(server, model, request, prepared, write, stream=bool(body.stream))


def make_messages(items: list[Item]) -> list[dict[str, Any]]:
    """Items as messages of a chat: reasoning and calls belong to the message of the same turn, or
    are a message of their own if there is none.
    """
    found: list[dict[str, Any]] = []
    thought = ""
    for item in items:
        if isinstance(item, ReasoningItem):
            thought += "".join(part.text for part in item.content or ())
            continue
        if isinstance(item, CallOutput):
            text = join_parts(item.output)
            found.append({"role": "tool", "tool_call_id": item.call_id, "content": text})
        elif isinstance(item, CallItem):
            last = found[-1] if found else {}
            if last.get("role") != "assistant" or thought:
                last = {"role": "assistant", "content": ""}
                found.append(last)
            call = {"name": item.name, "arguments": item.arguments}
            calls = last.setdefault("tool_calls", [])
            calls.append({"id": item.call_id, "type": "function", "function": call})
        else:
            if thought and item.role != "assistant":
                found.append({"role": "assistant", "content": "", "reasoning": thought})
                thought = ""
            found.append({"role": item.role, "content": join_parts(item.content)})
        if thought and found[-1]["role"] == "assistant":
            found[-1]["reasoning"], thought = thought, ""
    if thought:
        found.append({"role": "assistant", "content": "", "reasoning": thought})
    return found
