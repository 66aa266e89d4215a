"""The server's own routes: /generate, health, models, version, metrics, debugging.

Invariant: /generate gives the same tokens as /v1/completions with the same options.  Health depends
on the engine's progress, not on an open socket.
"""

import gzip
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from flyweight import __version__
from flyweight.errors import CheckpointError, ConfigError, EngineError
from flyweight.requests.collector import TextPiece
from flyweight.server.admission.request_group import RequestGroup
from flyweight.server.api_server import ApiServer
from flyweight.server.apis.answer import answer, get_collectors
from flyweight.server.apis.body import FIRST
from flyweight.server.apis.fields import Fields
from flyweight.server.apis.sampling_fields import (
    Explain,
    Priority,
    ReturnCost,
    Salt,
    StopText,
    make_field,
    make_sampling_params,
)
from flyweight.server.apis.slo import Slo
from flyweight.server.apis.usage import report_usage
from flyweight.server.engine_client import EngineDown
from flyweight.server.model_entry import ModelEntry
from flyweight.server.pipe import Topic
from flyweight.server.transport.errors import HttpError, hide_folders
from flyweight.server.transport.replies import PING, encode_event, reply

OTHER_FIELDS = {  # fields that are no sampling options
    "prompt", "stream", "cache_salt", "priority", "slo", "return_cache_explanation",
    "return_cost",
}  # fmt: skip


async def get_health(server: ApiServer, request: Request) -> Response:
    """200 if the engine process runs and, while it has work, makes progress; names models that
    could not be loaded.
    """
    directory = server.directory
    clients = [entry.client for entry in directory.entries if entry.model is not None]
    if directory.host.restarting or not all(client.ready for client in clients):
        raise HttpError(503, "the engine is restarting; retry later", code="engine_down")
    for client in clients:
        client.ping()
        silent = client.measure_silence()
        if silent > server.settings.engine_timeout:
            raise HttpError(
                503, f"the engine made no progress for {silent:.0f} s", code="engine_unresponsive"
            )
    failed = [entry.name for entry in directory.entries if entry.state == "failed"]
    return reply({"status": "ok", **({"failed": failed} if failed else {})})


async def get_ready(server: ApiServer, request: Request) -> Response:
    """200 if new requests are accepted."""
    if server.queue.draining:
        raise server.queue.make_draining_error()
    return await get_health(server, request)


async def get_load(server: ApiServer, request: Request) -> Response:
    """vLLM's: running HTTP requests, this one not counted."""
    return reply({"server_load": server.http.active - 1})


async def list_models(server: ApiServer, request: Request) -> Response:
    cards = [make_card(entry, name) for entry in server.directory.entries for name in entry.names]
    return reply({"object": "list", "data": cards})


async def get_model(server: ApiServer, request: Request) -> Response:
    name = request.path_params["model"]
    found = server.directory.find(name)
    return reply(make_card(found, name if name in found.names else found.name))


class ModelBody(Fields):
    """A model to be loaded or unloaded."""

    model: str


async def load_model(server: ApiServer, request: Request, body: ModelBody) -> Response:
    """Returns once the model is loaded; at once if it is.  Raises `EngineDown` while the engine
    process loads it again.
    """
    model = await server.open(request, body.model)
    if not model.client.ready:
        raise EngineDown("the engine is restarting; retry later")
    return reply(make_card(server.directory.find(body.model), body.model))


async def unload_model(server: ApiServer, request: Request, body: ModelBody) -> Response:
    entry = server.directory.find(body.model)
    await server.directory.unload(entry)
    return reply(make_card(entry, body.model))


async def reload_models(server: ApiServer, request: Request) -> Response:
    """Reads the models file again, or lets replicas read theirs, as SIGHUP does."""
    try:
        changes = await server.updates.reload()
    except (CheckpointError, ConfigError) as error:
        words = f"the models were not changed: {hide_folders(str(error))}"
        raise HttpError(409, words, code="models_unchanged") from None
    except EngineError:  # of the replicas' cluster, whose words may have addresses
        words = "the replicas' cluster failed; the server's log says why"
        raise HttpError(503, words, code="engine_down") from None
    return reply(asdict(changes))


async def get_version(server: ApiServer, request: Request) -> Response:
    return reply({"version": __version__})


async def get_server_info(server: ApiServer, request: Request) -> Response:
    facts = find_entry(server, request).client.facts
    return reply({"version": __version__, "engine": facts})


async def get_effective(server: ApiServer, request: Request) -> Response:
    """Each feature: what was requested, what is in effect, why, and what it has done so far."""
    entry = find_entry(server, request)
    if entry.model is None:
        raise make_unloaded_error(entry)
    return reply(entry.model.effective.document(entry.model.counts))


async def reset_prefix_cache(server: ApiServer, request: Request) -> Response:
    return await query_engine(server, request, "reset")


async def get_metrics(server: ApiServer, request: Request) -> Response:
    """Prometheus' text, or OpenMetrics if accepted; compressed if accepted."""
    page, media = server.metrics.page(request.headers.get("accept", ""))
    head = {"content-type": media, "vary": "accept, accept-encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        page, head["content-encoding"] = gzip.compress(page), "gzip"
    return Response(page, headers=head)


async def get_steps(server: ApiServer, request: Request) -> Response:
    return await query_engine(server, request, "steps")


async def get_kv(server: ApiServer, request: Request) -> Response:
    return await query_engine(server, request, "kv")


def find_entry(server: ApiServer, request: Request) -> ModelEntry:
    """The model that the query's `model` names, or the default; it is not loaded for this."""
    return server.directory.find(request.query_params.get("model"))


async def query_engine(server: ApiServer, request: Request, topic: Topic) -> Response:
    entry = find_entry(server, request)
    if entry.model is None:
        raise make_unloaded_error(entry)
    return reply(await entry.client.query(topic))


def make_unloaded_error(entry: ModelEntry) -> HttpError:
    return HttpError(409, f"model = {entry.name} is not loaded", "model", code="model_not_loaded")


def find_parent(entry: ModelEntry, name: str) -> str:
    """The name of an adapter's base model; "" for the model itself."""
    adapter = name in entry.options.settings.adapters
    return entry.parents.get(name, entry.name) if adapter else ""


def make_card(entry: ModelEntry, name: str) -> dict[str, Any]:
    """A model as OpenAI lists it, with vLLM's fields; an adapter has no passport.  What is not
    known before it is loaded is null.
    """
    model, own, loading = entry.model, entry.own, entry.loading_seconds
    passport = model.effective.summary.quality.passport if model is not None else None
    return {
        "id": name,
        "object": "model",
        "created": entry.created,
        "owned_by": "flyweight",
        "root": own[0],
        "parent": find_parent(entry, name) or None,
        "max_model_len": entry.client.facts.get("max_model_len"),
        "permission": [],
        "quality": passport.summarize() if passport is not None and name in own else None,
        "state": entry.state,
        "loading_seconds": None if loading is None else round(loading, 3),
        "failure": entry.failure or None,
    }


class GenerateBody(Fields):
    """A prompt to be continued."""

    prompt: str = Field(min_length=1)
    max_tokens: int = Field(256, ge=1, lt=2**31)
    temperature: float = make_field("temperature", 0.7)
    top_p: float = make_field("top_p", 0.95)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: StopText | Annotated[list[StopText], FIRST] | None = None
    stream: bool = False
    cache_salt: Salt = None
    priority: Priority = None
    slo: Slo = None
    return_cache_explanation: Explain = None
    return_cost: ReturnCost = None


async def generate(server: ApiServer, request: Request, body: GenerateBody) -> Response:
    model = await server.open_to_generate(request)
    every = body.model_dump(exclude=OTHER_FIELDS, exclude_none=True)
    given = {name: value for name, value in every.items() if name in body.model_fields_set}
    params = make_sampling_params({**every, **model.defaults, **given})
    context = model.make_context(
        None, body.cache_salt, body.priority, body.return_cache_explanation, body.return_cost
    )
    prepared = await model.prepare([body.prompt], params, context)
    return await answer(server, model, request, prepared, GenerateWriter, stream=body.stream)


class GenerateWriter:
    """Writes one continuation."""

    media = "text/event-stream"
    ping = PING
    id = ""

    def __init__(self, group: RequestGroup) -> None:
        self.model = group.model
        (self.collector,) = get_collectors(group)

    def write_reply(self) -> dict[str, Any]:
        return {"text": self.collector.output().outputs[0].text, **self._report_usage()}

    def begin(self) -> bytes:
        return b""

    def write_piece(self, prompt: int, piece: TextPiece) -> bytes:
        return encode_event({"text": piece.text})

    def end(self) -> bytes:
        return encode_event({"text": "", **self._report_usage()})

    def write_error(self, error: HttpError) -> bytes:
        return encode_event(error.body())

    def _report_usage(self) -> dict[str, Any]:
        return {"tokens": self.collector.produced, **report_usage(self.model, [self.collector])}
