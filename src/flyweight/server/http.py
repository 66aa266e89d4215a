"""uvicorn's protocol with limits on what a client may send before it is anybody, and a server that
sleeps while nothing happens.

Invariant: a connection that has not sent a whole head in time, or sends one that is too large, is
closed; it costs no more than its socket.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


def limited(header_bytes: int, header_seconds: float) -> type[HttpToolsProtocol]:
    """The protocol with its limits."""

    class Limited(HttpToolsProtocol):
        """Counts the bytes of a head, and how long it takes."""

        _head = 0  # bytes of the head so far; -1 once it is whole
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._await_head()

        def connection_lost(self, error: Exception | None) -> None:
            self._stop_clock()
            super().connection_lost(error)

        def data_received(self, data: bytes) -> None:
            if self._head >= 0:
                self._head += len(data)
            super().data_received(data)
            if self._head > header_bytes and not self.transport.is_closing():
                self.transport.write(TOO_LARGE)
                self.transport.close()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            if self._head < 0:
                self._head = 0
            if self._late is None:
                self._await_head()

        def on_headers_complete(self) -> None:
            self._head = -1
            self._stop_clock()
            super().on_headers_complete()

        def _await_head(self) -> None:
            self._late = self.loop.call_later(header_seconds, self._too_late)

        def _stop_clock(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

        def _too_late(self) -> None:
            self._late = None
            if not self.transport.is_closing():
                self.transport.close()

    return Limited


class Server(uvicorn.Server):
    """uvicorn without its clock and its handlers of signals: `stop` ends it."""

    def __init__(self, config: uvicorn.Config, serving: Callable[[Any], None]) -> None:
        super().__init__(config)
        self._end = asyncio.Event()
        self._serving = serving

    def stop(self) -> None:
        self.should_exit = True
        self._end.set()

    async def main_loop(self) -> None:
        self._serving(self)
        await self._end.wait()

    def capture_signals(self) -> Any:
        from contextlib import nullcontext

        return nullcontext()
