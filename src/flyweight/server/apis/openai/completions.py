"""OpenAI's /v1/completions: text or ids in, text out, several prompts at once.

Invariant: choices are numbered prompt by prompt, n of each.
"""

from functools import cache, partial
from typing import Any
from uuid import uuid4

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from flyweight.errors import RequestError
from flyweight.requests.collector import TextPiece
from flyweight.requests.prompts import check_fits, make_length_error
from flyweight.server.admission.request_group import RequestGroup
from flyweight.server.api_server import ApiServer
from flyweight.server.apis.answer import answer, texts
from flyweight.server.apis.beams import wanted_of
from flyweight.server.apis.body import limited, read
from flyweight.server.apis.logprobs import PromptScores, TextScores, TokenSpelling
from flyweight.server.apis.prompt_fields import Prompts, each, fitted
from flyweight.server.apis.sampling_fields import SamplingBody, listing
from flyweight.server.apis.usage import RunningUsage, spent
from flyweight.server.served_model import ServedModel
from flyweight.server.transport.errors import HttpError
from flyweight.server.transport.replies import DONE, PING, Spliced, event
from flyweight.text.infill import Infill
from flyweight.types import MAX_LOGPROBS

MOST_TOKENS = 16  # OpenAI's, where nobody says


class CompletionBody(SamplingBody):
    """Prompts to be continued."""

    prompt: Prompts
    max_tokens: int | None = Field(None, ge=0, lt=2**31)
    logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, json_schema_extra=limited("max_logprobs")
    )
    echo: bool | None = None
    best_of: int | None = Field(None, ge=1, le=20)
    suffix: str | None = None
    add_special_tokens: bool | None = None

    @property
    def told_prompts(self) -> int:
        """How often a prompt's log-probabilities are told, where they are."""
        own, repeated = self.prompt_logprobs is not None, bool(self.echo)
        return (self.n or 1) * (own + repeated)

    def wanted(self, defaults: dict[str, Any]) -> dict[str, Any]:
        """`SamplingParams`' keywords."""
        most = defaults.get("max_tokens", MOST_TOKENS)
        found = {**self.options(defaults)}
        found["max_tokens"] = most if self.max_tokens is None else self.max_tokens
        listing(self.logprob_token_ids, self.logprobs is not None, f"0 to {MAX_LOGPROBS}")
        for name in ("logprobs", "echo", "best_of"):
            value = getattr(self, name)
            if value is not None:
                found[name] = value
        return found


async def completions(server: ApiServer, request: Request) -> Response:
    body = read(server.settings, request, await request.body(), CompletionBody)
    model = server.find(body.model)
    options = body.wanted(model.defaults)
    prompts = await model.run_in_thread(prompts_of, model, body)
    if body.suffix and not body.ignore_eos:
        ends = options.get("stop_token_ids", ())
        options["stop_token_ids"] = [*ends, *infill_of(model).ends]
    params = wanted_of(body, options)
    drawn = body.best_of not in (None, body.n or 1) and not body.use_beam_search
    if body.stream and drawn:
        raise RequestError(
            "cannot be combined with stream: the best choices are known only at the end", "best_of"
        )
    lane = model.context(body.model, body.cache_salt, body.priority, body.return_cache_explanation)
    asked = await model.prepare(prompts, params, lane, body.form_place, body.told_prompts)
    return await answer(
        server,
        model,
        request,
        asked,
        lambda bundle: CompletionWriter(model, body, bundle),
        stream=bool(body.stream),
    )


def prompts_of(model: ServedModel, body: CompletionBody) -> list[Any]:
    """Each prompt as it is to be run.  Raises `RequestError`."""
    prompts = each(body.prompt)
    if not body.suffix:
        return fitted(prompts, body, model)
    alone = {"truncate_prompt_tokens": body.truncate_prompt_tokens is not None,
             "use_beam_search": bool(body.use_beam_search)}  # fmt: skip
    for name, given in alone.items():
        if given:
            raise RequestError("and suffix exclude each other; leave one of them out", name)
    return holed(prompts, body.suffix, infill_of(model), model)


def infill_of(model: ServedModel, field: str = "suffix") -> Infill:
    """Raises `RequestError`, which names a field, where the vocabulary has no marks of a hole."""
    if model.infill is None:
        raise RequestError(": this vocabulary has no tokens for filling in the middle", field)
    return model.infill


def holed(prompts: list[Any], suffix: str, infill: Infill, model: ServedModel) -> list[Any]:
    """Prompts with a hole before `suffix`, which is read once for all of them."""
    tokenizer, longest = model.tokenizer, model.max_model_len

    @cache
    def after() -> list[int]:
        check_fits(tokenizer, suffix, longest, "suffix")
        return infill.encode_rest(suffix, tokenizer)

    def made(one: str | list[int]) -> dict[str, Any]:
        ids = after()
        if isinstance(one, str):
            check_fits(tokenizer, one, longest)
        elif len(one) > longest:
            raise make_length_error(len(one), longest)
        return {
            "prompt": one if isinstance(one, str) else tokenizer.decode(one),
            "prompt_token_ids": infill.encode_prompt(one, ids, tokenizer),
        }

    return [partial(made, one) for one in prompts]


class CompletionWriter:
    """Writes the continuations of all prompts."""

    media = "text/event-stream"
    ping = PING

    def __init__(self, model: ServedModel, body: CompletionBody, bundle: RequestGroup) -> None:
        self.model, self.body, self.collectors = model, body, texts(bundle)
        options = body.stream_options
        running = options is not None and options.running
        self.running = RunningUsage(self.collectors) if running else None
        self.last = options is not None and (options.include_usage or running)
        self.last = self.last or bool(body.return_cache_explanation)
        self.last = self.last or model.settings.enable_force_include_usage
        self.plain: dict[int, Spliced] = {}  # chunks of each choice that hold text alone
        scored = body.logprobs is not None or body.prompt_logprobs is not None
        self.bare = not (scored or body.return_token_ids or running)
        self.spelling = TokenSpelling(model.tokenizer, body.return_tokens_as_token_ids)
        self.scores: dict[int, TextScores] = {}  # by choice
        self.prompts: dict[int, PromptScores] = {}  # until all choices have told of theirs
        self.untold = [body.n or 1] * len(self.collectors)  # choices of each prompt
        self.begun: set[int] = set()
        for collector in self.collectors:
            collector.interval = body.stream_interval or collector.interval
        self.id = f"cmpl-{body.request_id or uuid4().hex}"
        self.head = {
            "id": self.id,
            "object": "text_completion",
            "created": model.now(),
            "model": body.model or model.names[0],
            "system_fingerprint": None,
        }

    def whole(self) -> dict[str, Any]:
        choices: list[dict[str, Any]] = []
        for prompt, collector in enumerate(self.collectors):
            for choice in collector.output().outputs[: self.body.n or 1]:
                one = _choice(len(choices), choice.text, choice.finish_reason)
                if self.body.logprobs is not None and choice.logprobs is not None:
                    one["logprobs"] = self._scores(prompt).told(choice.logprobs)
                one["stop_reason"] = choice.stop_reason
                if self.body.return_token_ids:
                    one["token_ids"] = choice.token_ids
                choices.append({**one, **self._prompt(prompt)})
        head = {**self.head, "service_tier": None}
        return {**head, "choices": choices, **spent(self.model, self.collectors)}

    def begin(self) -> bytes:
        return b""

    def piece(self, prompt: int, piece: TextPiece) -> bytes:
        many = self.body.n or 1
        if self.running is not None:
            self.running.note(prompt, piece)
        if piece.choice >= many:  # a beam that is not among the best
            return b""
        at = prompt * many + piece.choice
        if self.bare and piece.finish is None:
            plain = self.plain.get(at)
            if plain is None:
                plain = Spliced(lambda text: {**self.head, "choices": [_choice(at, text, None)]})
                self.plain[at] = plain
            return plain(piece.text)
        one = _choice(at, piece.text, piece.finish)
        if piece.logprobs is not None:
            if at not in self.scores:
                self.scores[at] = self._scores(prompt)
            one["logprobs"] = self.scores[at].told(piece.logprobs)
        if at not in self.begun:
            self.begun.add(at)
            one |= self._prompt(prompt)
        if piece.finish is not None:
            one["stop_reason"] = piece.reason
        if self.body.return_token_ids:
            one["token_ids"] = piece.tokens
        chunk: dict[str, Any] = {**self.head, "choices": [one]}
        if self.running is not None:
            chunk["usage"] = self.running.told()
        return event(chunk)

    def end(self) -> bytes:
        if not self.last:
            return DONE
        return event({**self.head, "choices": [], **spent(self.model, self.collectors)}) + DONE

    def failed(self, error: HttpError) -> bytes:
        return event(error.body()) + DONE

    def _scores(self, prompt: int) -> TextScores:
        """Of one choice."""
        return TextScores(self.collectors[prompt], self._of_prompt(prompt))

    def _prompt(self, prompt: int) -> dict[str, Any]:
        """What a choice, or the first chunk of it, tells of its prompt."""
        found: dict[str, Any] = {}
        if self.body.prompt_logprobs is not None:
            found["prompt_logprobs"] = self._of_prompt(prompt).own
        if self.body.return_token_ids:
            found["prompt_token_ids"] = list(self.collectors[prompt].request.tokens)
        self.untold[prompt] -= 1
        if not self.untold[prompt]:
            self.prompts.pop(prompt, None)
        return found

    def _of_prompt(self, prompt: int) -> PromptScores:
        found = self.prompts.get(prompt)
        if found is None:
            most = self.body.logprobs or 0
            found = PromptScores(self.collectors[prompt], most, self.spelling)
            self.prompts[prompt] = found
        return found


def _choice(index: int, text: str, finish: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}
