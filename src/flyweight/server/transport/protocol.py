"""uvicorn's protocol, with limits on what a connection may cost.

Invariant: a connection is closed if its head is late or too large, or if it does not read its
answer.  Until then it costs its socket and its unread data, which are limited for all connections
together.  If there are too many connections, the longest idle one is closed.
"""

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from fcntl import ioctl
from functools import partial
from termios import TIOCOUTQ
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from flyweight.server.settings import ServerSettings
from flyweight.server.transport.errors import HttpError, Shape
from flyweight.server.transport.replies import encode

PIPELINED = 16  # requests that may wait behind one on its connection
LINE = 4  # bytes of a header other than its name and value


def encode_reply(error: HttpError, shape: Shape = HttpError.body) -> bytes:
    """An error as bytes, for a connection that has no request yet."""
    body = encode(shape(error))
    named = "".join(f"{name}: {value}\r\n" for name, value in error.headers.items())
    head = (
        f"HTTP/1.1 {error.status} Refused\r\ncontent-type: application/json\r\n{named}"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


def count_unsent(transport: asyncio.WriteTransport) -> int:
    """Bytes that were written and not received by the client.  The system buffers megabytes, so a
    slow client is found by what is left in the system's buffer, if known.
    """
    queued = 0
    with suppress(OSError):
        file = transport.get_extra_info("socket").fileno()
        queued = int.from_bytes(ioctl(file, TIOCOUTQ, bytes(4)), sys.byteorder)
    return transport.get_write_buffer_size() + queued


class ConnectionLimits:
    """The connections of one server, at most `most`; `idle` ones, the longest idle first, are
    between requests; `unread` ones, the longest first, have not received all of their answers.
    """

    def __init__(self, limits: ServerSettings, most: int) -> None:
        self.limits, self.most = limits, most
        self.open: set[Connection] = set()
        self.idle: dict[Connection, None] = {}
        self.unread: dict[Connection, None] = {}

    def hold(self, one: "Connection") -> None:
        """A connection has unread data.  If all together have too much, the oldest are closed; a
        single one may have any size.
        """
        self.unread.pop(one, None)
        self.unread[one] = None
        sizes = [(other, other.transport.get_write_buffer_size()) for other in self.unread]
        held = sum(size for _, size in sizes)
        for other, size in sizes[:-1]:
            if size and held > self.limits.max_send_buffer_bytes:
                held -= size
                other.transport.abort()

    @property
    def answering(self) -> bool:
        """Whether any client still waits for an answer, or for the rest of one."""
        return any(one.answering for one in self.open)

    def make_protocol(self) -> Callable[..., asyncio.Protocol]:
        """The factory of connections for uvicorn."""
        return partial(Connection, self)


class Connection(HttpToolsProtocol):
    """Measures a head's size and time, and how long a client does not read."""

    def __init__(self, pool: ConnectionLimits, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.pool, self.limits = pool, pool.limits
        self.running: list[RequestResponseCycle] = []  # begun and not ended, oldest first
        self._unread = 0  # bytes since something came of them
        self._head = 0  # bytes of the newest head, and of what follows its body
        self._deaf = False  # whether nothing more is read
        self._late: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.pool.open.add(self)
        self.pool.idle[self] = None
        self._await_head()
        if len(self.connections) > self.pool.most:
            next(iter(self.pool.idle)).give_way()

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_clock()
        self._unblock()
        self.pool.open.discard(self)
        self.pool.idle.pop(self, None)
        super().connection_lost(error)
        for cycle in self.running:  # uvicorn notifies the newest only
            cycle.disconnected = True
            cycle.message_event.set()

    @property
    def answering(self) -> bool:
        """Whether a complete request is not answered, or its answer not sent."""
        come = any(not cycle.more_body for cycle in self.running)
        return come or self.transport.get_write_buffer_size() > 0

    def give_way(self) -> None:
        """Closes the connection, as there are too many."""
        self.connections.discard(self)
        self.pool.idle.pop(self, None)
        self._refuse(HttpError(503, "too many connections; retry later", code="connection_limit"))

    # --- what comes ---

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._unread += len(data)
        if self._late is None and not self.running:
            self._await_head()
        super().data_received(data)
        if max(self._unread, self._head) > self.limits.max_header_bytes:
            most = self.limits.max_header_bytes
            self._refuse(HttpError(431, f"the request head is larger than {most} bytes"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head = 0

    def on_url(self, url: bytes) -> None:
        self._head += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head += len(name) + len(value) + LINE
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._unread = 0
        if self._head > self.limits.max_header_bytes or self._deaf:
            self._deaf = True
            return
        self._stop_clock()
        self._unblock()
        coded = [value for name, value in self.headers if name == b"transfer-encoding"]
        if any(value.strip().lower() != b"chunked" for value in coded):
            self._refuse(HttpError(400, "Transfer-Encoding: only chunked is supported"))
            return
        self.pool.idle.pop(self, None)
        super().on_headers_complete()
        self.running.append(self.cycle)
        if len(self.running) > PIPELINED:
            self._deaf = True
            self.transport.abort()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        if not self._deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._deaf:
            super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """The request is answered without the upgrade; data after it is not HTTP."""
        self._deaf = True
        for cycle in self.running:
            cycle.keep_alive = False

    def send_400_response(self, msg: str) -> None:
        self._refuse(HttpError(400, "the request is not valid HTTP/1"))

    # --- what goes ---

    def on_response_complete(self) -> None:
        if self.running:
            done = self.running.pop(0)
            if done.more_body and not self.transport.is_closing():
                self.transport.close()  # the rest of its body is not read
        if not self.running:
            self.pool.idle[self] = None
        if self.transport.get_write_buffer_size():
            self._block()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._block()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unblock()

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():  # which has a clock of its own
            again = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
            self.timeout_keep_alive_task = again
        else:
            self.transport.abort()

    # --- clocks ---

    def _await_head(self) -> None:
        self._late = self.loop.call_later(self.limits.header_timeout, self.transport.abort)

    def _stop_clock(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _block(self) -> None:
        self._unblock()
        self._watch()
        self.pool.hold(self)

    def _watch(self) -> None:
        """Checks after a while that the client has read something."""
        wait = self.limits.send_timeout
        self._stuck = self.loop.call_later(wait, self._drop, count_unsent(self.transport))

    def _unblock(self) -> None:
        self.pool.unread.pop(self, None)
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def _drop(self, before: int) -> None:
        """Aborts the connection: closing would wait for the client to read."""
        if not self.transport.get_write_buffer_size():
            return
        if count_unsent(self.transport) >= before:
            self.transport.abort()
        else:
            self._watch()

    def _refuse(self, error: HttpError) -> None:
        self._deaf = True
        if self.transport.is_closing():
            return
        if not self.running:
            self.transport.write(encode_reply(error))
        self._block()
        self.transport.close()
