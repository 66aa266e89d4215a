"""What the port says before there is a model: 503 to everything, and when to ask again.

Invariant: an answer holds nothing of the server but that it loads, so nobody's key or Host is
looked at; a connection ends soon, whatever its client does.
"""

import asyncio
import socket
from collections.abc import Callable
from ssl import SSLContext
from typing import cast

from flyweight.server.transport.errors import HttpError, Shape
from flyweight.server.transport.protocol import encode_reply

ENDS = b"\r\n\r\n"  # of a head
HEAD = 64 << 10  # bytes of one; more need not come to be answered
LONGEST = 5.0  # seconds a connection stays, for a head to come and its answer to be read
LOADING = HttpError(
    503, "the model is being loaded", code="loading", headers={"retry-after": "1"}
)  # fmt: skip


class LoadingResponder(asyncio.Protocol):
    """A connection: a head comes, the answer goes, in the shape that `shape_of` has for its path,
    and what else comes is thrown away.
    """

    def __init__(self, shape_of: Callable[[str], Shape]) -> None:
        self.shape_of = shape_of
        self._head = b""
        self._answered = False
        self._end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._end = asyncio.get_running_loop().call_later(LONGEST, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._answered:
            return
        self._head += data
        if ENDS in self._head or len(self._head) > HEAD:
            shape = self.shape_of(parse_path(self._head))
            self._answered, self._head = True, b""
            self._transport.write(encode_reply(LOADING, shape))
            if self._transport.can_write_eof():
                self._transport.write_eof()  # closed at once, unread bytes take the answer along
            else:  # TLS has no half of a connection
                self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if self._end is not None:
            self._end.cancel()


def parse_path(head: bytes) -> str:
    """The path in the first line of a head, as far as it can be told."""
    words = head.partition(b"\r\n")[0].split(b" ")
    return words[1].partition(b"?")[0].decode("latin-1") if len(words) == 3 else ""


async def answer_while_loading(
    sock: socket.socket, shape_of: Callable[[str], Shape], tls: SSLContext | None = None
) -> asyncio.Server:
    """Answers on a port until closed; `sock` itself stays open for who serves after that."""
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: LoadingResponder(shape_of), sock=sock.dup(), ssl=tls)
