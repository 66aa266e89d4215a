"""OpenAI's /v1/embeddings: prompts in, a vector per prompt out.

Invariant: a vector is the one that `LLM.embed` returns for the prompt; cut to `dimensions` it has
length 1 again.
"""

from array import array
from base64 import b64encode
from collections.abc import Sequence
from math import hypot
from typing import Annotated, Any, Literal
from uuid import uuid4

from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from flyweight.errors import RequestError, field_names
from flyweight.params.tasks import PoolingParams
from flyweight.requests.collector import VectorCollector
from flyweight.requests.prompts import RequestContext
from flyweight.server.api_server import ApiServer
from flyweight.server.apis.fields import Fields
from flyweight.server.apis.openai.chat import render_prompt
from flyweight.server.apis.openai.chat_schema import ChatBody, Message
from flyweight.server.apis.openai.idle_time import IdleTime, apply_idle_time
from flyweight.server.apis.prompt_fields import (
    Ids,
    choose_source,
    fit_prompts,
    require_source,
    split_prompts,
)
from flyweight.server.apis.sampling_fields import (
    WIDTH,
    Explain,
    Idle,
    Priority,
    RequestId,
    ReturnCost,
    Text,
    Truncation,
)
from flyweight.server.apis.usage import measure_vector_timings, report_extras
from flyweight.server.request_model import RequestModel
from flyweight.server.served_model import ServedModel
from flyweight.server.transport.errors import HttpError
from flyweight.server.transport.replies import reply, run_while_connected
from flyweight.server.transport.request_log import get_record

MANY = Field(min_length=1, fail_fast=True)
SOURCES = ("input", "messages")  # one of them is what is read
OF_CHAT = ("messages", "add_special_tokens", "truncate_prompt_tokens", "truncation_side")
Dimensions = Annotated[int, Field(ge=1, lt=2**31, json_schema_extra={WIDTH: True})]


class EmbeddingBody(Fields):
    """Prompts whose vectors are requested."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [require_source("input", ["messages"]), require_source("messages", ["input"])]
        }
    )

    model: str | None = None
    input: Text | Ids | Annotated[list[Text], MANY] | Annotated[list[Ids], MANY] | None = None
    messages: list[Message] | None = Field(None, min_length=1, fail_fast=True)
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Dimensions | None = None
    user: Idle = None
    request_id: RequestId = None
    truncate_prompt_tokens: Truncation = None
    truncation_side: Literal["left", "right"] | None = None
    pooling: Literal["last", "mean", "cls"] | None = None
    normalize: bool | None = None
    use_activation: bool | None = Field(None, description="vLLM's name for `normalize`.")
    embed_dtype: Literal["float32"] | None = None
    endianness: Literal["native", "little"] | None = None
    add_special_tokens: bool | None = None
    priority: Priority = None
    cache_salt: str | None = Field(None, min_length=1, max_length=1024)
    return_cache_explanation: Explain = None
    return_cost: ReturnCost = None
    ttl: IdleTime = None

    def prompts(self, model: RequestModel) -> list[Any]:
        """The separate prompts.  Raises `RequestError`."""
        choose_source(self, SOURCES)
        if self.messages is not None:
            own = {name: getattr(self, name) for name in OF_CHAT}
            body = ChatBody(add_generation_prompt=False, **own)
            return [render_prompt(model, body, model.tokenizer, answer=0)]
        return fit_prompts(split_prompts(self.input), self, model, answer=0)

    def to_params(self) -> PoolingParams:
        given = (self.normalize, self.use_activation, True)
        normalize = next(flag for flag in given if flag is not None)
        return PoolingParams(self.pooling or "last", normalize)


async def create_embeddings(server: ApiServer, request: Request, body: EmbeddingBody) -> Response:
    model = await server.open(request, body.model)
    apply_idle_time(server, request, body.model, body.ttl)
    context = model.make_context(
        body.model, body.cache_salt, body.priority, body.return_cache_explanation, body.return_cost
    )
    with field_names({"prompt": "input" if body.messages is None else "messages"}):
        prompts = await model.run_in_thread(body.prompts, model)
        given = await compute_vectors(
            server, model, request, prompts, body.to_params(), context, body.dimensions
        )
    record = get_record(request.scope)
    record.reply = f"embd-{body.request_id or uuid4().hex}"
    return await server.write_in_thread(lambda: reply(make_reply(record.reply, model, body, given)))


def make_reply(
    id: str, model: RequestModel, body: EmbeddingBody, given: Sequence[VectorCollector]
) -> dict[str, Any]:
    """OpenAI's reply."""
    found = get_vectors(given, body.dimensions)
    form = encode_base64 if body.encoding_format == "base64" else list
    data = [
        {"object": "embedding", "index": i, "embedding": form(vector)}
        for i, vector in enumerate(found)
    ]
    return {
        "id": id,
        "object": "list",
        "created": model.now(),
        "model": body.model or model.names[0],
        "data": data,
        "usage": count_usage(given),
        "metrics": measure_vector_timings(*given),
        **report_extras(model, *given),
    }


async def compute_vectors(
    server: ApiServer,
    model: ServedModel,
    request: Request,
    prompts: Sequence[Any],
    params: PoolingParams,
    context: RequestContext,
    dimensions: int | None,
) -> list[VectorCollector]:
    """A collector with a vector for each prompt.  Raises `HttpError`."""
    check_dimensions(dimensions, model.client.facts["width"])
    prepared = await model.prepare(prompts, params, context)
    with server.begin(model, prepared, request) as group:
        collectors = await run_while_connected(request, group.wait_for_all())
    found: list[VectorCollector] = []
    for collector in collectors:
        assert isinstance(collector, VectorCollector)
        if collector.event is None or collector.event.vector is None:
            raise HttpError(500, "the engine failed on this request", code="engine_error")
        found.append(collector)
    return found


def check_dimensions(dimensions: int | None, width: int) -> None:
    """Raises `RequestError` where more are requested than a vector has."""
    if dimensions is not None and dimensions > width:
        raise RequestError(
            f"is more than the {width} dimensions of this model's vectors",
            "dimensions",
            value=dimensions,
            allowed=f"1 to {width}",
        )


def get_vectors(given: Sequence[VectorCollector], dimensions: int | None) -> list[Sequence[float]]:
    """The computed vectors, with the requested number of dimensions."""
    found: list[Sequence[float]] = []
    for one in given:
        assert one.event is not None and one.event.vector is not None
        vector: Sequence[float] = one.event.vector
        pooling = one.request.pooling
        normalize = pooling is not None and pooling.normalize
        found.append(vector if dimensions is None else shorten(vector, dimensions, normalize))
    return found


def count_usage(given: Sequence[VectorCollector]) -> dict[str, Any]:
    """OpenAI's `usage` of vectors; all tokens of a `cls` prompt count, though only one is read."""
    tokens = sum(len(one.tokens) for one in given)
    cached = sum(one.cached for one in given)
    return {
        "prompt_tokens": tokens,
        "total_tokens": tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def shorten(vector: Sequence[float], dimensions: int, normalize: bool) -> Sequence[float]:
    """The first numbers of a vector, scaled to length 1 if the whole vector was."""
    kept = vector[:dimensions]
    length = hypot(*kept) if normalize else 1.0
    return [x / length for x in kept] if length else kept


def encode_base64(vector: Sequence[float]) -> str:
    """Little-endian float32 in base64, which OpenAI's clients request by default."""
    return b64encode(array("f", vector).tobytes()).decode()
