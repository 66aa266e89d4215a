"""What every request passes before a route sees it: Host, Origin, key, size and pace of its body.

Invariant: the decision is made on the path the router will use, and a path is guarded unless it is
listed as open.  A body reaches a route whole, or not at all.
"""

import asyncio
import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flyweight.server.errors import HttpError, told
from flyweight.server.settings import LOOPBACK, ServerSettings
from flyweight.server.sse import reply

OPEN = frozenset({"/health", "/ready"})
METRICS = "/metrics"
HOST = re.compile(r"(?:[A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")
Shape = Callable[[HttpError], dict[str, Any]]


class Guard:
    """ASGI around an app; `open_paths` need no key, `shapes` are how errors are written on a path
    whose dialect is not OpenAI's.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        open_paths: Iterable[str] = (),
        shapes: Mapping[str, Shape] | None = None,
    ) -> None:
        self.app, self.settings, self.shapes = app, settings, shapes or {}
        self.keys = [sha256(key.encode()).digest() for key in settings.keys]
        self.open = OPEN | set(open_paths) | ({METRICS} if settings.open_metrics else set())
        named = {host.lower() for host in settings.allowed_hosts}
        self.hosts = {*LOOPBACK, "[::1]", *named} if settings.local or named else None
        self.origins = {origin.rstrip("/").lower() for origin in settings.allowed_origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            else:
                await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._check(scope, headers)
            body = await self._body(scope, headers, receive)
        except HttpError as refused:
            error = told(refused)
            closing = {**error.headers, "connection": "close"}
            shape = self.shapes.get(scope["path"], HttpError.body)
            await reply(shape(error), error.status, closing)(scope, receive, send)
            return
        await self.app(scope, _given(body, receive), send)

    def _check(self, scope: Scope, headers: Headers) -> None:
        host = headers.getlist("host")
        if len(host) != 1 or not HOST.fullmatch(host[0]):
            raise HttpError(400, "the Host header is missing or is not a host", "Host")
        name = host[0].rsplit(":", 1)[0] if not host[0].endswith("]") else host[0]
        if self.hosts is not None and name.lower() not in self.hosts:
            raise HttpError(403, "this Host is not served here; --allowed-host names more", "Host")
        origin = headers.get("origin")
        if origin is not None and not self._same(origin, host[0]):
            raise HttpError(
                403, "pages of this Origin may not ask; --allowed-origin names more", "Origin"
            )
        if scope["path"] not in self.open and not self._known(headers):
            raise HttpError(
                401,
                "an API key is needed: Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise HttpError(415, "a compressed body is not read here", "Content-Encoding")

    def _same(self, origin: str, host: str) -> bool:
        origin = origin.lower()
        return origin in self.origins or origin in (f"http://{host}", f"https://{host}")

    def _known(self, headers: Headers) -> bool:
        """Whether a key is right; all are compared, so that time tells nothing."""
        if not self.keys:
            return True
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            given = headers.get("x-api-key", "")  # Anthropic's clients
        digest = sha256(given.strip().encode("utf-8", "surrogateescape")).digest()
        found = [hmac.compare_digest(digest, key) for key in self.keys]
        return any(found)

    async def _body(self, scope: Scope, headers: Headers, receive: Receive) -> bytes:
        if scope["method"] not in WITH_BODY:
            return b""
        most = self.settings.body_bytes
        length = headers.get("content-length")
        if length is not None and (not length.isdecimal() or int(length[:20]) > most):
            raise too_large(most)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.settings.body_seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return b""
                    part = message.get("body", b"")
                    size += len(part)
                    if size > most:
                        raise too_large(most)
                    parts.append(part)
                    more = message.get("more_body", False)
        except TimeoutError:
            raise HttpError(408, "the body took too long to come") from None
        return b"".join(parts)


def too_large(most: int) -> HttpError:
    return HttpError(413, f"the body is larger than {most} bytes; --max-body-bytes sets that")


def _given(body: bytes, receive: Receive) -> Receive:
    """A `receive` that tells of a body that has come already, then of the client's leaving."""
    told_of = False

    async def once() -> Message:
        nonlocal told_of
        if told_of:
            return await receive()
        told_of = True
        return {"type": "http.request", "body": body, "more_body": False}

    return once
