"""OpenAI's /v1/completions: text or ids in, text out, several prompts at once.

Invariant: choices are numbered prompt by prompt, n of each.
"""

from functools import cache, partial
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from flyweight.errors import RequestError
from flyweight.requests.collector import TextPiece
from flyweight.requests.prompts import PreparedPrompt, check_fits, make_length_error
from flyweight.server.api_server import ApiServer, get_tenant
from flyweight.server.apis.answer import AnswerGroup, answer
from flyweight.server.apis.logprobs import PromptScores, TextScores
from flyweight.server.apis.openai.chat_schema import LOGPROBS
from flyweight.server.apis.openai.chunk_writer import ChunkWriter
from flyweight.server.apis.openai.idle_time import IdleTime, apply_idle_time
from flyweight.server.apis.prompt_fields import Prompts, fit_prompts, make_params, split_prompts
from flyweight.server.apis.sampling_fields import SamplingBody, check_listed_ids
from flyweight.server.apis.usage import report_attempts
from flyweight.server.request_model import RequestModel
from flyweight.server.transport.replies import EventTemplate
from flyweight.text.infill import Infill
from flyweight.types import MAX_LOGPROBS

MOST_TOKENS = 16  # OpenAI's default


class CompletionBody(SamplingBody):
    """Prompts to be continued."""

    prompt: Prompts
    max_tokens: int | None = Field(None, ge=0, lt=2**31)
    logprobs: int | None = LOGPROBS
    echo: bool | None = None
    best_of: int | None = Field(None, ge=1, le=20)
    suffix: str | None = None
    add_special_tokens: bool | None = None
    ttl: IdleTime = None

    @property
    def prompt_score_copies(self) -> int:
        """How often a prompt's log-probabilities are in the reply."""
        own, repeated = self.prompt_logprobs is not None, bool(self.echo)
        return (self.n or 1) * (own + repeated)

    def to_options(self, defaults: dict[str, Any]) -> dict[str, Any]:
        """`SamplingParams`' keywords."""
        most = defaults.get("max_tokens", MOST_TOKENS)
        found = {**self.options(defaults)}
        found["max_tokens"] = most if self.max_tokens is None else self.max_tokens
        check_listed_ids(self.logprob_token_ids, self.logprobs is not None, f"0 to {MAX_LOGPROBS}")
        for name in ("logprobs", "echo", "best_of"):
            value = getattr(self, name)
            if value is not None:
                found[name] = value
        return found


async def create_completion(server: ApiServer, request: Request, body: CompletionBody) -> Response:
    model = await server.open_to_generate(request, body.model)
    apply_idle_time(server, request, body.model, body.ttl)
    prepared = await prepare_completion(model, request, body)
    write = partial(CompletionWriter, body)
    return await answer(server, model, request, prepared, write, stream=bool(body.stream))


async def prepare_completion(
    model: RequestModel, request: Request, body: CompletionBody
) -> list[PreparedPrompt]:
    """Checked prompts, each with its options.  Raises `RequestError`."""
    options = body.to_options(model.defaults)
    prompts = await model.run_in_thread(read_prompts, model, body)
    if body.suffix and not body.ignore_eos:
        ends = options.get("stop_token_ids", ())
        options["stop_token_ids"] = [*ends, *get_infill(model).ends]
    params = make_params(body, options)
    drawn = body.best_of not in (None, body.n or 1) and not body.use_beam_search
    if body.stream and drawn:
        raise RequestError(
            "cannot be combined with stream: the best choices are known only at the end", "best_of"
        )
    context = model.make_context(
        body.model, body.cache_salt, body.priority, body.return_cache_explanation, body.return_cost
    )
    return await model.prepare(
        prompts, params, context, body.form_place, body.prompt_score_copies, get_tenant(request)
    )


def read_prompts(model: RequestModel, body: CompletionBody) -> list[Any]:
    """The separate prompts as they are run.  Raises `RequestError`."""
    prompts = split_prompts(body.prompt)
    if not body.suffix:
        return fit_prompts(prompts, body, model)
    alone = {"truncate_prompt_tokens": body.truncate_prompt_tokens is not None,
             "use_beam_search": bool(body.use_beam_search)}  # fmt: skip
    for name, given in alone.items():
        if given:
            raise RequestError("and suffix exclude each other; leave one of them out", name)
    return make_infill_prompts(prompts, body.suffix, get_infill(model), model)


def get_infill(model: RequestModel, field: str = "suffix") -> Infill:
    """Raises `RequestError`, which names a field, where the vocabulary has no marks of a hole."""
    if model.infill is None:
        raise RequestError(": this vocabulary has no tokens for filling in the middle", field)
    return model.infill


def make_infill_prompts(
    prompts: list[Any], suffix: str, infill: Infill, model: RequestModel
) -> list[Any]:
    """Prompts with a gap before `suffix`, which is encoded once."""
    tokenizer, longest = model.tokenizer, model.max_model_len

    @cache
    def encode_suffix() -> list[int]:
        check_fits(tokenizer, suffix, longest, "suffix")
        return infill.encode_rest(suffix, tokenizer)

    def make(one: str | list[int]) -> dict[str, Any]:
        ids = encode_suffix()
        if isinstance(one, str):
            check_fits(tokenizer, one, longest)
        elif len(one) > longest:
            raise make_length_error(len(one), longest)
        return {
            "prompt": one if isinstance(one, str) else tokenizer.decode(one),
            "prompt_token_ids": infill.encode_prompt(one, ids, tokenizer),
        }

    return [partial(make, one) for one in prompts]


class CompletionWriter(ChunkWriter):
    """Writes the continuations of all prompts."""

    def __init__(self, body: CompletionBody, group: AnswerGroup) -> None:
        super().__init__(body, group, "text_completion", "cmpl")
        self.body = body
        scored = body.logprobs is not None or body.prompt_logprobs is not None
        self.bare = not (scored or body.return_token_ids or self.running)
        self.scores: dict[int, TextScores] = {}  # by choice
        self.prompts: dict[int, PromptScores] = {}  # until all choices have written theirs
        self.unwritten = [self.choices] * len(self.collectors)  # choices of each prompt

    def write_reply(self) -> dict[str, Any]:
        choices: list[dict[str, Any]] = []
        for prompt, collector in enumerate(self.collectors):
            for choice in collector.output().outputs[: self.choices]:
                one = _wrap_text(len(choices), choice.text, choice.finish_reason)
                if self.body.logprobs is not None and choice.logprobs is not None:
                    one["logprobs"] = self._make_scores(prompt).write(choice.logprobs)
                one["stop_reason"] = choice.stop_reason
                if self.body.return_token_ids:
                    one["token_ids"] = choice.token_ids
                report = report_attempts(choice.structured_output)
                choices.append({**one, **report, **self._describe_prompt(prompt)})
        head = {**self.head, "service_tier": None}
        return {**head, "choices": choices, **self.report_usage()}

    def write_piece(self, prompt: int, piece: TextPiece) -> bytes:
        if self.running is not None:
            self.running.note(prompt, piece)
        if piece.choice >= self.choices:  # a beam that is not among the best
            return b""
        at = prompt * self.choices + piece.choice
        if self.bare and piece.finish is None:
            plain = self.plain.get(at)
            if plain is None:
                plain = EventTemplate(
                    lambda text: {**self.head, "choices": [_wrap_text(at, text, None)]}
                )
                self.plain[at] = plain
            return plain(piece.text)
        one = _wrap_text(at, piece.text, piece.finish)
        if piece.logprobs is not None:
            if at not in self.scores:
                self.scores[at] = self._make_scores(prompt)
            one["logprobs"] = self.scores[at].write(piece.logprobs)
        if at not in self.begun:
            self.begun.add(at)
            one |= self._describe_prompt(prompt)
        if piece.finish is not None:
            one["stop_reason"] = piece.reason
        if self.body.return_token_ids:
            one["token_ids"] = piece.tokens
        one |= report_attempts(piece.report)
        return self.write_chunk(one)

    def _make_scores(self, prompt: int) -> TextScores:
        """The writer of one choice's log-probabilities."""
        return TextScores(self.collectors[prompt], self._get_prompt_scores(prompt))

    def _describe_prompt(self, prompt: int) -> dict[str, Any]:
        """The facts of its prompt in a choice, or in its first chunk."""
        found: dict[str, Any] = {}
        if self.body.prompt_logprobs is not None:
            found["prompt_logprobs"] = self._get_prompt_scores(prompt).prompt_logprobs
        if self.body.return_token_ids:
            found["prompt_token_ids"] = list(self.collectors[prompt].request.tokens)
        self.unwritten[prompt] -= 1
        if not self.unwritten[prompt]:
            self.prompts.pop(prompt, None)
        return found

    def _get_prompt_scores(self, prompt: int) -> PromptScores:
        found = self.prompts.get(prompt)
        if found is None:
            most = self.body.logprobs or 0
            found = PromptScores(self.collectors[prompt], most, self.spelling)
            self.prompts[prompt] = found
        return found


def _wrap_text(index: int, text: str, finish: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}
