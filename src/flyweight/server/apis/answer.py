"""From checked prompts to a reply, whole or streamed: the one loop that all dialects share.

Invariant: an error after the first byte is written as the dialect writes errors; whatever becomes
of the client, what was begun is ended.  Knows no dialect: a `Writer` does.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from flyweight.requests.collector import Collector, TextPiece
from flyweight.requests.prompts import PreparedPrompt
from flyweight.server.admission.request_group import RequestGroup
from flyweight.server.api_server import ApiServer
from flyweight.server.apis.output_formats import form_keywords
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
    """How a dialect writes what a bundle brings: `whole` once all is there, or a stream of `begin`,
    a `piece` for each piece of each prompt, and `end` or `failed`.  Anything but `whole` may be
    empty; `id` is, where the dialect's replies have none, and `ping`, what a stream says while
    there is nothing to say, where it has nothing that means nothing.
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


async def answer(
    server: ApiServer,
    model: ServedModel,
    request: Request,
    asked: Sequence[PreparedPrompt],
    make: Callable[[RequestGroup], Writer],
    *,
    stream: bool,
) -> Response:
    """Runs checked prompts, and writes what they bring."""
    for form in {one.params.structured_outputs for one in asked} - {None}:
        ignore_keywords(request, form_keywords(form))
    bundle = server.begin(model, asked, request)
    writer = make(bundle)
    visit = get_record(request.scope)
    visit.reply = writer.id
    if stream:
        bundle.limit_buffer()
        parts = _write_parts(server, bundle, writer, visit.id)
        seconds = server.settings.ping_interval
        return EventStream(parts, bundle.close, writer.media, writer.ping, seconds)
    with bundle:
        await run_while_connected(request, bundle.wait_for_all())
        if measure_reply(bundle) > LARGE:
            return await server.write_in_thread(lambda: reply(writer.write_reply()))
        return reply(writer.write_reply())


def measure_reply(bundle: RequestGroup) -> int:
    """About how many tokens and log-probabilities a reply tells of."""
    total = 0
    for one in get_collectors(bundle):
        params = one.request.params
        total += one.produced * (1 + (params.scored or 0))
        total += len(one.request.tokens) * (1 + (params.prompt_logprobs or 0))
    return total


def measure_piece(collector: Collector, piece: TextPiece) -> int:
    """The same of one piece: the first of a choice may tell of its prompt."""
    params = collector.request.params
    found = len(piece.tokens) * (1 + (params.scored or 0))
    begins = collector.choices[piece.choice].shown == len(piece.tokens)
    if begins and params.prompt_logprobs is not None:
        found += len(collector.request.tokens) * (1 + params.prompt_logprobs)
    return found


def get_collectors(bundle: RequestGroup) -> list[Collector]:
    """The collectors of a bundle that asked for text."""
    found = [one for one in bundle.collectors if isinstance(one, Collector)]
    assert len(found) == len(bundle.collectors), "a vector among texts"
    return found


async def _write_parts(
    server: ApiServer, bundle: RequestGroup, writer: Writer, id: str
) -> AsyncGenerator[bytes]:
    try:
        if begun := writer.begin():
            yield begun
        async for found in bundle.read_pieces():
            async for part in _write_pieces(server, bundle, writer, found):
                yield part
        if part := writer.end():
            yield part
    except Exception as error:
        known = to_http_error(error)
        if known.code == "internal_error":
            print_failure(f"a stream {id}", error)
        yield writer.write_error(known)
    finally:
        bundle.close()


async def _write_pieces(
    server: ApiServer, bundle: RequestGroup, writer: Writer, found: Sequence[tuple[int, TextPiece]]
) -> AsyncGenerator[bytes]:
    """What is new, written in turns so short that whoever else is served notices nothing."""
    parts: list[bytes] = []
    size = 0
    for i, piece in found:
        collector = bundle.collectors[i]
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
