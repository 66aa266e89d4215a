"""What the server tells of itself: health, models, version, what the engine does.

Invariant: health is a statement about work being done, not about a socket being open.
"""

import gzip
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from flyweight import __version__
from flyweight.server.api_server import ApiServer
from flyweight.server.served_model import ServedModel
from flyweight.server.transport.errors import HttpError
from flyweight.server.transport.replies import reply


async def get_health(server: ApiServer, request: Request) -> Response:
    """200 while the engine lives and, where it has work, gets on with it."""
    model = server.find()
    if not model.client.ready:
        raise HttpError(503, "the engine is restarting; retry later", code="engine_down")
    model.client.ping()
    silent = model.client.measure_silence()
    if silent > server.settings.engine_timeout:
        raise HttpError(
            503, f"the engine made no progress for {silent:.0f} s", code="engine_unresponsive"
        )
    return reply({"status": "ok"})


async def get_ready(server: ApiServer, request: Request) -> Response:
    """200 while new requests are taken."""
    if server.queue.draining:
        raise server.queue.make_draining_error()
    return await get_health(server, request)


async def get_load(server: ApiServer, request: Request) -> Response:
    """Under vLLM's name: HTTP requests under way, this one left out."""
    return reply({"server_load": server.http.active - 1})


async def list_models(server: ApiServer, request: Request) -> Response:
    cards = [make_card(model, name) for model in server.models for name in model.all_names]
    return reply({"object": "list", "data": cards})


async def get_model(server: ApiServer, request: Request) -> Response:
    name = request.path_params["model"]
    found = server.find(name)
    return reply(make_card(found, found.names[0] if name in found.aliases else name))


async def get_version(server: ApiServer, request: Request) -> Response:
    return reply({"version": __version__})


async def get_server_info(server: ApiServer, request: Request) -> Response:
    return reply({"version": __version__, "engine": server.find().client.facts})


async def get_effective(server: ApiServer, request: Request) -> Response:
    """Each feature: what was asked for, what is active, why, and what it has done so far."""
    model = server.find()
    return reply(model.effective.document(model.counts))


async def reset_prefix_cache(server: ApiServer, request: Request) -> Response:
    return reply(await server.find().client.ask("reset"))


async def get_metrics(server: ApiServer, request: Request) -> Response:
    """Prometheus' text, or OpenMetrics where it is asked for; packed for who can unpack."""
    page, media = server.metrics.page(request.headers.get("accept", ""))
    head = {"content-type": media, "vary": "accept, accept-encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        page, head["content-encoding"] = gzip.compress(page), "gzip"
    return Response(page, headers=head)


async def get_steps(server: ApiServer, request: Request) -> Response:
    return reply(await server.find().client.ask("steps"))


async def get_kv(server: ApiServer, request: Request) -> Response:
    return reply(await server.find().client.ask("kv"))


def find_parent(model: ServedModel, name: str) -> str:
    """What an adapter's base model is called; "" for the model itself."""
    adapter = name in model.preparer.facts.adapters
    return model.settings.parents.get(name, model.names[0]) if adapter else ""


def make_card(model: ServedModel, name: str) -> dict[str, Any]:
    """A model as OpenAI lists it, with vLLM's fields."""
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "flyweight",
        "root": model.names[0],
        "parent": find_parent(model, name) or None,
        "max_model_len": model.max_model_len,
        "permission": [],
    }
