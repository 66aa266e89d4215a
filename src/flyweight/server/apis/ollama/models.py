"""Ollama's other routes: /api/embed, /api/tags, /api/show.

Invariant: a vector is the one that /v1/embeddings returns; what is not known of a model is left out
or empty.
"""

import time
from functools import partial
from hashlib import sha256
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from flyweight.errors import RequestError, field_names
from flyweight.params.tasks import PoolingParams
from flyweight.requests.collector import VectorCollector
from flyweight.requests.prompts import encode_beginning
from flyweight.server.api_server import ApiServer
from flyweight.server.apis.ollama.handlers import open_model, to_ns
from flyweight.server.apis.ollama.schema import (
    EmbedBody,
    EmbeddingsBody,
    Shared,
    ShowBody,
    resolve_name,
)
from flyweight.server.apis.openai.embeddings import compute_vectors, get_vectors
from flyweight.server.apis.own_routes import find_parent
from flyweight.server.apis.usage import measure_vector_timings, report_extras
from flyweight.server.model_entry import ModelEntry
from flyweight.server.served_model import ServedModel
from flyweight.server.transport.replies import reply
from flyweight.server.transport.request_log import get_record

LONGEST = 10.0**9  # seconds that a client's time can hold
NEVER = "9999-12-31T23:59:59Z"  # when a model is unloaded, as a client in Go can read it


async def embed(server: ApiServer, request: Request, body: EmbedBody) -> Response:
    model = await open_model(server, request, body.model, body.keep_alive)
    began = time.monotonic()
    given: list[Any] = body.input if isinstance(body.input, list) else [body.input]
    if not body.input:
        given = []
    if body.truncate:
        given = [partial(shorten_text, model, text) for text in given]
    size = body.dimensions or None
    found = await embed_texts(server, model, request, body, given, size)
    took, loading = time.monotonic() - began, get_record(request.scope).loading

    def write() -> Response:
        return reply(
            {
                "model": body.model,
                "embeddings": [list(vector) for vector in get_vectors(found, size)],
                "total_duration": to_ns(loading + took),
                "load_duration": to_ns(loading),
                "prompt_eval_count": sum(len(one.tokens) for one in found),
                **report_usage(model, found),
            }
        )

    return await server.write_in_thread(write)


async def embed_one(server: ApiServer, request: Request, body: EmbeddingsBody) -> Response:
    """One vector, in the format before /api/embed."""
    model = await open_model(server, request, body.model, body.keep_alive)
    given = [partial(shorten_text, model, body.prompt)] if body.prompt else []
    with field_names({"input": "prompt"}):
        found = await embed_texts(server, model, request, body, given, None)
    flat = [one for vector in get_vectors(found, None) for one in vector]
    return reply({"embedding": flat, **report_usage(model, found)})


def report_usage(model: ServedModel, found: list[VectorCollector]) -> dict[str, Any]:
    """What vectors cost, in addition to Ollama's own fields."""
    if not found:
        return {}
    cached = sum(one.cached for one in found)
    return {
        "cached_tokens": cached,
        "metrics": measure_vector_timings(*found),
        **report_extras(model, *found),
    }


async def embed_texts(
    server: ApiServer,
    model: ServedModel,
    request: Request,
    body: EmbedBody | EmbeddingsBody,
    given: list[Any],
    size: int | None,
) -> list[VectorCollector]:
    """The vectors of texts; without any, the model is only loaded."""
    options = body.options or Shared.model_validate({})
    name, explain = resolve_name(model.serves, body.model), body.return_cache_explanation
    context = model.make_context(
        name, options.cache_salt, options.priority, explain, body.return_cost
    )
    if not given:
        return []
    with field_names({"prompt": "input"}):
        return await compute_vectors(server, model, request, given, PoolingParams(), context, size)


def shorten_text(model: ServedModel, text: str) -> dict[str, Any]:
    """As much of a text as fits into the context."""
    ids = encode_beginning(model.tokenizer, text, model.max_model_len)
    return {"prompt": text, "prompt_token_ids": ids}


async def list_models(server: ApiServer, request: Request) -> Response:
    cards = [make_card(entry, name) for entry in server.directory.entries for name in entry.names]
    return reply({"models": cards})


async def list_running(server: ApiServer, request: Request) -> Response:
    """The models that are loaded."""
    found = []
    for entry in server.directory.entries:
        if entry.model is None or entry.state != "loaded":
            continue
        more = {"expires_at": tell_expiry(entry), "size_vram": 0}
        for name in entry.names:
            card = make_card(entry, name)
            del card["modified_at"]
            found.append({**card, **more, "context_length": entry.model.max_model_len})
    return reply({"models": found})


def tell_expiry(entry: ModelEntry) -> str:
    """When a loaded model will be unloaded if it is not used."""
    assert entry.model is not None
    left = entry.model.used + entry.keep_alive - time.monotonic()
    if left > LONGEST:
        return NEVER
    return format_time(time.time() + max(0.0, left))


def format_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


async def show(server: ApiServer, request: Request, body: ShowBody) -> Response:
    if not (body.model or body.name):
        raise RequestError("is missing", "model", code="missing_field")
    name = resolve_name(server.serves, body.model or body.name)
    model = await server.open(request, name)
    card = make_card(server.directory.find(name), name)
    summary, chat_format = model.effective.summary, model.chat_format
    calls = chat_format.calls if chat_format.shows_tools else None
    known = {"tools": calls, "thinking": chat_format.reasoning}
    more = [what for what, how in known.items() if how is not None]
    return reply(
        {
            "license": "",
            "modified_at": card["modified_at"],
            "modelfile": "",
            "parameters": "\n".join(f"{k} {v}" for k, v in model.defaults.items()),
            "template": model.tokenizer.chat_template or "",
            "details": card["details"],
            "model_info": {
                "general.architecture": summary.family,
                "general.parameter_count": summary.parameters,
                f"{summary.family}.context_length": model.max_model_len,
                f"{summary.family}.embedding_length": model.client.facts["width"],
            },
            "capabilities": ["completion", "embedding", *more],
        }
    )


def make_card(entry: ModelEntry, name: str) -> dict[str, Any]:
    """A model as Ollama lists it; `digest` only distinguishes names.  What is not known before it
    is loaded is empty.
    """
    summary = entry.model.effective.summary if entry.model is not None else None
    memory = entry.client.facts.get("memory", {})
    return {
        "name": name,
        "model": name,
        "modified_at": format_time(entry.created),
        "size": memory.get("weights", 0),
        "digest": sha256(name.encode()).hexdigest(),
        "details": {
            "parent_model": find_parent(entry, name),
            "format": summary.format if summary else "",
            "family": summary.family if summary else "",
            "families": [summary.family] if summary else [],
            "parameter_size": summary.size.replace(" ", "") if summary else "",
            "quantization_level": summary.kinds[0] if summary else "",
        },
    }
