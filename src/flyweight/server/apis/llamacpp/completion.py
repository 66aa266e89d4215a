"""llama-server's /completion.

Invariant: a field that is not supported is refused, except with the value that changes nothing.
"""

from functools import partial
from typing import Annotated, Any, Literal
from uuid import uuid4

from pydantic import Field, WithJsonSchema
from starlette.requests import Request
from starlette.responses import Response

from flyweight.errors import RequestError, field_names
from flyweight.params.options import LLAMACPP
from flyweight.requests.collector import Collector, TextPiece
from flyweight.requests.prompts import encode_prompt, make_length_error
from flyweight.server.admission.request_group import RequestGroup
from flyweight.server.api_server import ApiServer
from flyweight.server.apis.answer import answer, get_collectors
from flyweight.server.apis.body import FIRST, TOKEN, mark_limit
from flyweight.server.apis.fields import ALWAYS
from flyweight.server.apis.logprobs import TokenSpelling, encode_token_scores
from flyweight.server.apis.output_formats import Source, grammar_in, schema_in
from flyweight.server.apis.sampling_fields import (
    Bias,
    Explain,
    Id,
    No,
    Priority,
    ReturnCost,
    Salt,
    SamplingFields,
    make_sampling_params,
    with_options,
)
from flyweight.server.apis.slo import Slo
from flyweight.server.apis.usage import measure_llama_timings, report_timings
from flyweight.server.served_model import ServedModel
from flyweight.server.transport.errors import HttpError
from flyweight.server.transport.replies import PING, encode_event
from flyweight.text.tokenizer import Tokenizer
from flyweight.types import MAX_CHOICES, MAX_LOGPROBS, OPTIONS, SamplingParams
from flyweight.validation.untrusted import shown

DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_last_n": 64,
            "max_tokens": None}  # fmt: skip
NAMES = {name: one.names[LLAMACPP] for name, one in OPTIONS.items() if LLAMACPP in one.names}
NEVER = -100.0  # the bias of a token that is switched off
MOST_BIASED = 1 << 14  # characters of all texts that have a bias
Mixed = Annotated[list[str | Id], Field(min_length=1, fail_fast=True)]  # ids, texts between them
SETTINGS = {  # of `generation_settings`, as `SamplingParams` has them
    one.name_in(name, LLAMACPP): name for name, one in OPTIONS.items() if LLAMACPP in one.apis
}


TOKENS = {"type": "integer", "minimum": 0, TOKEN: True}
BIASES = {"anyOf": [{"type": "number", "minimum": -100, "maximum": 100}, {"const": False}]}
Pair = Annotated[
    list[Any],
    Field(min_length=2, max_length=2),
    WithJsonSchema(
        {
            "type": "array",
            "prefixItems": [{"anyOf": [TOKENS, {"type": "string"}]}, BIASES],
            "minItems": 2,
            "maxItems": 2,
        }
    ),
]
Off = Annotated[int, Field(ge=0, le=0)]


@with_options(LLAMACPP)
class LlamaOptions(SamplingFields):
    """What /completion and /infill take."""

    api = LLAMACPP

    n_predict: int = Field(
        -1, ge=-1, lt=2**31, description="-1: no limit, 0: the prompt is computed and kept."
    )
    n_cmpl: int = Field(1, ge=1, le=MAX_CHOICES, json_schema_extra=mark_limit("max_choices"))
    logit_bias: Annotated[list[Pair], FIRST] | dict[str, Bias | Literal[False]] | None = Field(
        None, json_schema_extra=mark_limit("max_logit_bias")
    )
    n_probs: int = Field(0, ge=0, le=MAX_LOGPROBS, json_schema_extra=mark_limit("max_logprobs"))
    cache_prompt: bool = True
    return_tokens: bool = False
    stream: bool = False
    timings_per_token: bool = False
    cache_salt: Salt = None
    priority: Priority = None
    slo: Slo = None
    return_cache_explanation: Explain = None
    return_cost: ReturnCost = None
    dynatemp_range: float | None = Field(None, ge=0, le=0)
    dynatemp_exponent: float | None = Field(None, description="Of a range that is 0.")
    n_keep: int | None = Field(
        None, ge=-1, description="Has no effect: nothing is shifted.", json_schema_extra=ALWAYS
    )
    n_cache_reuse: Off | None = None
    json_schema: dict[str, Any] | None = None
    grammar: Source = Field("", description="GBNF, or Lark; empty: none.")
    id_slot: Literal[-1] | None = None
    post_sampling_probs: No | None = None
    return_progress: No | None = None
    lora: list[Any] | None = Field(None, max_length=0)
    sse_ping_interval: Literal[30] | None = Field(
        None, description="Has no effect: the server says how often a quiet stream is pinged."
    )

    def to_options(self, defaults: dict[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
        """`SamplingParams`' keywords."""
        found = self.read_options({**DEFAULTS, **defaults})
        found["n"] = self.n_cmpl
        if "n_predict" in self.model_fields_set:
            found["max_tokens"] = None if self.n_predict == -1 else max(1, self.n_predict)
        if self.seed == -1:
            found["seed"] = None
        if self.json_schema is not None:
            found["structured_outputs"] = schema_in("json_schema", self.json_schema)
        if self.grammar:
            if self.json_schema is not None:
                raise RequestError(
                    "and json_schema exclude each other; leave one of them out", "grammar"
                )
            found["structured_outputs"] = grammar_in("grammar", self.grammar)
        if self.n_probs:
            found["logprobs"] = self.n_probs
        if self.logit_bias:
            found["logit_bias"] = read_biases(self.logit_bias, tokenizer)
        return found

    @property
    def form_place(self) -> str:
        """The field that constrains the answer."""
        return "grammar" if self.grammar else "json_schema"


class LlamaBody(LlamaOptions):
    """A prompt to be continued, or several."""

    prompt: str | Annotated[list[str | Id | Mixed], Field(min_length=1, fail_fast=True)]
    n_indent: Off | None = None
    min_keep: Off | None = None
    response_fields: list[Any] | None = Field(None, max_length=0, description="Empty: all.")
    t_max_predict_ms: int | None = Field(None, le=0, description="No limit.")

    def prompts(self, model: ServedModel) -> list[Any]:
        """The separate prompts: a list that contains an id is one prompt."""
        given: Any = self.prompt
        if isinstance(given, str):
            return [given]
        if any(isinstance(one, int) for one in given):
            given = [given]
        return [one if isinstance(one, str) else partial(join_mixed, one, model) for one in given]


async def complete(server: ApiServer, request: Request, body: LlamaBody) -> Response:
    model = await server.open_to_generate(request)
    return await continue_prompts(server, model, request, body, body.prompts(model))


async def continue_prompts(
    server: ApiServer,
    model: ServedModel,
    request: Request,
    body: LlamaOptions,
    prompts: list[Any],
    ends: tuple[int, ...] = (),
) -> Response:
    """Answers prompts with their continuations, which also end at the tokens `ends`."""
    salt = body.cache_salt if body.cache_prompt else uuid4().hex
    context = model.make_context(
        None, salt, body.priority, body.return_cache_explanation, body.return_cost
    )
    with field_names(NAMES):
        wanted = await model.run_in_thread(body.to_options, model.defaults, model.tokenizer)
        params = make_sampling_params({**wanted, "stop_token_ids": ends})
        prepared = await model.prepare(prompts, params, context, body.form_place)
    write = partial(LlamaWriter, body)
    return await answer(server, model, request, prepared, write, stream=body.stream)


class LlamaWriter:
    """Writes the continuations of all prompts; the reply to several is a list."""

    media = "text/event-stream"
    ping = PING
    id = ""

    def __init__(self, body: LlamaOptions, group: RequestGroup) -> None:
        self.model, self.body, self.collectors = group.model, body, get_collectors(group)
        self.spelling = TokenSpelling(self.model.tokenizer)
        self.prompts_only = body.n_predict == 0  # the one token that is computed is left out

    def write_reply(self) -> Any:
        found: list[dict[str, Any]] = []
        for collector in self.collectors:
            for choice in collector.output().outputs:
                one = self._make_last(
                    collector, len(found), choice.finish_reason, choice.stop_reason
                )
                one["content"] = "" if self.prompts_only else choice.text
                included = self.body.return_tokens and not self.prompts_only
                one["tokens"] = choice.token_ids if included else []
                if choice.logprobs is not None and not self.prompts_only:
                    one["completion_probabilities"] = encode_token_scores(
                        choice.logprobs, self.spelling
                    )
                found.append(one)
        return found[0] if len(found) == 1 else found

    def begin(self) -> bytes:
        return b""

    def write_piece(self, prompt: int, piece: TextPiece) -> bytes:
        collector = self.collectors[prompt]
        index = prompt * self.body.n_cmpl + piece.choice
        last = {"content": "", "tokens": []}
        if self.prompts_only:
            ended = piece.finish is not None
            end = self._make_last(collector, index, piece.finish, piece.reason)
            return encode_event({**end, **last}) if ended else b""
        one: dict[str, Any] = {
            "index": index,
            "content": piece.text,
            "tokens": piece.tokens,
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": len(collector.choices[piece.choice].tokens),
            "tokens_evaluated": len(collector.request.tokens),
        }
        if piece.logprobs is not None:
            one["completion_probabilities"] = encode_token_scores(piece.logprobs, self.spelling)
        if self.body.timings_per_token:
            one["timings"] = measure_llama_timings(collector)
        if piece.finish is None:
            return encode_event(one)
        return encode_event(one) + encode_event(
            {**self._make_last(collector, index, piece.finish, piece.reason), **last}
        )

    def end(self) -> bytes:
        return b""

    def write_error(self, error: HttpError) -> bytes:
        return encode_event(error.body())

    def _make_last(
        self, collector: Collector, index: int, finish: str | None, reason: int | str | None
    ) -> dict[str, Any]:
        """The facts of a choice that has ended."""
        params, request = collector.requested, collector.request
        word = reason if isinstance(reason, str) else ""
        ended = "limit" if finish == "length" else "word" if word else "eos"
        written = len(collector.choices[index % self.body.n_cmpl].tokens)
        settings = make_settings(params)
        if self.prompts_only:
            ended, word, written, settings["n_predict"] = "limit", "", 0, 0
        settings["seed"] = to_signed(request.seed)  # the one that was drawn, where none was given
        return {
            "index": index,
            "id_slot": -1,
            "stop": True,
            "model": self.model.names[0],
            "tokens_predicted": written,
            "tokens_evaluated": len(request.tokens),
            "tokens_cached": collector.cached,
            "generation_settings": settings,
            "prompt": collector.prompt or collector.tokenizer.decode(request.tokens, False),
            "truncated": False,
            "stop_type": ended,
            "stopping_word": word,
            "timings": measure_llama_timings(collector),
            **report_timings(self.model, collector),
        }


def make_settings(params: SamplingParams) -> dict[str, Any]:
    """Sampling options under llama-server's names."""
    found = {theirs: getattr(params, ours) for theirs, ours in SETTINGS.items()}
    found["n_probs"] = params.logprobs or 0
    found["n_predict"] = -1 if params.max_tokens is None else params.max_tokens
    return found


def to_signed(seed: int) -> int:
    """A 64-bit seed as a body has it."""
    return seed - 2**64 if seed >= 2**63 else seed


def join_mixed(given: list[Any], model: ServedModel) -> list[int]:
    """The ids of one prompt of ids and texts; only a text at its start gets a BOS.  Raises
    `RequestError`.
    """
    longest = model.max_model_len
    found: list[int] = []
    for i, one in enumerate(given):
        text = isinstance(one, str)
        found += encode_prompt(model.tokenizer, one, longest, add_special=i == 0) if text else [one]
        if len(found) > longest:  # the rest is not read
            raise make_length_error(len(found), longest)
    return found


def read_biases(given: list[list[Any]] | dict[str, Any], tokenizer: Tokenizer) -> dict[int, float]:
    """Biases from pairs of an id or text (each of its tokens) and a number.  Raises
    `RequestError`.
    """
    pairs = list(given.items()) if isinstance(given, dict) else given
    size = sum(len(token) for token, _ in pairs if isinstance(token, str))
    if size > MOST_BIASED:
        raise RequestError(
            f"has texts of {size} characters", "logit_bias", allowed=f"at most {MOST_BIASED}"
        )
    found: dict[int, float] = {}
    for token, bias in pairs:
        if bias is False:
            bias = NEVER
        known = isinstance(token, int | str) and not isinstance(token, bool)
        if not known or isinstance(bias, bool) or not isinstance(bias, int | float):
            raise make_bias_error([token, bias])
        if not -100 <= bias <= 100:
            raise make_bias_error([token, bias])
        if isinstance(token, str) and token.isdecimal() and len(token) < 11:
            token = int(token)
        ids = [token] if isinstance(token, int) else tokenizer.encode(token, add_special=False)
        found.update(dict.fromkeys(ids, float(bias)))
    return found


def make_bias_error(pair: list[Any]) -> RequestError:
    return RequestError(
        f": {shown(pair)} is not valid",
        "logit_bias",
        allowed="pairs of an id or text, and a number of -100 to 100 or false",
    )
