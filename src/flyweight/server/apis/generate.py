"""/generate: a prompt in, its continuation out, in a body of four fields.

Invariant: the same tokens as /v1/completions with the same options.
"""

from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from flyweight.requests.collector import TextPiece
from flyweight.server.admission.request_group import RequestGroup
from flyweight.server.api_server import ApiServer
from flyweight.server.apis.answer import answer, get_collectors
from flyweight.server.apis.body import FIRST, read_body
from flyweight.server.apis.fields import Fields
from flyweight.server.apis.option_fields import bounded
from flyweight.server.apis.sampling_fields import (
    Explain,
    Priority,
    Salt,
    StopText,
    params_of,
)
from flyweight.server.apis.usage import report_usage
from flyweight.server.transport.errors import HttpError
from flyweight.server.transport.replies import PING, encode_event

BESIDE = {  # fields that are no sampling options
    "prompt", "stream", "cache_salt", "priority", "return_cache_explanation",
}  # fmt: skip


class GenerateBody(Fields):
    """A prompt to be continued."""

    prompt: str = Field(min_length=1)
    max_tokens: int = Field(256, ge=1, lt=2**31)
    temperature: float = bounded("temperature", 0.7)
    top_p: float = Field(0.95, gt=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: StopText | Annotated[list[StopText], FIRST] | None = None
    stream: bool = False
    cache_salt: Salt = None
    priority: Priority = None
    return_cache_explanation: Explain = None


async def generate(server: ApiServer, request: Request) -> Response:
    body = read_body(server.settings, request, await request.body(), GenerateBody)
    model = server.find()
    every = body.model_dump(exclude=BESIDE, exclude_none=True)
    given = {name: value for name, value in every.items() if name in body.model_fields_set}
    params = params_of({**every, **model.defaults, **given})
    lane = model.context(None, body.cache_salt, body.priority, body.return_cache_explanation)
    asked = await model.prepare([body.prompt], params, lane)
    return await answer(server, model, request, asked, GenerateWriter, stream=body.stream)


class GenerateWriter:
    """Writes one continuation."""

    media = "text/event-stream"
    ping = PING
    id = ""

    def __init__(self, bundle: RequestGroup) -> None:
        self.model = bundle.model
        (self.collector,) = get_collectors(bundle)

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
