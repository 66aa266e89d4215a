"""Answers rows with an `LLM`: requests are prepared and replies are written as the server does.

Invariant: each row gets one answer, a line of the output; what is wrong with a row is its answer.
As many rows are under way as the engine has a choice of, whatever their number.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import uuid4

import msgspec
from starlette.requests import Request

from flyweight.batch.model import make_request_model
from flyweight.batch.requests import CHAT, EMBEDDINGS, read_custom_id, read_fields, read_request
from flyweight.batch.rows import Row, RowAnswer
from flyweight.driver.progress import hold_interrupts
from flyweight.errors import EngineError, FlyweightError, RequestError, field_names, nearest
from flyweight.llm import LLM
from flyweight.requests.collector import Collector, VectorCollector
from flyweight.requests.prompts import PreparedPrompt
from flyweight.server.apis.body import read_body
from flyweight.server.apis.openai.chat import name_logprobs, prepare_chat
from flyweight.server.apis.openai.chat_schema import ChatBody
from flyweight.server.apis.openai.chat_stream import ChatWriter
from flyweight.server.apis.openai.completions import (
    CompletionBody,
    CompletionWriter,
    prepare_completion,
)
from flyweight.server.apis.openai.embeddings import EmbeddingBody, check_dimensions, make_reply
from flyweight.server.request_model import RequestModel
from flyweight.server.settings import ServerSettings
from flyweight.server.transport.errors import HttpError, print_failure, to_http_error
from flyweight.types import EventCollector
from flyweight.validation.untrusted import shown

AnyCollector = Collector | VectorCollector


@dataclass(slots=True)
class _LiveRow:
    """A row under way; `write` makes the reply once all `collectors` are finished."""

    row: Row
    custom_id: str
    model: RequestModel
    collectors: list[AnyCollector] = field(default_factory=list)
    write: Callable[[], dict[str, Any]] = dict
    left: int = 0  # collectors that are not finished


class RowAnswerer:
    """Answers rows with one model; `server` has the limits and defaults of requests."""

    def __init__(self, llm: LLM, server: ServerSettings) -> None:
        self._llm, self._loop = llm, llm.loop
        self._model = make_request_model(llm, server)
        self._tasks = asyncio.new_event_loop()
        self._rows: dict[str, _LiveRow] = {}  # by request
        self._fed: dict[EventCollector, None] = {}

    def answer(self, rows: Iterable[Row]) -> Iterator[RowAnswer]:
        """The answers, in the order in which they are finished."""
        engine = self._llm.loaded.engine
        try:
            for row in rows:
                with hold_interrupts(engine):
                    refused = self._begin(row)
                if refused is not None:
                    yield refused
                while not self._loop.has_capacity():
                    yield from self._step()
            while self._rows:
                yield from self._step()
        finally:
            self._abort([one for live in [*self._rows.values()] for one in live.collectors])

    def close(self) -> None:
        """Ends what checks schemas."""
        self._tasks.run_until_complete(self._model.validator.close())
        self._tasks.close()

    def _begin(self, row: Row) -> RowAnswer | None:
        """Starts a row; its answer if it is refused."""
        live = _LiveRow(row, f"row-{row.number}", self._model)
        try:
            fields = read_fields(row.data)
            live.custom_id = read_custom_id(fields, row.number)
            request = read_request(fields)
            prepared = self._tasks.run_until_complete(
                self._prepare(live, request.url, request.body)
            )
            for one in prepared:
                self._add(live, one)
        except Exception as error:
            self._abort(live.collectors)
            return make_failure(live.row, live.custom_id, error)
        live.left = len(live.collectors)
        return None

    def _add(self, live: _LiveRow, prepared: PreparedPrompt) -> None:
        """Raises `RequestError` for a request that could never be finished."""
        make = self._model.preparer
        create = make.make_collector if prepared.pooling is None else make.make_vector
        collector = create(prepared, make.make_id())
        self._loop.driver.add(collector.request)
        live.collectors.append(collector)
        self._rows[collector.request.id] = live
        self._loop.live[collector.request.id] = collector, self._fed

    async def _prepare(self, live: _LiveRow, url: str, body: bytes) -> list[PreparedPrompt]:
        """The checked prompts of a row, whose reply `live` can write from now on."""
        http = Request({"type": "http", "method": "POST", "path": url, "headers": []})
        read = partial(read_body, self._model.settings, http, body)
        if url == CHAT:
            return await self._prepare_chat(live, http, read(ChatBody))
        if url == EMBEDDINGS:
            return await self._prepare_vectors(live, read(EmbeddingBody))
        completion = read(CompletionBody)
        self._check_named(completion.model)
        refuse_stream(completion.stream)
        prepared = await prepare_completion(self._model, http, completion)
        live.write = lambda: CompletionWriter(completion, live).write_reply()
        return prepared

    async def _prepare_chat(
        self, live: _LiveRow, http: Request, body: ChatBody
    ) -> list[PreparedPrompt]:
        self._check_named(body.model)
        refuse_stream(body.stream)
        with field_names({"prompt": "messages"} | name_logprobs(body.top_logprobs)):
            prepared, reading = await prepare_chat(self._model, http, body, self._model.defaults)
        live.write = lambda: ChatWriter(body, reading, live).write_reply()
        return prepared

    async def _prepare_vectors(self, live: _LiveRow, body: EmbeddingBody) -> list[PreparedPrompt]:
        self._check_named(body.model)
        model = self._model
        context = model.make_context(
            body.model, body.cache_salt, body.priority, body.return_cache_explanation,
            body.return_cost,
        )  # fmt: skip
        check_dimensions(body.dimensions, self._llm.loaded.spec.hidden)
        with field_names({"prompt": "input" if body.messages is None else "messages"}):
            prepared = await model.prepare(body.prompts(model), body.to_params(), context)

        def write() -> dict[str, Any]:
            given = [one for one in live.collectors if isinstance(one, VectorCollector)]
            id = f"embd-{body.request_id or uuid4().hex}"
            return make_reply(id, model, body, given)

        live.write = write
        return prepared

    def _check_named(self, name: str | None) -> None:
        """Raises `HttpError` where a row is for another model."""
        model = self._model
        if name is None or model.serves(name):
            return
        near = nearest(name[:200], model.all_names)
        words = f"model = {shown(name)} is not served{near}; served: {', '.join(model.all_names)}"
        raise HttpError(404, words, "model", code="model_not_found")

    def _step(self) -> Iterator[RowAnswer]:
        """One step of the engine; the answers that it finished."""
        with hold_interrupts(self._llm.loaded.engine):
            self._loop.step()
        fed = [one for one in self._fed if one.finished]
        self._fed.clear()
        for collector in fed:
            del self._loop.live[collector.request.id]
            live = self._rows.pop(collector.request.id)
            live.left -= 1
            if not live.left:
                yield finish_row(live)

    def _abort(self, collectors: Iterable[AnyCollector]) -> None:
        for collector in collectors:
            self._loop.live.pop(collector.request.id, None)
            self._rows.pop(collector.request.id, None)
            self._loop.driver.abort(collector.request.id)


def refuse_stream(stream: bool | None) -> None:
    if stream:
        raise RequestError("is not possible in a batch", "stream", value=True, allowed="false")


def finish_row(live: _LiveRow) -> RowAnswer:
    """The answer of a row whose requests have ended."""
    try:
        for collector in live.collectors:
            raise_failure(collector)
        reply = live.write()
    except Exception as error:
        return make_failure(live.row, live.custom_id, error)
    usage = reply["usage"]
    line = make_line(live.row, live.custom_id, 200, reply["id"], reply, None)
    return RowAnswer(
        live.row.number, line, False, usage["prompt_tokens"], usage.get("completion_tokens", 0)
    )


def raise_failure(collector: AnyCollector) -> None:
    """Raises the error that ended a request."""
    if isinstance(collector, VectorCollector):
        if collector.event is None or collector.event.vector is None:
            raise EngineError("the engine failed on this request")
        return
    for choice in collector.choices:
        if choice.error is not None:
            raise choice.error


def make_failure(row: Row, custom_id: str, error: Exception) -> RowAnswer:
    """The answer of a row that cannot be answered, in OpenAI's format of errors."""
    known = to_http_error(error)
    if not isinstance(error, FlyweightError | HttpError):
        print_failure(f"row {row.number}", error)
    body = known.body()
    short = {"code": known.code, "message": known.message}
    line = make_line(row, custom_id, known.status, f"req-{uuid4().hex}", body, short)
    return RowAnswer(row.number, line, True)


def make_line(
    row: Row, custom_id: str, status: int, request: str, body: Any, error: dict[str, str] | None
) -> bytes:
    """A line of OpenAI's output of a batch."""
    response = {"status_code": status, "request_id": request, "body": body}
    fields = {"id": row.id, "custom_id": custom_id, "response": response, "error": error}
    return msgspec.json.encode(fields) + b"\n"
