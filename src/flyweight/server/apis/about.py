"""What the server tells of itself: health, models, version, what the engine does.

Invariant: health is a statement about work being done, not about a socket being open.
"""

import gzip
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from flyweight import __version__
from flyweight.server.front import ServedModel
from flyweight.server.transport.errors import HttpError
from flyweight.server.transport.replies import reply


async def health(front: ServedModel, request: Request) -> Response:
    """200 while the engine lives and, where it has work, gets on with it."""
    if not front.client.ready:
        raise HttpError(503, "the engine is restarting; retry later", code="engine_down")
    front.client.ping()
    silent = front.client.silent()
    if silent > front.settings.stuck_seconds:
        raise HttpError(
            503, f"the engine made no progress for {silent:.0f} s", code="engine_unresponsive"
        )
    return reply({"status": "ok"})


async def ready(front: ServedModel, request: Request) -> Response:
    """200 while new requests are taken."""
    if front.door.draining:
        raise front.door.closed()
    return await health(front, request)


async def load(front: ServedModel, request: Request) -> Response:
    """Under vLLM's name: HTTP requests under way, this one left out."""
    return reply({"server_load": front.counts.http.active - 1})


async def models(front: ServedModel, request: Request) -> Response:
    return reply({"object": "list", "data": [card(front, name) for name in all_names(front)]})


async def model(front: ServedModel, request: Request) -> Response:
    name = request.path_params["model"]
    if name in front.also:
        name = front.names[0]
    if name not in all_names(front):
        raise front.unserved(name)
    return reply(card(front, name))


async def version(front: ServedModel, request: Request) -> Response:
    return reply({"version": __version__})


async def server_info(front: ServedModel, request: Request) -> Response:
    return reply({"version": __version__, "engine": front.client.facts})


async def effective(front: ServedModel, request: Request) -> Response:
    """Each feature: what was asked for, what is active, why, and what it has done so far."""
    return reply(front.ledger.document(front.counts))


async def reset_prefix_cache(front: ServedModel, request: Request) -> Response:
    return reply(await front.client.ask("reset"))


async def metrics(front: ServedModel, request: Request) -> Response:
    """Prometheus' text, or OpenMetrics where it is asked for; packed for who can unpack."""
    page, media = front.metrics.page(request.headers.get("accept", ""))
    head = {"content-type": media, "vary": "accept, accept-encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        page, head["content-encoding"] = gzip.compress(page), "gzip"
    return Response(page, headers=head)


async def steps(front: ServedModel, request: Request) -> Response:
    return reply(await front.client.ask("steps"))


async def kv(front: ServedModel, request: Request) -> Response:
    return reply(await front.client.ask("kv"))


def all_names(front: ServedModel) -> list[str]:
    """The model under all its names, then its adapters."""
    return [*front.names, *front.asking.facts.adapters]


def parent_of(front: ServedModel, name: str) -> str:
    """What an adapter's base model is called; "" for the model itself."""
    adapter = name in front.asking.facts.adapters
    return front.settings.parents.get(name, front.names[0]) if adapter else ""


def card(front: ServedModel, name: str) -> dict[str, Any]:
    """A model as OpenAI lists it, with vLLM's fields."""
    return {
        "id": name,
        "object": "model",
        "created": front.created,
        "owned_by": "flyweight",
        "root": front.names[0],
        "parent": parent_of(front, name) or None,
        "max_model_len": front.asking.facts.max_model_len,
        "permission": [],
    }
