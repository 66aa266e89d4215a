"""Anthropic's /v1/messages and its token count: from its bodies to a chat body.

Invariant: the model's template gets every message, its role and the order; the answer continues a
last message of the assistant.
"""

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from flyweight.errors import RequestError, field_names
from flyweight.server.api_server import ApiServer, get_tenant
from flyweight.server.apis.answer import answer
from flyweight.server.apis.anthropic.messages_stream import MessageWriter
from flyweight.server.apis.body import FIRST
from flyweight.server.apis.fields import Fields
from flyweight.server.apis.openai.chat import prepare_chat, render_prompt
from flyweight.server.apis.openai.chat_schema import (
    ChatBody,
    check_template_fields,
    join_parts,
    make_thinking_variables,
)
from flyweight.server.apis.openai.content_blocks import make_chat_body
from flyweight.server.apis.sampling_fields import (
    KEYS,
    Explain,
    Idle,
    Metadata,
    Priority,
    ReturnCost,
    Salt,
    StopText,
    make_field,
)
from flyweight.server.apis.slo import Slo
from flyweight.server.apis.tools import TOOLS
from flyweight.server.served_model import ServedModel
from flyweight.server.transport.replies import reply

SCHEMA = "output_config.format.schema"  # where a body has one
NAMES = {
    "stop": "stop_sequences",
    "prompt": "messages",
    "tools.*.function.parameters": "tools.*.input_schema",
    "tools.*.function": "tools.*",
    "reasoning_effort": "output_config.effort",
    "thinking_token_budget": "thinking.budget_tokens",
}
TAKEN = (  # as a chat has them
    "temperature", "top_p", "top_k", "cache_salt", "priority", "return_cache_explanation",
    "return_cost",
)  # fmt: skip
CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class MessagePart(Fields):
    """What all parts of a message may have in addition to their own fields."""

    cache_control: dict[str, Any] | None = Field(None, description=KEYS)


class MessageText(MessagePart):
    type: Literal["text"]
    text: str
    citations: list[Any] | None = Field(None, max_length=0)


class Thinking(MessagePart):
    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class ToolUse(MessagePart):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ToolResult(MessagePart):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Annotated[list[MessageText], FIRST] | None = None
    is_error: bool | None = Field(None, description="Text for the model, before the content.")

    @property
    def text(self) -> str:
        """The text for the model: templates have no other mark of failure."""
        found = join_parts(self.content)
        if not self.is_error or found.lower().startswith("error"):
            return found
        return f"Error: {found}" if found else "Error"


Block = Annotated[MessageText | Thinking | ToolUse | ToolResult, Field(discriminator="type")]


class MessageTurn(Fields):
    """One message."""

    role: Literal["user", "assistant"]
    content: str | Annotated[list[Block], FIRST]

    def to_chat(self) -> list[dict[str, Any]]:
        """The messages of a chat: each tool result is a message of its own, before the rest."""
        if isinstance(self.content, str):
            return [{"role": self.role, "content": self.content}]
        blocks = self.content
        found: list[dict[str, Any]] = [
            {"role": "tool", "tool_call_id": one.tool_use_id, "content": one.text}
            for one in blocks
            if isinstance(one, ToolResult)
        ]
        texts = [one for one in blocks if isinstance(one, MessageText)]
        thoughts = [one.thinking for one in blocks if isinstance(one, Thinking)]
        calls = [
            {"id": one.id, "type": "function",
             "function": {"name": one.name, "arguments": one.input}}
            for one in blocks if isinstance(one, ToolUse)
        ]  # fmt: skip
        message: dict[str, Any] = {"role": self.role, "content": join_parts(texts)}
        if thoughts:
            message["reasoning"] = "".join(thoughts)
        if calls:
            message["tool_calls"] = calls
        return [*found, message] if texts or thoughts or calls or not found else found


class MessageTool(MessagePart):
    """A tool of the client."""

    type: Literal["custom"] | None = None
    name: str = Field(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = Field(None, description="Calls are constrained to the schema.")


class MessageChoice(Fields):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = Field(None, pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")
    disable_parallel_tool_use: bool | None = None


class ThinkingChoice(Fields):
    type: Literal["adaptive", "disabled", "enabled"]
    budget_tokens: int | None = Field(
        None, ge=1, lt=2**31, description="Tokens of reasoning, which then is closed."
    )


class OutputFormat(Fields):
    """JSON that satisfies a schema."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Fields):
    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class CountBody(Fields):
    """A conversation."""

    model: str
    messages: Annotated[list[MessageTurn], Field(min_length=1, fail_fast=True)]
    system: str | Annotated[list[MessageText], FIRST] | None = None
    tools: list[MessageTool] | None = TOOLS
    tool_choice: MessageChoice | None = None
    thinking: ThinkingChoice | None = None
    output_config: OutputConfig | None = None
    cache_control: dict[str, Any] | None = Field(None, description=KEYS)

    def to_chat(self) -> dict[str, Any]:
        """The fields of a chat body.  Raises `RequestError`."""
        messages = [one for turn in self.messages for one in turn.to_chat()]
        if self.system:
            messages.insert(0, {"role": "system", "content": join_parts(self.system)})
        found: dict[str, Any] = {"model": self.model, "messages": messages}
        if self.messages[-1].role == "assistant":
            found |= {"continue_final_message": True, "add_generation_prompt": False}
        if self.tools:
            found["tools"] = [declare_tool(tool) for tool in self.tools]
        if self.tool_choice is not None:
            found |= convert_choice(self.tool_choice)
        config = self.output_config
        if config is not None and config.format is not None:
            schema = {"name": "answer", "schema": config.format.schema_}
            found["response_format"] = {"type": "json_schema", "json_schema": schema}
        if config is not None and config.effort is not None:
            found["reasoning_effort"] = config.effort
        return found


class MessagesBody(CountBody):
    """A conversation to be answered."""

    max_tokens: int = Field(ge=1, lt=2**31)
    stream: bool | None = None
    stop_sequences: list[StopText] | None = Field(None, fail_fast=True)
    temperature: float | None = make_field("temperature")
    top_p: float | None = make_field("top_p")
    top_k: int | None = Field(None, ge=0, lt=2**31)
    cache_salt: Salt = None
    priority: Priority = None
    slo: Slo = None
    return_cache_explanation: Explain = None
    return_cost: ReturnCost = None
    metadata: Metadata = None
    service_tier: Idle = None

    def to_chat(self) -> dict[str, Any]:
        found = {**super().to_chat(), "max_tokens": self.max_tokens}
        for name in TAKEN:
            if getattr(self, name) is not None:
                found[name] = getattr(self, name)
        if self.thinking is not None and self.thinking.type == "enabled":
            found["thinking_token_budget"] = self.thinking.budget_tokens
        if self.stop_sequences:
            found["stop"] = self.stop_sequences
        return found


async def create_message(server: ApiServer, request: Request, body: MessagesBody) -> Response:
    model = await server.open_to_generate(request, body.model)
    check_thinking(model, body)
    with field_names(NAMES):
        chat_body = convert_body(model, request, body)
        prepared, reading = await prepare_chat(
            model, request, chat_body, model.defaults, SCHEMA, NAMES
        )
    write = partial(MessageWriter, body.model, reading)
    return await answer(server, model, request, prepared, write, stream=bool(body.stream))


async def count_tokens(server: ApiServer, request: Request, body: CountBody) -> Response:
    model = await server.open(request, body.model)
    with field_names(NAMES):
        chat_body = check_template_fields(model, request, convert_body(model, request, body), NAMES)
        tokenizer = model.cache_tokens(get_tenant(request), chat_body.cache_salt)
        prompt = await model.run_in_thread(render_prompt, model, chat_body, tokenizer)
    return reply({"input_tokens": len(prompt["prompt_token_ids"])})


def convert_body(model: ServedModel, request: Request, body: CountBody) -> ChatBody:
    """The body as OpenAI's chat body.  Raises `RequestError`."""
    given = body.to_chat()
    if body.thinking is not None:
        wanted = None if body.thinking.type == "adaptive" else body.thinking.type == "enabled"
        given["chat_template_kwargs"] = make_thinking_variables(
            model, request, "thinking.type", wanted
        )
    return make_chat_body(given)


def check_thinking(model: ServedModel, body: MessagesBody) -> None:
    """Raises `RequestError` where reasoning is switched on that there cannot be."""
    wanted = body.thinking
    if wanted is None or wanted.type != "enabled":
        return
    if model.chat_format.reasoning is None:
        raise RequestError(
            "is not supported: this model's answers have no reasoning",
            "thinking.type",
            value="enabled",
            allowed="'adaptive', 'disabled'",
        )
    if wanted.budget_tokens is None:
        raise RequestError("is missing", "thinking.budget_tokens", code="missing_field")
    if wanted.budget_tokens >= body.max_tokens:
        raise RequestError(
            "is not valid",
            "thinking.budget_tokens",
            value=wanted.budget_tokens,
            allowed=f"1 to {body.max_tokens - 1}, less than max_tokens",
        )


def declare_tool(tool: MessageTool) -> dict[str, Any]:
    """A tool as a chat body declares it."""
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    for name in ("description", "strict"):
        if getattr(tool, name) is not None:
            function[name] = getattr(tool, name)
    return {"type": "function", "function": function}


def convert_choice(choice: MessageChoice) -> dict[str, Any]:
    """The tool choice as a chat body has it.  Raises `RequestError`."""
    found: dict[str, Any] = {}
    if choice.disable_parallel_tool_use is not None:
        found["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    if choice.type != "tool":
        return {**found, "tool_choice": CHOICES[choice.type]}
    if choice.name is None:
        raise RequestError("is missing", "tool_choice.name", code="missing_field")
    named = {"type": "function", "function": {"name": choice.name}}
    return {**found, "tool_choice": named}
