"""OpenAI's /v1/chat/completions.

Invariant: the chunks of a stream, joined, are the message of the whole answer.
"""

from typing import Annotated, Any, Literal
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from flyweight.asking import conversation
from flyweight.collect import Piece
from flyweight.results import CompletionOutput
from flyweight.server.answer import answer, texts
from flyweight.server.api.sampling import Sampling, params_of
from flyweight.server.api.scores import chat_scores
from flyweight.server.api.usage import spent, usage
from flyweight.server.errors import HttpError
from flyweight.server.front import Bundle, Front
from flyweight.server.sse import DONE, event
from flyweight.text.messages import switches

Switch = Annotated[str, Field(max_length=64)]
Plain = bool | int | float | Annotated[str, Field(max_length=4096)] | None
Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


class Message(BaseModel):
    """One message; fields of its own go to the model's template."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: Role
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class ChatBody(Sampling):
    """A conversation to be answered."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_tokens: int | None = Field(None, ge=1, lt=2**31)
    max_completion_tokens: int | None = Field(None, ge=1, lt=2**31)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[Switch, Plain] | None = Field(None, max_length=32)
    documents: list[dict[str, Any]] | None = None

    def wanted(self, defaults: dict[str, Any]) -> dict[str, Any]:
        """`SamplingParams`' keywords."""
        most = self.max_completion_tokens or self.max_tokens or defaults.get("max_tokens")
        found = {**self.options(defaults), "max_tokens": most}
        if self.logprobs or self.top_logprobs:
            found["logprobs"] = self.top_logprobs or 0
        return found


async def chat(front: Front, request: Request) -> Response:
    body = front.read(request, await request.body(), ChatBody)
    params = params_of(body.wanted(front.defaults))
    lane = front.lane(body.model, body.cache_salt, body.priority, body.return_cache_explanation)
    prompt = await front.aside(rendered, front, body)
    asked = await front.ask([prompt], params, lane)
    return await answer(
        front,
        request,
        asked,
        lambda bundle: ChatWriter(front, body, bundle),
        stream=bool(body.stream),
    )


def rendered(front: Front, body: ChatBody) -> dict[str, Any]:
    """The prompt the model's template makes of the messages.  Raises `RequestError`."""
    given = {
        "add_generation_prompt": body.add_generation_prompt,
        "continue_final_message": body.continue_final_message,
        "documents": body.documents,
    }
    options = {name: value for name, value in given.items() if value is not None}
    talk = [message.model_dump(exclude_unset=True) for message in body.messages]
    own = switches(options, body.chat_template_kwargs)
    return conversation(front.tokenizer, talk, longest=front.asking.facts.max_model_len, **own)


class ChatWriter:
    """Writes one conversation's answers."""

    media = "text/event-stream"

    def __init__(self, front: Front, body: ChatBody, bundle: Bundle) -> None:
        self.front, self.body = front, body
        (self.collector,) = texts(bundle)
        options = body.stream_options
        self.running = options is not None and options.continuous_usage_stats
        self.last = options is not None and (options.include_usage or self.running)
        self.last = self.last or bool(body.return_cache_explanation)
        self.begun: set[int] = set()
        self.head = {
            "id": f"chatcmpl-{uuid4().hex}",
            "object": "chat.completion.chunk",
            "created": front.now(),
            "model": body.model or front.names[0],
        }

    def whole(self) -> dict[str, Any]:
        choices = [self._whole(choice) for choice in self.collector.output().outputs]
        head = {**self.head, "object": "chat.completion"}
        return {**head, "choices": choices, **self._spent()}

    def begin(self) -> bytes:
        return b""

    def piece(self, prompt: int, piece: Piece) -> bytes:
        first = b""
        if piece.choice not in self.begun:
            self.begun.add(piece.choice)
            delta = {"role": "assistant", "content": ""}
            first = event({**self.head, "choices": [_choice(piece.choice, delta)]})
        chunk: dict[str, Any] = {**self.head, "choices": [_piece(self.body, piece)]}
        if self.running:
            chunk["usage"] = usage([self.collector])
        return first + event(chunk)

    def end(self) -> bytes:
        if not self.last:
            return DONE
        return event({**self.head, "choices": [], **self._spent()}) + DONE

    def failed(self, error: HttpError) -> bytes:
        return event(error.body()) + DONE

    def _spent(self) -> dict[str, Any]:
        return spent(self.front, [self.collector])

    def _whole(self, choice: CompletionOutput) -> dict[str, Any]:
        one: dict[str, Any] = {
            "index": choice.index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if choice.logprobs is not None:
            one["logprobs"] = chat_scores(choice.logprobs, self.body.top_logprobs or 0)
        if self.body.return_token_ids:
            one["token_ids"] = choice.token_ids
        return one


def _piece(body: ChatBody, piece: Piece) -> dict[str, Any]:
    delta = {"content": piece.text} if piece.text else {}
    one = _choice(piece.choice, delta, piece.finish)
    if piece.logprobs is not None:
        one["logprobs"] = chat_scores(piece.logprobs, body.top_logprobs or 0)
    if piece.finish is not None:
        one["stop_reason"] = piece.reason
    if body.return_token_ids:
        one["token_ids"] = piece.tokens
    return one


def _choice(index: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
