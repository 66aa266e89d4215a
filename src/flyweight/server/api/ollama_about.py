"""Ollama's routes beside its answers: /api/embed, /api/tags, /api/show.

Invariant: a vector is what /v1/embeddings gives; what is not known of a model is left out or empty,
never made up.
"""

import time
from functools import partial
from hashlib import sha256
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from flyweight.prompts import beginning
from flyweight.server.api.about import all_names
from flyweight.server.api.embeddings import Dimensions, gathered, vectors
from flyweight.server.api.given import Texts
from flyweight.server.api.ollama import KEEP, LATEST, ns
from flyweight.server.api.renaming import named
from flyweight.server.front import Front
from flyweight.server.http.sse import reply
from flyweight.tasks import PoolingParams


class EmbedBody(BaseModel):
    """Texts whose vectors are wanted; `truncate` cuts those that are too long."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    input: str | Texts
    truncate: bool = True
    dimensions: Dimensions | None = None
    keep_alive: str | float | None = Field(None, description=KEEP)


class ShowBody(BaseModel):
    """A model to be told of."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    verbose: bool = Field(False, description="Has no effect.")


async def embed(front: Front, request: Request) -> Response:
    body = front.read(request, await request.body(), EmbedBody)
    began = time.monotonic()
    lane = front.lane(body.model.removesuffix(LATEST), None, None)
    given: list[Any] = [body.input] if isinstance(body.input, str) else list(body.input)
    if body.truncate:
        given = [partial(shortened, front, text) for text in given]
    with named(("prompt", "input")):
        found = await gathered(front, request, given, PoolingParams(), lane, body.dimensions)
    took = time.monotonic() - began

    def written() -> Response:
        return reply(
            {
                "model": body.model,
                "embeddings": [list(vector) for vector in vectors(found, body.dimensions)],
                "total_duration": ns(took),
                "load_duration": 0,
                "prompt_eval_count": sum(len(one.tokens) for one in found),
            }
        )

    return await front.written(written)


def shortened(front: Front, text: str) -> dict[str, Any]:
    """A text as what of it fits into the context."""
    ids = beginning(front.tokenizer, text, front.asking.facts.max_model_len)
    return {"prompt": text, "prompt_token_ids": ids}


async def tags(front: Front, request: Request) -> Response:
    return reply({"models": [card(front, name) for name in all_names(front)]})


async def show(front: Front, request: Request) -> Response:
    body = front.read(request, await request.body(), ShowBody)
    name = body.model.removesuffix(LATEST)
    front.lane(name, None, None)
    portrait, speech = front.ledger.portrait, front.speech
    calls = speech.calls if speech.shows_tools else None
    read = {"tools": calls, "thinking": speech.reasoning}
    more = [what for what, how in read.items() if how is not None]
    return reply(
        {
            "modelfile": "",
            "parameters": "\n".join(f"{k} {v}" for k, v in front.defaults.items()),
            "template": front.tokenizer.chat_template or "",
            "details": card(front, name)["details"],
            "model_info": {
                "general.architecture": portrait.family,
                "general.parameter_count": portrait.parameters,
                "general.context_length": front.asking.facts.max_model_len,
            },
            "capabilities": ["completion", "embedding", *more],
        }
    )


def card(front: Front, name: str) -> dict[str, Any]:
    """A model as Ollama lists it; `digest` tells names apart and no more."""
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(front.created))
    parent = front.names[0] if name in front.asking.facts.adapters else ""
    portrait = front.ledger.portrait
    return {
        "name": name,
        "model": name,
        "modified_at": started,
        "size": front.client.facts["memory"]["weights"],
        "digest": sha256(name.encode()).hexdigest(),
        "details": {
            "parent_model": parent,
            "format": portrait.format,
            "family": portrait.family,
            "families": [portrait.family],
            "parameter_size": portrait.size.replace(" ", ""),
            "quantization_level": portrait.kinds[0],
        },
    }
