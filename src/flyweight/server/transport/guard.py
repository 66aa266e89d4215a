"""What every request passes before a route sees it: Host, Origin, key, and the reading of its body.

Invariant: the path that is checked is the one the router uses, and a path needs a key unless it is
listed as open.  Each of several keys, and each key of a file, is a tenant, named by its hash.  A
body reaches a route whole or not at all; its bytes are counted once and freed once.  Every answer
has an id.
"""

import asyncio
import hmac
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import sha256
from typing import Any
from uuid import uuid4

from starlette._utils import get_route_path
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flyweight.server.settings import LOOPBACK, ServerSettings
from flyweight.server.transport.errors import HttpError, Shape, print_failure, to_http_error
from flyweight.server.transport.keys import ApiKeys
from flyweight.server.transport.origins import CorsPolicy, Given
from flyweight.server.transport.replies import reply
from flyweight.server.transport.request_log import get_record

OPEN = frozenset({"/health", "/v1/health", "/ping", "/ready"})
METRICS = "/metrics"
HOST = re.compile(r"(?:[A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
LETTERS = "[A-Za-z0-9._:-]"  # of a client's name for a request: none forges a line of the log
ID = re.compile(LETTERS + "{1,64}")
WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")
LINGER = 2.0  # seconds the rest of a refused body is thrown away, so that its sender reads why
ALWAYS = 64 << 10  # bytes of each body that are not counted


class BodyReader:
    """Reads the bodies of one server; `held` bytes of them are in memory, the first of each not
    counted.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.held = 0

    async def read(self, headers: Headers, receive: Receive) -> bytes:
        """A whole body; empty if its client disconnected.  Raises `HttpError`."""
        most = self.settings.max_body_bytes
        length = headers.get("content-length")
        if length is not None and (not length.isdecimal() or int(length[:20]) > most):
            raise make_size_error(most)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.settings.body_timeout):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        self.free(size)
                        return b""
                    part = message.get("body", b"")
                    if size + len(part) > most:
                        raise make_size_error(most)
                    self._take(size, len(part))
                    size += len(part)
                    parts.append(part)
                    more = message.get("more_body", False)
        except BaseException as error:
            self.free(size)
            if isinstance(error, TimeoutError):
                raise HttpError(408, "the body took too long to arrive") from None
            raise
        return b"".join(parts)

    def free(self, size: int) -> None:
        """A body of `size` bytes is no longer needed."""
        self.held -= count_bytes(size)

    def _take(self, size: int, more: int) -> None:
        """Raises `HttpError` where others leave no room; one alone may be of any size."""
        own, most = count_bytes(size), self.settings.max_total_body_bytes
        after = self.held - own + count_bytes(size + more)
        if after > most and after > self.held > own:
            raise HttpError(
                503,
                f"the bodies of all requests have {self.held} bytes (max {most}); retry later "
                "(--max-total-body-bytes)",
                code="request_bytes_limit",
                headers={"retry-after": "2"},
            )
        self.held = after


def count_bytes(size: int) -> int:
    return max(0, size - ALWAYS)


def make_size_error(most: int) -> HttpError:
    return HttpError(413, f"the body is larger than {most} bytes (--max-body-bytes)")


class RequestGuard:
    """ASGI around an app; `open_paths` need no key, `shape_of` returns the error format of a
    path.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        keys: ApiKeys,
        open_paths: Iterable[str] = (),
        shape_of: Callable[[str], Shape] = lambda path: HttpError.body,
    ) -> None:
        self.app, self.settings, self.keys, self.shape_of = app, settings, keys, shape_of
        self.apart = settings.several_keys and not settings.share_prefix_cache
        self.open = OPEN | set(open_paths) | ({METRICS} if settings.open_metrics else set())
        named = {host.lower() for host in settings.allowed_hosts}
        own = f"[{settings.host}]" if ":" in settings.host else settings.host.lower()
        self.hosts = {*LOOPBACK, "[::1]", own, *named} if settings.local or named else None
        self.origins = CorsPolicy(settings)
        self.bodies = BodyReader(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            else:
                await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        answer = ResponseSender(send, headers.get("x-request-id", ""))
        shape = self.shape_of(get_route_path(scope))
        get_record(scope).id = answer.id
        try:
            answer.named += self.origins.check(headers, self._host(scope, headers))
            preflight = self.origins.preflight(scope["method"], headers)
            if preflight is not None:
                await _allow(preflight, answer)
                return
            self._check(scope, headers)
            taken = scope["method"] in WITH_BODY
            body = await self.bodies.read(headers, receive) if taken else b""
        except HttpError as refused:
            error = to_http_error(refused)
            await _refuse(error, shape(error), headers, receive, answer)
            return
        try:
            await self.app(scope, _replay(body, receive), answer)
        except Exception as error:
            print_failure(f"{scope['method']} {answer.id}", error)
            if answer.begun:  # all that is left is to close the connection
                raise RuntimeError("an answer broke off") from None
            await reply(shape(to_http_error(error)), 500)(scope, receive, answer)
        finally:
            self.bodies.free(len(body))  # routes keep parts of it until they have answered

    def _host(self, scope: Scope, headers: Headers) -> str:
        """The Host header, if it is allowed.  Raises `HttpError`."""
        host = headers.getlist("host")
        if not host and scope["http_version"] == "1.0":
            host = list(LOOPBACK[:1])
        if len(host) != 1 or not HOST.fullmatch(host[0]):
            raise HttpError(400, "the Host header is missing or not valid", "Host")
        name = host[0].rsplit(":", 1)[0] if not host[0].endswith("]") else host[0]
        if self.hosts is not None and name.lower() not in self.hosts:
            raise HttpError(403, "this Host is not allowed; add it with --allowed-hosts", "Host")
        return host[0]

    def _check(self, scope: Scope, headers: Headers) -> None:
        known = self._find_key(headers)
        if known is not None and self.apart:
            scope["tenant"] = known
        if get_route_path(scope) not in self.open and known is None:
            raise HttpError(
                401,
                "an API key is required: Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        if any(one.lower() != "identity" for one in headers.getlist("content-encoding")):
            raise HttpError(415, "compressed bodies are not supported", "Content-Encoding")

    def _find_key(self, headers: Headers) -> str | None:
        """The hash of the given key if it is valid; all keys are compared, so that the time reveals
        nothing.
        """
        if not self.keys.hashes:
            return ""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            given = headers.get("x-api-key", "")  # Anthropic's clients
        digest = sha256(given.encode("latin-1").strip(b" \t")).digest()  # the bytes that came
        found = [hmac.compare_digest(digest, key) for key in self.keys.hashes]
        return digest.hex() if any(found) else None


class ResponseSender:
    """`send` that adds the request's id and the headers `named` to the response.  The id is the
    client's if it gave a valid one; it is never used as a key.
    """

    def __init__(self, send: Send, given: str) -> None:
        self._send, self.begun = send, False
        self.id = given if ID.fullmatch(given) else uuid4().hex
        self.named = [(b"x-request-id", self.id.encode())]

    async def __call__(self, message: Message) -> None:
        if not self.begun:
            self.begun = True
            message = {**message, "headers": [*message.get("headers", ()), *self.named]}
        await self._send(message)


async def _allow(preflight: Given, send: Send) -> None:
    """Answers a preflight."""
    await send({"type": "http.response.start", "status": 204, "headers": preflight})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _refuse(
    error: HttpError, body: dict[str, Any], headers: Headers, receive: Receive, send: Send
) -> None:
    """Sends an error, and reads on for a while: if a connection is closed while its client still
    sends, the client may lose the answer.
    """
    response = reply(body, error.status, {**error.headers, "connection": "close"})
    head = {"type": "http.response.start", "status": error.status, "headers": response.raw_headers}
    await send(head)
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    if "expect" not in headers:
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER):
                message: Message = {"more_body": True}
                while message.get("more_body", False):
                    message = await receive()
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns a body that was read before, then waits for the client to
    disconnect.
    """
    reported = False

    async def once() -> Message:
        nonlocal reported
        if reported:
            return await receive()
        reported = True
        return {"type": "http.request", "body": body, "more_body": False}

    return once
