"""Ollama's /api/chat and /api/generate, streamed as lines of JSON by default.

Invariant: `options` are supported or refused by name; durations are nanoseconds of the request
itself.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from flyweight.errors import field_names
from flyweight.params.options import OLLAMA
from flyweight.requests.collector import TextPiece
from flyweight.requests.prompts import PreparedPrompt
from flyweight.server.admission.request_group import RequestGroup
from flyweight.server.api_server import ApiServer
from flyweight.server.apis.answer import answer, get_collectors
from flyweight.server.apis.logprobs import Entry, TokenSpelling, encode_chat_scores
from flyweight.server.apis.ollama.schema import (
    OllamaBody,
    OllamaChatBody,
    OllamaGenerateBody,
    count_seconds,
    resolve_name,
)
from flyweight.server.apis.openai.chat import name_logprobs, prepare_chat
from flyweight.server.apis.openai.chat_schema import make_thinking_variables
from flyweight.server.apis.openai.content_blocks import (
    BlockEvent,
    ContentBlocks,
    make_chat_body,
    parse_answer,
    parse_arguments,
)
from flyweight.server.apis.sampling_fields import drop_mirostat_cuts, make_sampling_params
from flyweight.server.apis.tools import Tool
from flyweight.server.apis.usage import report_timings
from flyweight.server.served_model import ServedModel
from flyweight.server.transport.errors import HttpError
from flyweight.server.transport.replies import encode, reply
from flyweight.text.tools.deltas import DeltaKind, ParsedAnswer, ParsedCall
from flyweight.text.tools.parser import AnswerFormat
from flyweight.types import OPTIONS

DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "repeat_last_n": 64}
NAMES = {
    "reasoning_effort": "think",
    **{
        name: f"options.{one.name_in(name, OLLAMA)}"
        for name, one in OPTIONS.items()
        if OLLAMA in (*one.apis, *one.names)
    },
}


async def chat(server: ApiServer, request: Request, body: OllamaChatBody) -> Response:
    if not body.messages:
        return await load_or_unload(
            server, request, body, {"message": {"role": "assistant", "content": ""}}
        )
    model = await open_model(server, request, body.model, body.keep_alive)
    messages = [one.to_chat() for one in body.messages]
    prepared, reading = await prepare_conversation(model, request, body, messages, body.tools)
    write = partial(OllamaWriter, body, make_message, reading)
    return await answer(server, model, request, prepared, write, stream=body.stream)


async def generate(server: ApiServer, request: Request, body: OllamaGenerateBody) -> Response:
    if not body.prompt:
        return await load_or_unload(server, request, body, {"response": ""})
    model = await open_model(server, request, body.model, body.keep_alive)
    if body.raw or model.tokenizer.chat_template is None:
        body.check_raw()
        given = body.to_options()
        defaults = drop_mirostat_cuts(given.get("mirostat"), {**DEFAULTS, **model.defaults})
        given = {"max_tokens": None, **defaults, **given, "logprobs": body.most}
        prompts, reading = [body.system + body.prompt], AnswerFormat()
        with field_names(NAMES | name_logprobs(body.top_logprobs)):
            params = make_sampling_params({**given, "structured_outputs": body.form})
            context = model.make_context(**body.context_fields(model))
            prepared = await model.prepare(prompts, params, context, "format")
    else:
        system = [{"role": "system", "content": body.system}] if body.system else []
        messages = [*system, {"role": "user", "content": body.prompt}]
        prepared, reading = await prepare_conversation(model, request, body, messages)
    write = partial(OllamaWriter, body, make_response, reading)
    return await answer(server, model, request, prepared, write, stream=body.stream)


async def prepare_conversation(
    model: ServedModel,
    request: Request,
    body: OllamaBody,
    messages: list[dict[str, Any]],
    tools: list[Tool] | None = None,
) -> tuple[list[PreparedPrompt], AnswerFormat]:
    """A conversation as a checked prompt, and the format of its answer."""
    given = body.to_options()
    if body.think is not None:
        wanted = None if isinstance(body.think, str) else body.think
        given["chat_template_kwargs"] = make_thinking_variables(model, request, "think", wanted)
    if isinstance(body.think, str):
        given["reasoning_effort"] = body.think
    if body.most is not None:
        given.update(logprobs=True, top_logprobs=body.most)
    if tools:
        given["tools"] = [declare_tool(tool) for tool in tools]
    with field_names(NAMES | name_logprobs(body.top_logprobs)):
        chat_body = make_chat_body({"messages": messages, **body.context_fields(model), **given})
        defaults = {**DEFAULTS, **model.defaults, "structured_outputs": body.form}
        return await prepare_chat(model, request, chat_body, defaults, "format", NAMES)


def declare_tool(tool: Tool) -> dict[str, Any]:
    """A tool as a chat body declares it.  Go clients send empty fields for absent parameters."""
    found = tool.model_dump(exclude_unset=True)
    parameters = found["function"].get("parameters")
    if parameters is not None:
        kept = {name: value for name, value in parameters.items() if value not in (None, "")}
        found["function"]["parameters"] = kept
    return found


async def open_model(
    server: ApiServer,
    request: Request,
    name: str,
    keep: str | float | None,
    *,
    generates: bool = True,
) -> ServedModel:
    """The model of that name, or what takes its place where it `generates`; it may be said how long
    it is kept loaded, one of several.
    """
    known = resolve_name(server.serves, name)
    opening = server.open_to_generate if generates else server.open
    model = await opening(request, known)
    if keep is not None and len(server.directory.entries) > 1:
        server.directory.keep(server.directory.find(known), count_seconds(keep))
    return model


async def load_or_unload(
    server: ApiServer, request: Request, body: OllamaBody, parsed: dict[str, Any]
) -> Response:
    """The reply to a request without a prompt: it wants the model loaded, or with a keep_alive of
    0 unloaded.
    """
    head = {"model": body.model, "created_at": format_now(), **parsed, "done": True}
    several = len(server.directory.entries) > 1
    if several and body.keep_alive is not None and count_seconds(body.keep_alive) == 0:
        entry = server.directory.find(resolve_name(server.serves, body.model))
        await server.directory.unload(entry)
        return reply({**head, "done_reason": "unload"})
    await open_model(server, request, body.model, body.keep_alive, generates=False)
    return reply({**head, "done_reason": "load"})


def make_message(parsed: ParsedAnswer) -> dict[str, Any]:
    """What is new, in the format of /api/chat."""
    found: dict[str, Any] = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning:
        found["thinking"] = parsed.reasoning
    calls = [(call.name, parse_arguments(call)) for call in parsed.calls]
    whole = [
        {"function": {"name": name, "arguments": arguments}}
        for name, arguments in calls
        if arguments is not None
    ]
    if whole:
        found["tool_calls"] = whole
    return {"message": found}


def make_response(parsed: ParsedAnswer) -> dict[str, Any]:
    """What is new, in the format of /api/generate."""
    return {
        "response": parsed.content,
        **({"thinking": parsed.reasoning} if parsed.reasoning else {}),
    }


Shape = Callable[[ParsedAnswer], dict[str, Any]]


class OllamaWriter:
    """Writes one answer; `shape` is the format of the route."""

    media = "application/x-ndjson"
    ping = b""  # lines have no comments
    id = ""

    def __init__(
        self, body: OllamaBody, shape: Shape, reading: AnswerFormat, group: RequestGroup
    ) -> None:
        self.model = group.model
        (self.collector,) = get_collectors(group)
        self.model_name, self.shape = body.model, shape
        self.most, self.spelling = body.most or 0, TokenSpelling(group.model.tokenizer)
        self.reading = reading
        self.blocks = ContentBlocks(self.reading)
        self.finish = "stop"
        self.name = ""  # of the tool that is being called

    def write_reply(self) -> dict[str, Any]:
        (choice,) = self.collector.output().outputs
        self.finish = choice.finish_reason or self.finish
        parsed = parse_answer(self.reading, choice)
        return self._make_line(parsed, **self._make_scores(choice.logprobs), **self._report_usage())

    def begin(self) -> bytes:
        return b""

    def write_piece(self, prompt: int, piece: TextPiece) -> bytes:
        self.finish = piece.finish or self.finish
        parsed = [self._parse_step(step) for step in self.blocks.read_piece(piece)]
        lines = [self._make_line(one, done=False) for one in parsed if one is not None]
        if scores := self._make_scores(piece.logprobs):  # once, though a piece be of several lines
            lines = lines or [self._make_line(ParsedAnswer(), done=False)]
            lines[-1].update(scores)
        return b"".join([encode(line) + b"\n" for line in lines])

    def end(self) -> bytes:
        return encode(self._make_line(ParsedAnswer(), **self._report_usage())) + b"\n"

    def write_error(self, error: HttpError) -> bytes:
        return encode(make_error(error)) + b"\n"

    def _parse_step(self, step: BlockEvent) -> ParsedAnswer | None:
        """The line of a step, if it has one: a call is sent whole."""
        if step.kind is DeltaKind.NAME:
            if step.what == "open":
                self.name = step.text
            ended = step.what == "close" and step.complete
            return ParsedAnswer(calls=[ParsedCall(self.name, step.text)]) if ended else None
        if step.what != "delta":
            return None
        content = step.kind is DeltaKind.CONTENT
        return ParsedAnswer(content=step.text) if content else ParsedAnswer(reasoning=step.text)

    def _make_scores(self, found: Sequence[Entry] | None) -> dict[str, Any]:
        """Log-probabilities, in the format of OpenAI's chat."""
        return (
            {"logprobs": encode_chat_scores(found, self.most, self.spelling)["content"]}
            if found
            else {}
        )

    def _make_line(self, parsed: ParsedAnswer, **more: Any) -> dict[str, Any]:
        return {"model": self.model_name, "created_at": format_now(), **self.shape(parsed), **more}

    def _report_usage(self) -> dict[str, Any]:
        m, loading = self.collector.metrics(), self.collector.notes.get("load_time_ms", 0.0) / 1000
        return {
            "done": True,
            "done_reason": self.finish,
            "total_duration": to_ns(loading + m.total),
            "load_duration": to_ns(loading),
            "prompt_eval_count": len(self.collector.request.tokens),
            "prompt_eval_duration": to_ns(m.ttft - m.queued),
            "eval_count": self.collector.produced,
            "eval_duration": to_ns(m.total - m.ttft),
            "cached_tokens": self.collector.cached,
            **report_timings(self.model, self.collector),
        }


def make_error(error: HttpError) -> dict[str, Any]:
    """Ollama's error format."""
    return {"error": error.message}


def format_now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def to_ns(seconds: float) -> int:
    return round(1e9 * seconds)
