"""The server's OpenAPI document, made of its routes.

Invariant: every route is in it, with the schema of its body as it is checked, the types of its
reply and of its errors; ranges that depend on the model are the model's, limits are this
server's.
"""

import re
from collections.abc import Iterable
from typing import Any

from pydantic import TypeAdapter

from flyweight import __version__
from flyweight.server.apis import replies
from flyweight.server.apis.body import BOTH, LIMIT, TOKEN
from flyweight.server.apis.route import JSON, ApiRoute, ApiTables
from flyweight.server.apis.sampling_fields import WIDTH
from flyweight.server.settings import ServerSettings

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


def make_document(
    tables: ApiTables, vocab: int, width: int, settings: ServerSettings
) -> dict[str, Any]:
    """For a model of `vocab` pieces and vectors of `width` numbers."""
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
        "security": [{name: []} for name in KEYS] if settings.keys else [],
    }
    _narrow(whole, {TOKEN: vocab, WIDTH: width + 1}, settings)
    for definition in definitions.values():
        if definition.get("additionalProperties") is False:
            _make_nullable(definition)
    return whole


def _make_schemas(routes: Iterable[ApiRoute]) -> tuple[dict[Any, Any], dict[str, Any]]:
    """Schemas by (what it is, "body", "reply" or "error"), and what they refer to."""
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
    """A field that may be left out may be null, whether it is known or not."""
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
    """Puts the model's ranges and the server's limits where their marks are."""
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
