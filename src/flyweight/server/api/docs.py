"""The OpenAPI document, and Swagger UI over it.

Invariant: the page loads nothing but this server's own files and may ask nobody else; they hold
nothing, so they need no key, and the document, which does, is asked for with the reader's.
"""

import gzip
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from flyweight.server.front import Front
from flyweight.server.http.sse import reply

FOLDER = files("flyweight.server") / "swagger"
KINDS = {"js": "text/javascript", "css": "text/css"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {"content-security-policy": POLICY, "x-content-type-options": "nosniff"}


async def openapi(front: Front, request: Request) -> Response:
    from flyweight.server.openapi import document  # it is made of the routes, this one too

    facts = front.client.facts
    return reply(await front.aside(document, facts["vocab"], facts["width"], front.settings))


async def page(front: Front, request: Request) -> Response:
    return Response((FOLDER / "page.html").read_bytes(), 200, HEADERS, "text/html")


async def static(front: Front, request: Request) -> Response:
    """A file of the page; Swagger UI's are kept packed."""
    name = request.url.path.rsplit("/", 1)[1]
    head = {**HEADERS, "cache-control": "max-age=3600"}
    media = KINDS[name.rsplit(".", 1)[1]]
    plain = FOLDER / name
    if plain.is_file():
        return Response(plain.read_bytes(), 200, head, media)
    packed = await front.aside((FOLDER / f"{name}.gz").read_bytes)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(packed, 200, {**head, "content-encoding": "gzip"}, media)
    return Response(await front.aside(gzip.decompress, packed), 200, head, media)
