"""Ollama's /api/chat and /api/generate, streamed as lines of JSON unless told otherwise.

Invariant: `options` are honoured or refused by name; durations are nanoseconds of the request
itself.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from flyweight.errors import field_names
from flyweight.requests.collector import TextPiece
from flyweight.requests.prompts import PreparedPrompt
from flyweight.server.admission.request_group import RequestGroup
from flyweight.server.api_server import ApiServer
from flyweight.server.apis.answer import answer, texts
from flyweight.server.apis.body import read
from flyweight.server.apis.logprobs import Entry, TokenSpelling, chat_scores
from flyweight.server.apis.ollama.schema import (
    OllamaBody,
    OllamaChatBody,
    OllamaGenerateBody,
    tagged,
)
from flyweight.server.apis.openai.chat import asked_of, counted
from flyweight.server.apis.openai.content_blocks import (
    BlockEvent,
    ContentBlocks,
    arguments_of,
    chat_body,
    told,
)
from flyweight.server.apis.openai.template_fields import thinking
from flyweight.server.apis.sampling_fields import beside, params_of
from flyweight.server.apis.tools import Tool
from flyweight.server.apis.usage import timed
from flyweight.server.served_model import ServedModel
from flyweight.server.transport.errors import HttpError
from flyweight.server.transport.replies import encode, reply
from flyweight.text.tools.deltas import DeltaKind, ParsedAnswer, ParsedCall
from flyweight.text.tools.parser import AnswerFormat

DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "repeat_last_n": 64}
SAME = (
    "stop", "seed", "temperature", "top_p", "top_k", "min_p", "mirostat", "typical_p",
    "repeat_last_n",
)  # fmt: skip
NAMES = {
    "max_tokens": "options.num_predict",
    "reasoning_effort": "think",
    "repetition_penalty": "options.repeat_penalty",
    **{name: f"options.{name}" for name in SAME},
}


async def chat(server: ApiServer, request: Request) -> Response:
    body = read(server.settings, request, await request.body(), OllamaChatBody)
    model = server.find(tagged(server.serves, body.model))
    if not body.messages:
        return loaded(body, {"message": {"role": "assistant", "content": ""}})
    talk = [one.chat() for one in body.messages]
    asked, reading = await conversed(model, request, body, talk, body.tools)
    return await answer(
        server,
        model,
        request,
        asked,
        lambda bundle: OllamaWriter(body, bundle, message, reading),
        stream=body.stream,
    )


async def generate(server: ApiServer, request: Request) -> Response:
    body = read(server.settings, request, await request.body(), OllamaGenerateBody)
    model = server.find(tagged(server.serves, body.model))
    if not body.prompt:
        return loaded(body, {"response": ""})
    if body.raw or model.tokenizer.chat_template is None:
        body.check_raw()
        given = body.wanted(model)
        defaults = beside(given.get("mirostat"), {**DEFAULTS, **model.defaults})
        given = {"max_tokens": None, **defaults, **given, "logprobs": body.most}
        prompts, reading = [body.system + body.prompt], AnswerFormat()
        with field_names(NAMES | counted(body.top_logprobs)):
            params = params_of({**given, "structured_outputs": body.form})
            fields = body.context_fields(model)
            context = model.context(
                fields["model"],
                fields["cache_salt"],
                fields["priority"],
                fields["return_cache_explanation"],
            )
            asked = await model.prepare(prompts, params, context, "format")
    else:
        system = [{"role": "system", "content": body.system}] if body.system else []
        talk = [*system, {"role": "user", "content": body.prompt}]
        asked, reading = await conversed(model, request, body, talk)
    return await answer(
        server,
        model,
        request,
        asked,
        lambda bundle: OllamaWriter(body, bundle, response, reading),
        stream=body.stream,
    )


async def conversed(
    model: ServedModel,
    request: Request,
    body: OllamaBody,
    talk: list[dict[str, Any]],
    tools: list[Tool] | None = None,
) -> tuple[list[PreparedPrompt], AnswerFormat]:
    """A conversation as a checked prompt, and how its answer is to be read."""
    given = body.wanted(model)
    if body.think is not None:
        wanted = None if isinstance(body.think, str) else body.think
        given["chat_template_kwargs"] = thinking(model, request, "think", wanted)
    if isinstance(body.think, str):
        given["reasoning_effort"] = body.think
    if body.most is not None:
        given.update(logprobs=True, top_logprobs=body.most)
    if tools:
        given["tools"] = [declared(tool) for tool in tools]
    with field_names(NAMES | counted(body.top_logprobs)):
        same = chat_body({"messages": talk, **body.context_fields(model), **given})
        defaults = {**DEFAULTS, **model.defaults, "structured_outputs": body.form}
        return await asked_of(model, request, same, defaults, "format", NAMES)


def declared(tool: Tool) -> dict[str, Any]:
    """A tool as a chat declares it; one without parameters says in Go that they are of no type."""
    found = tool.model_dump(exclude_unset=True)
    told = found["function"].get("parameters")
    if told is not None:
        kept = {name: value for name, value in told.items() if value not in (None, "")}
        found["function"]["parameters"] = kept
    return found


def loaded(body: OllamaBody, said: dict[str, Any]) -> Response:
    """The answer to a request that only wants the model to be there."""
    head = {"model": body.model, "created_at": now(), **said}
    return reply({**head, "done": True, "done_reason": "load"})


def message(said: ParsedAnswer) -> dict[str, Any]:
    """What is new, as /api/chat has it."""
    found: dict[str, Any] = {"role": "assistant", "content": said.content}
    if said.reasoning:
        found["thinking"] = said.reasoning
    calls = [(call.name, arguments_of(call)) for call in said.calls]
    whole = [
        {"function": {"name": name, "arguments": arguments}}
        for name, arguments in calls
        if arguments is not None
    ]
    if whole:
        found["tool_calls"] = whole
    return {"message": found}


def response(said: ParsedAnswer) -> dict[str, Any]:
    """What is new, as /api/generate has it."""
    return {"response": said.content, **({"thinking": said.reasoning} if said.reasoning else {})}


Shape = Callable[[ParsedAnswer], dict[str, Any]]


class OllamaWriter:
    """Writes one answer; `shape` is how a route puts what is new."""

    media = "application/x-ndjson"
    ping = b""  # lines have no comments
    id = ""

    def __init__(
        self, body: OllamaBody, bundle: RequestGroup, shape: Shape, reading: AnswerFormat
    ) -> None:
        self.model = bundle.model
        (self.collector,) = texts(bundle)
        self.model_name, self.shape = body.model, shape
        self.most, self.spelling = body.most or 0, TokenSpelling(bundle.model.tokenizer)
        self.reading = reading
        self.telling = ContentBlocks(self.reading)
        self.finish = "stop"
        self.name = ""  # of the tool that is being called

    def whole(self) -> dict[str, Any]:
        (choice,) = self.collector.output().outputs
        self.finish = choice.finish_reason or self.finish
        said = told(self.reading, choice)
        return self._line(said, **self._scored(choice.logprobs), **self._spent())

    def begin(self) -> bytes:
        return b""

    def piece(self, prompt: int, piece: TextPiece) -> bytes:
        self.finish = piece.finish or self.finish
        said = [self._said(step) for step in self.telling.steps(piece)]
        lines = [self._line(one, done=False) for one in said if one is not None]
        if scores := self._scored(piece.logprobs):  # once, though a piece be of several lines
            lines = lines or [self._line(ParsedAnswer(), done=False)]
            lines[-1].update(scores)
        return b"".join([encode(line) + b"\n" for line in lines])

    def end(self) -> bytes:
        return encode(self._line(ParsedAnswer(), **self._spent())) + b"\n"

    def failed(self, error: HttpError) -> bytes:
        return encode(error_of(error)) + b"\n"

    def _said(self, step: BlockEvent) -> ParsedAnswer | None:
        """What a line tells of a step: calls are told whole, which is how the dialect has them."""
        if step.kind is DeltaKind.NAME:
            if step.what == "open":
                self.name = step.text
            ended = step.what == "close" and step.whole
            return ParsedAnswer(calls=[ParsedCall(self.name, step.text)]) if ended else None
        if step.what != "delta":
            return None
        content = step.kind is DeltaKind.CONTENT
        return ParsedAnswer(content=step.text) if content else ParsedAnswer(reasoning=step.text)

    def _scored(self, found: Sequence[Entry] | None) -> dict[str, Any]:
        """Log-probabilities, as OpenAI's chat tells them."""
        return (
            {"logprobs": chat_scores(found, self.most, self.spelling)["content"]} if found else {}
        )

    def _line(self, said: ParsedAnswer, **more: Any) -> dict[str, Any]:
        return {"model": self.model_name, "created_at": now(), **self.shape(said), **more}

    def _spent(self) -> dict[str, Any]:
        m = self.collector.metrics()
        return {
            "done": True,
            "done_reason": self.finish,
            "total_duration": ns(m.total),
            "load_duration": 0,
            "prompt_eval_count": len(self.collector.request.tokens),
            "prompt_eval_duration": ns(m.ttft - m.queued),
            "eval_count": self.collector.produced,
            "eval_duration": ns(m.total - m.ttft),
            "cached_tokens": self.collector.cached,
            **timed(self.model, self.collector),
        }


def error_of(error: HttpError) -> dict[str, Any]:
    """Ollama's shape of an error."""
    return {"error": error.message}


def now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def ns(seconds: float) -> int:
    return round(1e9 * seconds)
