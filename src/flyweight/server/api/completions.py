"""OpenAI's /v1/completions: text or ids in, text out, several prompts at once.

Invariant: choices are numbered prompt by prompt, n of each.
"""

from typing import Any
from uuid import uuid4

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from flyweight.collect import Piece
from flyweight.results import Logprob, RequestOutput
from flyweight.server.answer import answer, texts
from flyweight.server.api.given import Prompts, bare, each
from flyweight.server.api.sampling import Sampling, params_of
from flyweight.server.api.scores import text_scores
from flyweight.server.api.usage import spent, usage
from flyweight.server.body import limited
from flyweight.server.bundle import Bundle
from flyweight.server.front import Front
from flyweight.server.http.errors import HttpError
from flyweight.server.http.sse import DONE, Spliced, event
from flyweight.text.infill import Infill
from flyweight.text.tokenizer import Tokenizer
from flyweight.types import MAX_LOGPROBS

MOST_TOKENS = 16  # OpenAI's, where nobody says


class CompletionBody(Sampling):
    """Prompts to be continued."""

    prompt: Prompts
    max_tokens: int | None = Field(None, ge=0, lt=2**31)
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS, json_schema_extra=limited("logprobs"))
    echo: bool | None = None
    best_of: int | None = Field(None, ge=1, le=20)
    suffix: str | None = None
    add_special_tokens: bool | None = None

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
    options = body.wanted(front.defaults)
    prompts = each(body.prompt)
    if body.suffix:
        infill = await front.aside(infill_of, front)
        ends = options.get("stop_token_ids", ())
        options["stop_token_ids"] = [*ends, *(() if body.ignore_eos else infill.ends)]
        prompts = await front.aside(holed, prompts, body.suffix, infill, front.tokenizer)
    elif body.add_special_tokens is False:
        prompts = await front.aside(bare, prompts, front.tokenizer)
    params = params_of(options)
    if body.stream and params.best_of not in (None, params.n):
        raise HttpError(400, "best_of: the best are known at the end; leave stream out", "best_of")
    lane = front.lane(body.model, body.cache_salt, body.priority, body.return_cache_explanation)
    asked = await front.ask(prompts, params, lane, body.form_place)
    return await answer(
        front,
        request,
        asked,
        lambda bundle: CompletionWriter(front, body, bundle),
        stream=bool(body.stream),
    )


def infill_of(front: Front) -> Infill:
    """Raises `HttpError` where the vocabulary has no marks of a hole."""
    if front.infill is None:
        raise HttpError(
            400, "suffix: this vocabulary has no tokens to fill in the middle with", "suffix"
        )
    return front.infill


def holed(
    prompts: list[Any], suffix: str, infill: Infill, tokenizer: Tokenizer
) -> list[dict[str, Any]]:
    """Prompts with a hole before `suffix`."""
    return [
        {
            "prompt": one if isinstance(one, str) else tokenizer.decode(one),
            "prompt_token_ids": infill.prompt(one, suffix, tokenizer),
        }
        for one in prompts
    ]


class CompletionWriter:
    """Writes the continuations of all prompts."""

    media = "text/event-stream"

    def __init__(self, front: Front, body: CompletionBody, bundle: Bundle) -> None:
        self.front, self.body, self.collectors = front, body, texts(bundle)
        options = body.stream_options
        self.running = options is not None and options.continuous_usage_stats
        self.last = options is not None and (options.include_usage or self.running)
        self.last = self.last or bool(body.return_cache_explanation)
        self.plain: dict[int, Spliced] = {}  # chunks of each choice that hold text alone
        self.bare = body.logprobs is None and not body.return_token_ids and not self.running
        self.lengths: dict[int, int] = {}  # characters of each choice that have logprobs
        self.head = {
            "id": f"cmpl-{uuid4().hex}",
            "object": "text_completion",
            "created": front.now(),
            "model": body.model or front.names[0],
        }

    def whole(self) -> dict[str, Any]:
        choices: list[dict[str, Any]] = []
        for collector in self.collectors:
            output = collector.output()
            for choice in output.outputs:
                one = _choice(len(choices), choice.text, choice.finish_reason)
                one["logprobs"] = _scores(self.body, output, choice.index)
                one["stop_reason"] = choice.stop_reason
                if self.body.return_token_ids:
                    one["token_ids"] = choice.token_ids
                    one["prompt_token_ids"] = output.prompt_token_ids
                choices.append(one)
        return {**self.head, "choices": choices, **spent(self.front, self.collectors)}

    def begin(self) -> bytes:
        return b""

    def piece(self, prompt: int, piece: Piece) -> bytes:
        at = prompt * (self.body.n or 1) + piece.choice
        if self.bare and piece.finish is None:
            plain = self.plain.get(at)
            if plain is None:
                plain = Spliced(lambda text: {**self.head, "choices": [_choice(at, text, None)]})
                self.plain[at] = plain
            return plain(piece.text)
        one = _choice(at, piece.text, piece.finish)
        if piece.logprobs is not None:
            start = self.lengths.get(at, 0)
            one["logprobs"] = text_scores(piece.logprobs, self.body.logprobs or 0, start)
            self.lengths[at] = start + sum(len(t) for t in one["logprobs"]["tokens"])
        if piece.finish is not None:
            one["stop_reason"] = piece.reason
        if self.body.return_token_ids:
            one["token_ids"] = piece.tokens
        chunk: dict[str, Any] = {**self.head, "choices": [one]}
        if self.running:
            chunk["usage"] = usage(self.collectors)
        return event(chunk)

    def end(self) -> bytes:
        if not self.last:
            return DONE
        return event({**self.head, "choices": [], **spent(self.front, self.collectors)}) + DONE

    def failed(self, error: HttpError) -> bytes:
        return event(error.body()) + DONE


def _scores(body: CompletionBody, output: RequestOutput, index: int) -> dict[str, Any] | None:
    choice = output.outputs[index]
    if body.logprobs is None:
        return None
    found: list[dict[int, Logprob] | None] = list(choice.logprobs or ())
    if body.echo and output.prompt_logprobs is not None:
        found = [*output.prompt_logprobs, *found]
    return text_scores(found, body.logprobs)


def _choice(index: int, text: str, finish: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}
