"""Replies: JSON, event streams that end when the client disconnects, headers of ignored fields.

Invariant: a stream whose client is gone is closed, and with it its source (`protocol` handles
clients that do not read); an error after the first byte is an event like any other.  Ignored names
come from the client: they are percent-encoded, and limited in number.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar
from urllib.parse import quote
from uuid import uuid4

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

T = TypeVar("T")
_encoder = msgspec.json.Encoder()
DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"  # a comment, which readers of events pass over
HEADER, SCHEMA_HEADER = "x-ignored-params", "x-ignored-schema-keywords"
MOST, LONGEST = 32, 64  # names, and characters of each
PLAIN = "[]$="  # not escaped, like letters, digits and _.-~


class ClientGone(Exception):
    """The client has disconnected."""


def encode(value: object) -> bytes:
    return _encoder.encode(value)


def reply(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`value` as JSON."""
    return Response(encode(value), status, dict(headers or {}), "application/json")


def encode_event(value: object, name: str = "") -> bytes:
    """One server-sent event; `name` if the API names its events."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + _encoder.encode(value) + b"\n\n"


class EventTemplate:
    """Events that differ in one text only: the rest is encoded once."""

    __slots__ = ("after", "before")

    def __init__(self, make: Callable[[str], object]) -> None:
        mark = uuid4().hex  # occurs in no text
        self.before, _, self.after = encode_event(make(mark)).partition(encode(mark))

    def __call__(self, text: str) -> bytes:
        return self.before + _encoder.encode(text) + self.after


class EventStream(Response):
    """Sends `parts` until they end or the client disconnects.  After each `seconds` of silence it
    sends `ping`, if there is one, so that proxies keep the connection open.
    """

    def __init__(
        self,
        parts: AsyncGenerator[bytes],
        close: Callable[[], None],
        media_type: str = "text/event-stream",
        ping: bytes = b"",
        seconds: float = 0.0,
    ) -> None:
        self.parts, self.close = parts, close
        self.ping, self.seconds = ping, seconds
        self._spoke = 0.0  # when something was sent last
        self.status_code, self.background = 200, None
        self.media_type = media_type
        self.body = b""
        self.init_headers({"cache-control": "no-store"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await sending
            await self.parts.aclose()
            self.close()  # a generator that was never begun has no end of its own

    async def _send(self, send: Send) -> None:
        start: Message = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        pinging = None
        if self.ping and self.seconds:
            pinging = asyncio.ensure_future(self._pings(send))
        now = asyncio.get_running_loop().time
        try:
            async for part in self.parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
                self._spoke = now()
        finally:
            if pinging is not None:
                pinging.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pings(self, send: Send) -> None:
        """Sends pings between parts, which are whole events."""
        now = asyncio.get_running_loop().time
        self._spoke = now()
        while True:
            left = self._spoke + self.seconds - now()
            if left > 0:
                await asyncio.sleep(left)
                continue
            await send({"type": "http.response.body", "body": self.ping, "more_body": True})
            self._spoke = now()


async def wait_for_disconnect(receive: Receive) -> None:
    """Returns when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def run_while_connected(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled if the client disconnects (`ClientGone`)."""
    task = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(wait_for_disconnect(request.receive))
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        leaving.cancel()
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def ignore(request: Request, names: Sequence[str]) -> None:
    """Notes fields of a request that have no effect."""
    request.state.ignored = list(names)


def ignore_also(request: Request, name: str) -> None:
    """Notes one more field."""
    ignore(request, [*getattr(request.state, "ignored", []), name])


def ignore_keywords(request: Request, names: Iterable[str]) -> None:
    """Notes names within JSON schemas that have no effect."""
    known: list[str] = getattr(request.state, "ignored_keywords", [])
    request.state.ignored_keywords = list(dict.fromkeys([*known, *names]))


def set_header(request: Request, name: str, value: str) -> None:
    """Notes a header of the response, whatever becomes of the request."""
    known: dict[str, str] = getattr(request.state, "headers", {})
    request.state.headers = {**known, name: value}


def add_headers(request: Request, response: Response) -> Response:
    """The response with the headers that were noted, and those of ignored fields, if any."""
    noted: dict[str, str] = getattr(request.state, "headers", {})
    response.headers.update(noted)
    for header, kind in ((HEADER, "ignored"), (SCHEMA_HEADER, "ignored_keywords")):
        names: list[str] = getattr(request.state, kind, [])
        if names:
            response.headers[header] = format_names([*dict.fromkeys(names)])
    return response


def format_names(names: Sequence[str]) -> str:
    """Names as a header has them."""
    found = [_escape(name) for name in names[:MOST]]
    more = len(names) - MOST
    return ", ".join([*found, f"... ({more} more)"] if more > 0 else found)


def _escape(name: str) -> str:
    """A name without characters that end a header or an item of it; shortened if it is long."""
    cut = name[:LONGEST].encode("utf-8", "surrogatepass")
    return quote(cut, safe=PLAIN) + ("..." if len(name) > LONGEST else "")
