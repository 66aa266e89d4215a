"""From checked prompts to a reply, whole or streamed: the one loop that all APIs share.

Invariant: an error after the first byte is written as the API writes errors; whatever happens to
the client, its requests are ended.  Knows no API: a `Writer` does.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from flyweight.requests.collector import Collector, TextPiece, VectorCollector
from flyweight.requests.prompts import PreparedPrompt
from flyweight.server.admission.request_group import RequestGroup
from flyweight.server.api_server import ApiServer
from flyweight.server.apis.output_formats import form_keywords
from flyweight.server.request_model import RequestModel
from flyweight.server.served_model import ServedModel
from flyweight.server.transport.errors import HttpError, print_failure, to_http_error
from flyweight.server.transport.replies import (
    EventStream,
    ignore_keywords,
    reply,
    run_while_connected,
)
from flyweight.server.transport.request_log import get_record

LARGE = 2048  # tokens and log-probabilities; more are written away from the event loop
TURN = 64 << 10  # bytes of a stream that are written before others have their turn


class Writer(Protocol):
    """How an API writes the result of a request group: `write_reply` once all is there, or a stream
    of `begin`, `write_piece` for each piece of each prompt, and `end` or `write_error`.  All but
    `write_reply` may return nothing.  `id` is empty if the API's replies have none; `ping` is what
    an idle stream sends, empty if the API has nothing without a meaning.
    """

    @property
    def media(self) -> str: ...
    @property
    def ping(self) -> bytes: ...
    @property
    def id(self) -> str: ...
    def write_reply(self) -> Any: ...
    def begin(self) -> bytes: ...
    def write_piece(self, prompt: int, piece: TextPiece) -> bytes: ...
    def end(self) -> bytes: ...
    def write_error(self, error: HttpError) -> bytes: ...


class AnswerGroup(Protocol):
    """What a writer writes: a model, and a collector for each prompt of a request."""

    @property
    def model(self) -> RequestModel: ...
    @property
    def collectors(self) -> Sequence[Collector | VectorCollector]: ...


async def answer(
    server: ApiServer,
    model: ServedModel,
    request: Request,
    prepared: Sequence[PreparedPrompt],
    make: Callable[[RequestGroup], Writer],
    *,
    stream: bool,
) -> Response:
    """Runs checked prompts, and writes the result."""
    for form in {one.params.structured_outputs for one in prepared} - {None}:
        ignore_keywords(request, form_keywords(form))
    group = server.begin(model, prepared, request, stream=stream)
    writer = make(group)
    record = get_record(request.scope)
    record.reply = writer.id
    if stream:
        group.limit_buffer()
        parts = _write_parts(server, group, writer, record.id)
        seconds = server.settings.ping_interval
        return EventStream(parts, group.close, writer.media, writer.ping, seconds)
    with group:
        await run_while_connected(request, group.wait_for_all())
        if measure_reply(group) > LARGE:
            return await server.write_in_thread(lambda: reply(writer.write_reply()))
        return reply(writer.write_reply())


def measure_reply(group: RequestGroup) -> int:
    """About the number of tokens and log-probabilities in a reply."""
    total = 0
    for one in get_collectors(group):
        params = one.request.params
        total += one.produced * (1 + (params.scored or 0))
        total += len(one.request.tokens) * (1 + (params.prompt_logprobs or 0))
    return total


def measure_piece(collector: Collector, piece: TextPiece) -> int:
    """The same for one piece; the first piece of a choice may include its prompt."""
    params = collector.request.params
    found = len(piece.tokens) * (1 + (params.scored or 0))
    begins = collector.choices[piece.choice].shown == len(piece.tokens)
    if begins and params.prompt_logprobs is not None:
        found += len(collector.request.tokens) * (1 + params.prompt_logprobs)
    return found


def get_collectors(group: AnswerGroup) -> list[Collector]:
    """The collectors of a group, all of which return text."""
    found = [one for one in group.collectors if isinstance(one, Collector)]
    assert len(found) == len(group.collectors), "a vector among texts"
    return found


async def _write_parts(
    server: ApiServer, group: RequestGroup, writer: Writer, id: str
) -> AsyncGenerator[bytes]:
    try:
        if begun := writer.begin():
            yield begun
        async for found in group.read_pieces():
            async for part in _write_pieces(server, group, writer, found):
                yield part
        if part := writer.end():
            yield part
    except Exception as error:
        known = to_http_error(error)
        if known.code == "internal_error":
            print_failure(f"a stream {id}", error)
        yield writer.write_error(known)
    finally:
        group.close()


async def _write_pieces(
    server: ApiServer, group: RequestGroup, writer: Writer, found: Sequence[tuple[int, TextPiece]]
) -> AsyncGenerator[bytes]:
    """New pieces, written in portions so short that other requests are not delayed."""
    parts: list[bytes] = []
    size = 0
    for i, piece in found:
        collector = group.collectors[i]
        if isinstance(collector, Collector) and measure_piece(collector, piece) > LARGE:
            part = await server.write_in_thread(partial(writer.write_piece, i, piece))
        else:
            part = writer.write_piece(i, piece)
        parts.append(part)
        size += len(part)
        if size >= TURN:
            yield b"".join(parts)
            parts, size = [], 0
            await asyncio.sleep(0)
    if size:
        yield b"".join(parts)
