"""CORS: the web pages that may send requests.

Invariant: a page of another origin is refused unless its origin is allowed.  A preflight needs no
key, as browsers send none with it, and returns only what is allowed.  Knows no route.
"""

import re
from collections.abc import Sequence

from starlette.datastructures import Headers

from flyweight.server.settings import ServerSettings
from flyweight.server.transport.errors import HttpError

ANY = "*"
# Headers a page may read.
EXPOSED = (
    "x-request-id, x-ignored-params, x-ignored-schema-keywords, retry-after, "
    "x-predicted-ttft-ms, x-predicted-e2el-ms, x-flyweight-degraded"
)
REMEMBERED = "600"  # seconds a browser need not repeat a preflight request
NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
MOST_NAMES = 64
Given = list[tuple[bytes, bytes]]


class CorsPolicy:
    """The allowed origins, methods and headers of one server."""

    def __init__(self, settings: ServerSettings) -> None:
        self.named = {origin.rstrip("/").lower() for origin in settings.allowed_origins}
        self.methods = settings.allowed_methods
        self.headers = {name.lower() for name in settings.allowed_headers}
        self.credentials = settings.allow_credentials

    def check(self, headers: Headers, host: str) -> Given:
        """The headers of every response to a request of this origin.  Raises `HttpError` if the
        origin is not allowed.
        """
        given = headers.getlist("origin")
        if not given:
            return self._make_headers("")
        if len(given) > 1:
            raise HttpError(400, "there are several Origin headers", "Origin")
        origin = given[0].lower()
        if self._allows(origin):
            return self._make_headers(given[0])
        if origin not in (f"http://{host.lower()}", f"https://{host.lower()}"):
            raise HttpError(
                403, "this Origin is not allowed; add it with --allowed-origins", "Origin"
            )
        return self._make_headers("")

    def preflight(self, method: str, headers: Headers) -> Given | None:
        """The additional headers of a preflight response; None if this is not a preflight.  Raises
        `HttpError` if it is refused.
        """
        wanted = headers.get("access-control-request-method")
        origin = headers.get("origin")
        if method != "OPTIONS" or wanted is None or origin is None:
            return None
        if not self._allows(origin.lower()):
            return None
        if wanted not in self.methods and ANY not in self.methods:
            raise HttpError(403, "this method is not allowed; add it with --allowed-methods")
        requested = headers.get("access-control-request-headers", "")
        names = [name.strip() for name in requested.split(",") if name.strip()]
        _check_names(names, self.headers)
        found = [
            ("access-control-allow-methods", wanted),
            ("access-control-max-age", REMEMBERED),
        ]
        if names:
            found.append(("access-control-allow-headers", ", ".join(names)))
        if headers.get("access-control-request-private-network") == "true":
            found.append(("access-control-allow-private-network", "true"))
        return [(name.encode(), value.encode("latin-1")) for name, value in found]

    def _allows(self, origin: str) -> bool:
        return ANY in self.named or origin in self.named

    def _make_headers(self, origin: str) -> Given:
        """Headers of a response to an allowed `origin`, or to any other request (empty)."""
        if not self.named:
            return []
        if ANY in self.named:
            return [*_allow_origin(ANY)] if origin else []
        vary = (b"vary", b"Origin")
        if not origin:
            return [vary]
        allowed = [(b"access-control-allow-credentials", b"true")] if self.credentials else []
        return [vary, *_allow_origin(origin), *allowed]


def _allow_origin(origin: str) -> Given:
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", EXPOSED.encode()),
    ]


def _check_names(names: Sequence[str], allowed: set[str]) -> None:
    if len(names) > MOST_NAMES or not all(NAME.fullmatch(name) for name in names):
        raise HttpError(400, "the header names are not valid", "Access-Control-Request-Headers")
    if ANY not in allowed and not {name.lower() for name in names} <= allowed:
        raise HttpError(403, "these headers are not allowed; add them with --allowed-headers")
