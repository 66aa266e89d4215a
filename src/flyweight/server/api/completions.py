"""OpenAI's /v1/completions: text or ids in, text out, several prompts at once.

Invariant: choices are numbered prompt by prompt, n of each.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any
from uuid import uuid4

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from flyweight.collect import Collector, VectorCollector
from flyweight.results import Logprob, RequestOutput
from flyweight.server.api.sampling import Id, Sampling, params_of
from flyweight.server.api.scores import text_scores
from flyweight.server.api.usage import timings, usage
from flyweight.server.errors import HttpError, told
from flyweight.server.front import Bundle, Front
from flyweight.server.sse import DONE, EventStream, event, headers_of, reply, while_connected

MOST_TOKENS = 16  # OpenAI's, where nobody says
Ids = Annotated[list[Id], Field(min_length=1)]


class CompletionBody(Sampling):
    """Prompts to be continued."""

    prompt: str | Ids | list[str] | list[Ids]
    max_tokens: int | None = Field(None, ge=0, lt=2**31)
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool | None = None
    best_of: int | None = Field(None, ge=1, le=20)
    suffix: str | None = None
    add_special_tokens: bool | None = None

    def prompts(self) -> list[Any]:
        """Each prompt by itself."""
        given: Any = self.prompt
        single = isinstance(given, str) or (given and isinstance(given[0], int))
        return [given] if single else list(given)

    def wanted(self, defaults: dict[str, Any]) -> dict[str, Any]:
        """`SamplingParams`' keywords."""
        most = defaults.get("max_tokens", MOST_TOKENS)
        found = {**self.options(defaults)}
        found["max_tokens"] = most if self.max_tokens is None else self.max_tokens
        for name in ("logprobs", "echo", "best_of"):
            value = getattr(self, name)
            if value is not None:
                found[name] = value
        return found


async def completions(front: Front, request: Request) -> Response:
    body = front.read(request, await request.body(), CompletionBody)
    if body.suffix:
        raise HttpError(
            400, "suffix: this vocabulary has no tokens to fill in the middle with", "suffix"
        )
    params = params_of(body.wanted(front.defaults))
    if body.stream and params.best_of not in (None, params.n):
        raise HttpError(400, "best_of: the best are known at the end; leave stream out", "best_of")
    lane = front.lane(body.model, body.cache_salt, body.priority)
    asked = await front.ask(body.prompts(), params, lane)
    head = headers_of(getattr(request.state, "ignored", []))
    bundle = front.begin(asked)
    if body.stream:
        parts = chunks(front, body, bundle)
        return EventStream(parts, bundle.close, front.settings.stalled_seconds, head)
    with bundle:
        collectors = await while_connected(request, bundle.done())
        return reply(whole(front, body, collectors), headers=head)


def whole(
    front: Front, body: CompletionBody, collectors: Sequence[Collector | VectorCollector]
) -> dict[str, Any]:
    """The answer of a request that does not stream."""
    choices: list[dict[str, Any]] = []
    first: Collector | None = None
    for collector in collectors:
        assert isinstance(collector, Collector)
        first = first or collector
        output = collector.output()
        for choice in output.outputs:
            one = _choice(len(choices), choice.text, choice.finish_reason)
            one["logprobs"] = _scores(body, output, choice.index)
            one["stop_reason"] = choice.stop_reason
            if body.return_token_ids:
                one["token_ids"] = choice.token_ids
                one["prompt_token_ids"] = output.prompt_token_ids
            choices.append(one)
    found = {**_head(front, body), "choices": choices, "usage": usage(collectors)}
    if first is not None and len(collectors) == 1:
        found["metrics"] = timings(first)
    return found


async def chunks(front: Front, body: CompletionBody, bundle: Bundle) -> AsyncGenerator[bytes]:
    """The answer piece by piece."""
    head = _head(front, body)
    options = body.stream_options
    running = options is not None and options.continuous_usage_stats
    n = body.n or 1
    lengths: dict[int, int] = {}
    try:
        async for found in bundle.pieces():
            for i, piece in found:
                at = i * n + piece.choice
                one = _choice(at, piece.text, piece.finish)
                if piece.logprobs is not None:
                    start = lengths.get(at, 0)
                    one["logprobs"] = text_scores(piece.logprobs, body.logprobs or 0, start)
                    lengths[at] = start + sum(len(t) for t in one["logprobs"]["tokens"])
                if piece.finish is not None:
                    one["stop_reason"] = piece.reason
                if body.return_token_ids:
                    one["token_ids"] = piece.tokens
                chunk: dict[str, Any] = {**head, "choices": [one]}
                if running:
                    chunk["usage"] = usage(bundle.collectors)
                yield event(chunk)
        if options is not None and (options.include_usage or running):
            yield event({**head, "choices": [], "usage": usage(bundle.collectors)})
        yield DONE
    except Exception as error:
        yield event(told(error).body())
        yield DONE
    finally:
        bundle.close()


def _scores(body: CompletionBody, output: RequestOutput, index: int) -> dict[str, Any] | None:
    choice = output.outputs[index]
    if body.logprobs is None:
        return None
    found: list[dict[int, Logprob] | None] = list(choice.logprobs or ())
    if body.echo and output.prompt_logprobs is not None:
        found = [*output.prompt_logprobs, *found]
    return text_scores(found, body.logprobs)


def _head(front: Front, body: CompletionBody) -> dict[str, Any]:
    return {
        "id": f"cmpl-{uuid4().hex}",
        "object": "text_completion",
        "created": front.now(),
        "model": body.model or front.names[0],
    }


def _choice(index: int, text: str, finish: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}
