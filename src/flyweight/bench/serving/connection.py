"""A connection to a server: one request at a time, its answer read as it arrives.

Invariant: the moment of a chunk is when its bytes came in, before anything is read of them; an
answer that ends before its end is a failure.  httptools reads HTTP, a bare asyncio protocol feeds
it: a client of many layers costs more a token than the server (docs/serving-benchmarks.md).
"""

import asyncio
import ssl
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httptools
import msgspec

from flyweight.bench.serving.client_apis import ClientApi, read_reason
from flyweight.bench.serving.requests import StreamedAnswer
from flyweight.errors import ConfigError
from flyweight.validation.untrusted import one_line, shown

MOST_ERROR = 64 << 10  # bytes kept of a body that describes an error
MOST_EVENT = 16 << 20  # bytes of an event whose end has not come, and of any other body
SSE = "event-stream"


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server is: http or https, host, port, and what comes before every path."""

    secure: bool
    host: str
    port: int
    before: str
    verified: bool = True  # whether a certificate has to be good

    @classmethod
    def of(cls, url: str, *, verified: bool = True) -> "ServerAddress":
        """Raises `ConfigError`."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"base_url = {shown(url)}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise ConfigError(
                f"base_url = {shown(url)} is not a server's; write http://127.0.0.1:8000"
            )
        secure = parts.scheme == "https"
        before = parts.path.rstrip("/").removesuffix("/v1")
        return cls(secure, parts.hostname, port or (443 if secure else 80), before, verified)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}:{self.port}{self.before}"


class ResponseReader:
    """One answer while it is read: its status, and its events or its whole body."""

    def __init__(self, api: ClientApi | None, answer: StreamedAnswer) -> None:
        self.api, self.answer = api, answer
        self.status, self.events, self.now = 0, False, 0.0
        self.sized = False  # whether the body says where it ends, or ends with the connection
        self.body = bytearray()

    def take(self, part: bytes, now: float) -> None:
        self.now = now
        if not self.events:
            self.body += part[: (MOST_ERROR if self.api else MOST_EVENT) - len(self.body)]
            return
        if self.body:
            part = bytes(self.body) + part
            self.body.clear()
        lines = part.split(b"\n")
        rest = lines.pop()
        if rest:
            self.body += rest
            if len(rest) > MOST_EVENT:
                self.answer.fail(f"an event of more than {MOST_EVENT} bytes")
        for line in lines:
            if line.startswith(b"data:"):
                self._take_event(line[5:].strip(), now)
            elif line.startswith(b"error:"):
                self.answer.fail(read_reason(line[6:].strip()))

    def _take_event(self, payload: bytes, now: float) -> None:
        assert self.api is not None
        try:
            self.api.read(payload, now, self.answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self.answer.fail(f"an event that is not of this API: {one_line(str(error))}")

    def finish(self) -> None:
        """The body has come to its end."""
        if self.api is None:
            return
        if self.events and self.body:
            self.take(b"\n", self.now)  # the last line need not have an end
        if self.status != 200:
            self.answer.fail(f"HTTP {self.status}: {read_reason(bytes(self.body))}")
        elif not self.events:
            self.answer.fail("the server answered 200 with something that is no event stream")
        elif not self.answer.complete:
            self.answer.fail("the stream ended before its last event")
        elif not self.answer.times:
            self.answer.fail("the stream had no part of an answer")


class ClientConnection(asyncio.Protocol):
    """One connection, kept open between requests where the server agrees."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.reading: ResponseReader | None = None
        self.done: asyncio.Future[None] | None = None
        self.parser: Any = None
        self.open, self.usable, self.now = False, False, 0.0
        self.fresh, self.heard = True, False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.open = self.usable = True

    async def send(self, raw: bytes, reading: ResponseReader) -> None:
        """Sends a request and reads its answer to the end.  `stale` says afterwards whether it has
        to be sent again.
        """
        self.reading, self.heard = reading, False
        self.parser = httptools.HttpResponseParser(self)
        self.done = asyncio.get_running_loop().create_future()
        if self.open:
            self.transport.write(raw)
        else:
            self._handle_loss()
        try:
            await self.done
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            self.reading = self.done = None

    @property
    def stale(self) -> bool:
        """Whether a connection that was kept turned out to be closed already: servers may do that
        at any time, and the request has not been seen.
        """
        return not self.fresh and not self.heard

    def data_received(self, data: bytes) -> None:
        self.now = time.perf_counter()
        self.heard = True
        if self.reading is None:
            self.close()  # no request is pending
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.reading.answer.fail(f"no HTTP: {one_line(str(error))}")
            self._finish(usable=False)

    def connection_lost(self, error: Exception | None) -> None:
        self.open = self.usable = False
        if self.done is not None and not self.done.done():
            self._handle_loss()

    def close(self) -> None:
        self.usable = False
        if self.open:
            self.transport.abort()

    # what httptools calls

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self.reading is not None
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self.reading.sized = True
        elif name == b"content-type":
            self.reading.events = SSE in value.decode("latin-1").lower()

    def on_headers_complete(self) -> None:
        assert self.reading is not None
        self.reading.status = self.parser.get_status_code()
        self.reading.events = self.reading.events and self.reading.status == 200

    def on_body(self, body: bytes) -> None:
        if self.reading is not None:
            self.reading.take(body, self.now)

    def on_message_complete(self) -> None:
        assert self.reading is not None
        self.reading.finish()
        self._finish(usable=self.parser.should_keep_alive())

    def _handle_loss(self) -> None:
        """The connection is gone; an answer that was complete has its end all the same."""
        assert self.reading is not None
        answer = self.reading.answer
        if self.reading.status and not self.reading.sized:
            self.reading.finish()
        elif not answer.complete:
            count = len(answer.times)
            answer.fail(f"the connection was closed after {'some' if count else 'no'} chunks")
        self._finish(usable=False)

    def _finish(self, usable: bool) -> None:
        assert self.reading is not None and self.done is not None
        self.reading.answer.end = time.perf_counter()
        self.usable = usable and self.open
        if not self.done.done():
            self.done.set_result(None)
        if not self.usable and self.open:
            self.transport.abort()


class ConnectionPool:
    """Connections to one server: an idle one is taken again, else one is opened."""

    def __init__(self, place: ServerAddress) -> None:
        self.place = place
        self.idle: list[ClientConnection] = []
        self._tls = ssl.create_default_context() if place.secure else None
        if self._tls is not None and not place.verified:
            self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE

    async def take(self) -> ClientConnection:
        """Raises `OSError`."""
        while self.idle:
            line = self.idle.pop()
            if line.usable:
                return line
        loop = asyncio.get_running_loop()
        place = self.place
        try:
            _, line = await loop.create_connection(
                ClientConnection, place.host, place.port, ssl=self._tls
            )
        except UnicodeError:
            raise OSError(f"{shown(place.host)} cannot be the name of a host") from None
        return line

    def give(self, line: ClientConnection) -> None:
        if line.usable:
            line.fresh = False
            self.idle.append(line)

    def close(self) -> None:
        for line in self.idle:
            line.close()
        self.idle.clear()
