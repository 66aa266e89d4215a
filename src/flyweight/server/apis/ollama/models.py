"""Ollama's routes beside its answers: /api/embed, /api/tags, /api/show.

Invariant: a vector is what /v1/embeddings gives; what is not known of a model is left out or empty,
never made up.
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
from flyweight.requests.prompts import beginning
from flyweight.server.apis.about import all_names, parent_of
from flyweight.server.apis.ollama.handlers import ns
from flyweight.server.apis.ollama.schema import (
    EmbedBody,
    EmbeddingsBody,
    Shared,
    ShowBody,
    tagged,
)
from flyweight.server.apis.openai.embeddings import gathered, vectors
from flyweight.server.apis.usage import explained, vector_timings
from flyweight.server.front import ServedModel
from flyweight.server.transport.replies import reply

NEVER = "9999-12-31T23:59:59Z"  # when a model is unloaded, as a client in Go can read it


async def embed(front: ServedModel, request: Request) -> Response:
    body = front.read(request, await request.body(), EmbedBody)
    began = time.monotonic()
    given: list[Any] = body.input if isinstance(body.input, list) else [body.input]
    if not body.input:
        given = []
    if body.truncate:
        given = [partial(shortened, front, text) for text in given]
    size = body.dimensions or None
    found = await vectors_of(front, request, body, given, size)
    took = time.monotonic() - began

    def written() -> Response:
        return reply(
            {
                "model": body.model,
                "embeddings": [list(vector) for vector in vectors(found, size)],
                "total_duration": ns(took),
                "load_duration": 0,
                "prompt_eval_count": sum(len(one.tokens) for one in found),
                **spent(front, found),
            }
        )

    return await front.written(written)


async def embeddings(front: ServedModel, request: Request) -> Response:
    """One vector, in the form that /api/embed took the place of."""
    body = front.read(request, await request.body(), EmbeddingsBody)
    given = [partial(shortened, front, body.prompt)] if body.prompt else []
    with field_names({"input": "prompt"}):
        found = await vectors_of(front, request, body, given, None)
    flat = [one for vector in vectors(found, None) for one in vector]
    return reply({"embedding": flat, **spent(front, found)})


def spent(front: ServedModel, found: list[VectorCollector]) -> dict[str, Any]:
    """What vectors cost beside what Ollama tells of it."""
    if not found:
        return {}
    cached = sum(one.cached for one in found)
    return {
        "cached_tokens": cached,
        "metrics": vector_timings(*found),
        **explained(front, *found),
    }


async def vectors_of(
    front: ServedModel,
    request: Request,
    body: EmbedBody | EmbeddingsBody,
    given: list[Any],
    size: int | None,
) -> list[VectorCollector]:
    """What the engine made of texts, of which there may be none: that only loads a model."""
    options = body.options or Shared.model_validate({})
    options.check(front)
    name, explain = tagged(front, body.model), body.return_cache_explanation
    lane = front.lane(name, options.cache_salt, options.priority, explain)
    if not given:
        return []
    with field_names({"prompt": "input"}):
        return await gathered(front, request, given, PoolingParams(), lane, size)


def shortened(front: ServedModel, text: str) -> dict[str, Any]:
    """A text as what of it fits into the context."""
    ids = beginning(front.tokenizer, text, front.asking.facts.max_model_len)
    return {"prompt": text, "prompt_token_ids": ids}


async def tags(front: ServedModel, request: Request) -> Response:
    return reply({"models": [card(front, name) for name in all_names(front)]})


async def running(front: ServedModel, request: Request) -> Response:
    """The models that are loaded, which are those that are served; nothing unloads them."""
    context = front.asking.facts.max_model_len
    loaded = {"expires_at": NEVER, "size_vram": 0, "context_length": context}
    known = [card(front, name) for name in all_names(front)]
    return reply({"models": [{**without(one, "modified_at"), **loaded} for one in known]})


def without(given: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key != name}


async def show(front: ServedModel, request: Request) -> Response:
    body = front.read(request, await request.body(), ShowBody)
    if not (body.model or body.name):
        raise RequestError("is missing", "model")
    name = tagged(front, body.model or body.name)
    front.lane(name, None, None)
    portrait, speech = front.ledger.portrait, front.speech
    calls = speech.calls if speech.shows_tools else None
    read = {"tools": calls, "thinking": speech.reasoning}
    more = [what for what, how in read.items() if how is not None]
    return reply(
        {
            "license": "",
            "modified_at": card(front, name)["modified_at"],
            "modelfile": "",
            "parameters": "\n".join(f"{k} {v}" for k, v in front.defaults.items()),
            "template": front.tokenizer.chat_template or "",
            "details": card(front, name)["details"],
            "model_info": {
                "general.architecture": portrait.family,
                "general.parameter_count": portrait.parameters,
                f"{portrait.family}.context_length": front.asking.facts.max_model_len,
                f"{portrait.family}.embedding_length": front.client.facts["width"],
            },
            "capabilities": ["completion", "embedding", *more],
        }
    )


def card(front: ServedModel, name: str) -> dict[str, Any]:
    """A model as Ollama lists it; `digest` tells names apart and no more."""
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(front.created))
    portrait = front.ledger.portrait
    return {
        "name": name,
        "model": name,
        "modified_at": started,
        "size": front.client.facts["memory"]["weights"],
        "digest": sha256(name.encode()).hexdigest(),
        "details": {
            "parent_model": parent_of(front, name),
            "format": portrait.format,
            "family": portrait.family,
            "families": [portrait.family],
            "parameter_size": portrait.size.replace(" ", ""),
            "quantization_level": portrait.kinds[0],
        },
    }
