"""Reads requests' bodies, each bounded in size and time, all of them together in size.

Invariant: what is held is given back once (`free`).  The first bytes of each body are always taken,
so that many large ones do not shut out a short question; connections bound these.
"""

import asyncio

from starlette.datastructures import Headers
from starlette.types import Receive

from flyweight.server.settings import ServerSettings
from flyweight.server.transport.errors import HttpError

ALWAYS = 64 << 10  # bytes of each body that are not counted


class BodyReader:
    """Those of one server; `held` bytes of them, beyond the first of each, are here."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.held = 0

    async def read(self, headers: Headers, receive: Receive) -> bytes:
        """A whole body; empty where its client has left.  Raises `HttpError`."""
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
        """A body of `size` bytes is not needed any more."""
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
