"""Listening: what the port answers before there is a model, then uvicorn without its clock.

Invariant: before the model is loaded every request gets 503, whatever its key and Host; such a
connection ends soon.  A server that has nothing to do does not wake up.
"""

import asyncio
import resource
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from ssl import SSLContext, SSLError
from typing import Any, cast

import uvicorn
from uvicorn.config import create_ssl_context

from flyweight.errors import ConfigError
from flyweight.server.settings import ServerSettings
from flyweight.server.transport.errors import HttpError, Shape
from flyweight.server.transport.protocol import encode_reply

SPARE = 32  # open files that are no connections
ENDS = b"\r\n\r\n"  # of a head
HEAD = 64 << 10  # bytes of one; more need not come to be answered
LONGEST = 5.0  # seconds a connection stays, for a head to come and its answer to be read
LOADING = HttpError(
    503, "the model is being loaded", code="loading", headers={"retry-after": "1"}
)  # fmt: skip


def limit_connections(wanted: int) -> int:
    """How many of `wanted` connections the system allows.  Raises `ConfigError`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft != unlimited and soft < wanted + SPARE:
        soft = wanted + SPARE if hard == unlimited else min(hard, wanted + SPARE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    found = wanted if soft == unlimited else min(wanted, soft - SPARE)
    if found < 1:
        raise ConfigError(f"at most {soft} files may be open (ulimit -n); needed: {SPARE + 1}")
    return found


def make_tls_context(server: ServerSettings) -> SSLContext | None:
    """uvicorn's context of a certificate, made before the model is loaded.  Raises
    `ConfigError`.
    """
    if not server.ssl_certfile:
        return None
    config = uvicorn.Config(
        "", ssl_certfile=server.ssl_certfile, ssl_keyfile=server.ssl_keyfile or None
    )
    try:
        return create_ssl_context(
            server.ssl_certfile,
            server.ssl_keyfile or None,
            config.ssl_keyfile_password,
            config.ssl_version,
            config.ssl_cert_reqs,
            config.ssl_ca_certs,
            config.ssl_ciphers,
        )
    except OSError as error:  # an error of ssl is one too
        files = " and ".join(filter(None, (server.ssl_certfile, server.ssl_keyfile)))
        why = error.strerror
        if isinstance(error, SSLError):  # OpenSSL says no more than where in its source
            why = "a certificate and its key are needed, both PEM"
            why += "" if server.ssl_keyfile else "; --ssl-keyfile names a key in another file"
        raise ConfigError(f"ssl_certfile: {files} cannot be used: {why}") from None


class LoadingResponder(asyncio.Protocol):
    """A connection: after the head it gets the answer in the error format of its path; other data
    is dropped.
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
    """The path in the first line of a head; empty if it has none."""
    words = head.partition(b"\r\n")[0].split(b" ")
    return words[1].partition(b"?")[0].decode("latin-1") if len(words) == 3 else ""


async def answer_while_loading(
    sock: socket.socket, shape_of: Callable[[str], Shape], tls: SSLContext | None = None
) -> asyncio.Server:
    """Answers on a port until closed; `sock` itself stays open for the server."""
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: LoadingResponder(shape_of), sock=sock.dup(), ssl=tls)


class HttpServer(uvicorn.Server):
    """uvicorn without its clock and signal handlers; `stop` ends it."""

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

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()
