"""Routes as data, the OpenAPI document made of them, and Swagger UI over it.

Invariant: every route is in the document, with the schema of its body as it is checked, and the
types of its reply and errors; ranges that depend on the model are the model's, limits this
server's.  The page loads only this server's own files, which need no key; the document may need
one.
"""

import asyncio
import gzip
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from typing import Any

from pydantic import BaseModel, TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from flyweight import __version__
from flyweight.server.api_server import ApiServer
from flyweight.server.apis import replies
from flyweight.server.apis.body import BOTH, LIMIT, TOKEN
from flyweight.server.apis.sampling_fields import WIDTH
from flyweight.server.settings import ServerSettings
from flyweight.server.transport.errors import HttpError, Shape
from flyweight.server.transport.replies import encode

ERRORS = {  # types of errors by their path's first part
    "/v1/messages": replies.AnthropicRefusal,
    "/api/": replies.OllamaRefusal,
    "": replies.OpenAIRefusal,
}
STREAMS = {"/api/": "application/x-ndjson", "": "text/event-stream"}
ENDS = {"integer": "maximum", "array": "maxItems", "object": "maxProperties"}
TITLE = {"title": "flyweight", "version": __version__}
KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
# Takes the server, the request, and the body if the route has one.
Handler = Callable[..., Coroutine[Any, Any, Response]]
JSON = "application/json"
FOLDER = files("flyweight.server") / "swagger"
KINDS = {"js": "text/javascript", "css": "text/css"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {"content-security-policy": POLICY, "x-content-type-options": "nosniff"}


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """A route: its handler, the type of its body, the type of its reply (in `media`; only JSON has
    a type), and the error format of its API.  An `open` one needs no key; the log has no line for
    each success of a `polled` one.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    body: type[BaseModel] | None = None
    reply: Any = dict[str, Any]
    errors: Shape = HttpError.body
    media: str = JSON
    open: bool = False
    polled: bool = False


@dataclass(frozen=True, slots=True)
class ApiTable:
    """The routes of one API."""

    description: str
    routes: tuple[ApiRoute, ...]


ApiTables = Mapping[str, ApiTable]  # by the name of the API


def make_document(
    tables: ApiTables, vocab: int, width: int, settings: ServerSettings
) -> dict[str, Any]:
    """The document for a vocabulary of `vocab` tokens and vectors of `width` numbers."""
    routes = [route for table in tables.values() for route in table.routes]
    found, definitions = _make_schemas(routes)
    paths: dict[str, Any] = {}
    for i, entry in enumerate(routes):
        path = re.sub(r":\w+}", "}", entry.path)
        operation = paths.setdefault(path, {})[entry.method.lower()] = _make_operation(
            i, entry, found
        )
        operation["tags"] = [name for name, table in tables.items() if entry in table.routes]
    whole = {
        "openapi": "3.1.0",
        "info": TITLE,
        "servers": [{"url": settings.root_path or "/"}],
        "tags": [
            {"name": name, "description": table.description} for name, table in tables.items()
        ],
        "paths": paths,
        "components": {"schemas": definitions, "securitySchemes": KEYS},
        "security": [{name: []} for name in KEYS] if settings.needs_key else [],
    }
    _narrow(whole, {TOKEN: vocab, WIDTH: width + 1}, settings)
    for definition in definitions.values():
        if definition.get("additionalProperties") is False:
            _make_nullable(definition)
    return whole


def _make_schemas(routes: Iterable[ApiRoute]) -> tuple[dict[Any, Any], dict[str, Any]]:
    """Schemas by (route, "body", "reply" or "error"), and their shared definitions."""
    wanted: list[tuple[Any, Any, TypeAdapter[Any]]] = []
    for i, entry in enumerate(routes):
        if entry.body is not None:
            wanted.append(((i, "body"), "validation", TypeAdapter(entry.body)))
        if entry.media == JSON:
            wanted.append(((i, "reply"), "serialization", TypeAdapter(entry.reply)))
        error = _find_by_path(ERRORS, entry.path)
        wanted.append(((i, "error"), "serialization", TypeAdapter(error)))
    template = "#/components/schemas/{model}"
    found, rest = TypeAdapter.json_schemas(wanted, ref_template=template)
    return {key: schema for (key, _), schema in found.items()}, rest.get("$defs", {})


def _make_operation(i: int, entry: ApiRoute, found: dict[Any, Any]) -> dict[str, Any]:
    kinds = {entry.media: {"schema": found.get((i, "reply"), {"type": "string"})}}
    if entry.body is not None and "stream" in entry.body.model_fields:
        kinds[_find_by_path(STREAMS, entry.path)] = {"schema": {}}
    error = {"description": "Why not", "content": {JSON: {"schema": found[i, "error"]}}}
    operation: dict[str, Any] = {
        "summary": entry.summary,
        "responses": {
            "200": {"description": "The answer", "content": kinds},
            "4XX": error,
            "5XX": error,
        },
    }
    if entry.body is not None:
        content = {JSON: {"schema": found[i, "body"]}}
        operation["requestBody"] = {"required": True, "content": content}
    names = re.findall(r"{(\w+)", entry.path)
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    if entry.open:
        operation["security"] = []
    return operation


def _find_by_path(table: dict[str, Any], path: str) -> Any:
    return next(value for start, value in table.items() if path.startswith(start))


def _make_nullable(body: dict[str, Any]) -> None:
    """A field that may be absent may also be null, even if it is unknown."""
    body["additionalProperties"] = {"type": "null"}
    for name, field in body.get("properties", {}).items():
        kinds = [one.get("type") for one in field.get("anyOf", [field])]
        if name in body.get("required", ()) or "null" in kinds:
            continue
        simple = isinstance(field.get("type"), str) and not {"enum", "const"} & field.keys()
        body["properties"][name] = (
            {**field, "type": [field["type"], "null"]}
            if simple
            else {"anyOf": [field, {"type": "null"}]}
        )


def _narrow(node: Any, ends: dict[str, int], settings: ServerSettings) -> None:
    """Replaces marks by the model's ranges and the server's limits."""
    for one in node.values() if isinstance(node, dict) else node:
        if isinstance(one, dict | list):
            _narrow(one, ends, settings)
    if isinstance(node, dict) and isinstance(node.get(LIMIT), str):
        most, both = getattr(settings, node.pop(LIMIT)), node.pop(BOTH, False)
        for kind in node.get("anyOf", [node]):
            if kind.get("type") in ENDS:
                kind[ENDS[kind["type"]]] = most
                if both:
                    kind["minimum"] = -most
    for mark in [mark for mark in ends if isinstance(node, dict) and node.pop(mark, False)]:
        node["exclusiveMaximum"] = ends[mark]


def make_openapi_handler(tables: Callable[[], ApiTables]) -> Handler:
    """Serves the document of all routes, made at the first request; requests that arrive meanwhile
    wait for it.  `tables` is called then, as this route is in them.
    """

    async def openapi(server: ApiServer, request: Request) -> Response:
        if server.document is None:
            making = server.write_in_thread(partial(_encode_document, tables(), server))
            server.document = asyncio.ensure_future(making)
        return Response(await asyncio.shield(server.document), 200, media_type=JSON)

    return openapi


def _encode_document(tables: ApiTables, server: ApiServer) -> bytes:
    facts = server.directory.first.client.facts
    return encode(make_document(tables, facts["vocab"], facts["width"], server.settings))


async def get_page(server: ApiServer, request: Request) -> Response:
    return Response(read_plain("page.html"), 200, HEADERS, "text/html")


async def get_file(server: ApiServer, request: Request) -> Response:
    """A file of the page; Swagger UI's are stored compressed."""
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
    """A file that is stored uncompressed."""
    return (FOLDER / name).read_bytes()


@cache
def read_packed(name: str) -> bytes | None:
    """A compressed file, or None."""
    found = FOLDER / f"{name}.gz"
    return found.read_bytes() if found.is_file() else None


@cache
def unpack(name: str) -> bytes:
    """The file for clients that do not accept gzip, decompressed once."""
    packed = read_packed(name)
    assert packed is not None, "not one of those that are kept packed"
    return gzip.decompress(packed)
