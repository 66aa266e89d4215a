"""The OpenAPI document, and Swagger UI over it.

Invariant: the page loads nothing but this server's own files and may ask nobody else; they hold
nothing, so they need no key, and the document, which does, is asked for with the reader's.
"""

import asyncio
import gzip
from collections.abc import Callable
from functools import cache, partial
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from flyweight.server.api_server import ApiServer
from flyweight.server.apis.openapi import make_document
from flyweight.server.apis.route import JSON, ApiTables, Handler
from flyweight.server.transport.replies import encode

FOLDER = files("flyweight.server") / "swagger"
KINDS = {"js": "text/javascript", "css": "text/css"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {"content-security-policy": POLICY, "x-content-type-options": "nosniff"}


def make_openapi_handler(tables: Callable[[], ApiTables]) -> Handler:
    """Serves the document of all routes, which the first request makes; requests that arrive
    meanwhile wait for it.  `tables` is called then, as this route is in them.
    """

    async def openapi(server: ApiServer, request: Request) -> Response:
        if server.document is None:
            making = server.write_in_thread(partial(_encode_document, tables(), server))
            server.document = asyncio.ensure_future(making)
        return Response(await asyncio.shield(server.document), 200, media_type=JSON)

    return openapi


def _encode_document(tables: ApiTables, server: ApiServer) -> bytes:
    facts = server.find().client.facts
    return encode(make_document(tables, facts["vocab"], facts["width"], server.settings))


async def get_page(server: ApiServer, request: Request) -> Response:
    return Response(read_plain("page.html"), 200, HEADERS, "text/html")


async def get_file(server: ApiServer, request: Request) -> Response:
    """A file of the page; Swagger UI's are kept packed."""
    name = request.url.path.rsplit("/", 1)[1]
    head = {**HEADERS, "cache-control": "max-age=3600"}
    media = KINDS[name.rsplit(".", 1)[1]]
    kept = read_packed(name)
    if kept is None:
        return Response(read_plain(name), 200, head, media)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(kept, 200, {**head, "content-encoding": "gzip"}, media)
    return Response(unpack(name), 200, head, media)


@cache
def read_plain(name: str) -> bytes:
    """A file that is small enough to be kept as it is."""
    return (FOLDER / name).read_bytes()


@cache
def read_packed(name: str) -> bytes | None:
    """A file that is kept packed, as it lies there."""
    found = FOLDER / f"{name}.gz"
    return found.read_bytes() if found.is_file() else None


@cache
def unpack(name: str) -> bytes:
    """The same for who cannot unpack: made once, in milliseconds, whoever asks and how often."""
    packed = read_packed(name)
    assert packed is not None, "not one of those that are kept packed"
    return gzip.decompress(packed)
