"""A model as its requests see it: tokenizer, chat format, limits, names.

Invariant: every request is checked before it reaches an engine: its limits before its prompts are
tokenized, and again while they are.  Prompts are prepared off the event loop.  Knows no engine, no
HTTP, no API, and no other model.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from threading import Event
from typing import Any, TypeVar

from flyweight.errors import RequestError, field_names
from flyweight.params.structured import StructuredOutputs, check
from flyweight.params.tasks import BeamSearchParams
from flyweight.requests.preparing import Params, RequestPreparer, list_special_tokens
from flyweight.requests.prompts import PreparedPrompt, RequestContext, encode_prompt
from flyweight.requests.token_cache import CachedCodec, TokenCache
from flyweight.server.chat_format import ChatFormat
from flyweight.server.constraints.validator import ConstraintValidator, map_constraint_names
from flyweight.server.observability.counters import ServerCounters
from flyweight.server.observability.log import ServerLog
from flyweight.server.settings import ServerSettings
from flyweight.text.infill import Infill
from flyweight.text.tokenizer import Tokenizer
from flyweight.types import SamplingParams

T = TypeVar("T")
READERS = 2  # threads that tokenize and render: one long prompt does not delay all others
LEAST_VALIDATED = 16  # requests that may wait for constraints; else a quarter of the queue


def check_options(limits: ServerSettings, prompts: int, params: Params) -> None:
    """Raises `RequestError` for options that no request of so many prompts may have."""
    check_range("prompt", prompts, limits.max_prompts, "prompts")
    if isinstance(params, BeamSearchParams):
        check_range("n", params.beam_width, limits.max_choices, "beams of a prompt")
        check_range(
            "n", params.beam_width * prompts, limits.max_request_choices, "beams of all prompts"
        )
    if not isinstance(params, SamplingParams):
        return
    choices = max(params.n, params.best_of or 1)
    check_range("n", choices, limits.max_choices, "choices of a prompt")
    check_range("n", choices * prompts, limits.max_request_choices, "choices of all prompts")
    check_range("stop", len(params.stop), limits.max_stop_strings, "strings", least=0)
    longest = max((len(one.encode()) for one in params.stop), default=0)
    check_range("stop", longest, limits.max_stop_bytes, "bytes of a string", least=0)
    for name in ("logprobs", "prompt_logprobs"):
        check_range(name, getattr(params, name) or 0, limits.max_logprobs, "of a token", least=0)
    listed = len(params.logprob_token_ids)
    check_range("logprob_token_ids", listed, limits.max_logprobs, "ids", least=0)
    check_range("logit_bias", len(params.logit_bias), limits.max_logit_bias, "entries", least=0)


class RequestTotals:
    """The cost of all prompts of one request, and of their choices.  Log-probabilities of a prompt
    are returned `copies` times.
    """

    def __init__(self, limits: ServerSettings, max_model_len: int, copies: int = 1) -> None:
        self.limits, self.max_model_len, self.copies = limits, max_model_len, copies
        self.tokens = self.prompt_scores = self.max_response_logprobs = 0

    def add(self, prompt: PreparedPrompt) -> None:
        """Raises `RequestError` where the sum exceeds a limit."""
        params = prompt.params
        length, answer = len(prompt.tokens), self._longest_answer(prompt)
        self.tokens += count_sequences(prompt) * (length + answer)
        most = self.limits.max_request_tokens
        check_range("max_tokens", self.tokens, most, "tokens of all prompts and choices", least=0)
        if params.prompt_logprobs is not None:
            self.prompt_scores += self.copies * length * (1 + params.prompt_logprobs)
            self._check_prompt_scores(params)
        if params.scored is not None:
            self.max_response_logprobs += count_sequences(prompt) * answer * (1 + params.scored)
            self._check_answer_scores(params)

    def _longest_answer(self, prompt: PreparedPrompt) -> int:
        """The maximum tokens of a choice."""
        most = (prompt.beam or prompt.params).max_tokens
        left = self.max_model_len - len(prompt.tokens)
        return left if most is None else min(left, most)

    def _check_prompt_scores(self, params: SamplingParams) -> None:
        found, most = self.prompt_scores, self.limits.max_response_prompt_logprobs
        if found <= most:
            return
        repeated = params.echo and params.logprobs == params.prompt_logprobs
        name = "logprobs" if repeated else "prompt_logprobs"
        raise RequestError(
            f"would return {found} log-probabilities of prompts (n x tokens of the prompts "
            f"x (1 + {name}))",
            name,
            value=params.prompt_logprobs,
            allowed=(
                f"0 to {most}, with fewer choices (n), shorter prompts or fewer "
                "alternatives (--max-response-prompt-logprobs)"
            ),
        )

    def _check_answer_scores(self, params: SamplingParams) -> None:
        """Log-probabilities are kept until an answer has ended, even if it is streamed."""
        found, most = self.max_response_logprobs, self.limits.max_response_logprobs
        if found <= most:
            return
        listed = bool(params.logprob_token_ids)
        name = "logprob_token_ids" if listed else "logprobs"
        value = f"of {params.scored} ids" if listed else f"= {params.scored}"
        raise RequestError(
            f"{value} may return {found} log-probabilities of answers (choices x "
            f"max_tokens x (1 + {params.scored}))",
            name,
            allowed=(
                f"0 to {most}, with fewer choices (n), a smaller max_tokens or fewer "
                "alternatives (--max-response-logprobs)"
            ),
        )


def count_sequences(prompt: PreparedPrompt) -> int:
    """The number of sequences that answer a prompt."""
    if prompt.pooling is not None:
        return 1
    if prompt.beam is not None:
        return prompt.beam.beam_width
    return max(prompt.params.n, prompt.params.best_of or 1)


def check_range(name: str, found: int, most: int, what: str, least: int = 1) -> None:
    if not least <= found <= most:
        raise RequestError(f": {found} {what}", name, allowed=f"{least} to {most}")


class RequestModel:
    """One model.  Requests name it by one of `names`, which clients are shown, or of `aliases`,
    which they are not.
    """

    def __init__(
        self,
        settings: ServerSettings,
        preparer: RequestPreparer,
        defaults: dict[str, Any],
        names: Sequence[str],
        aliases: Collection[str],
        log: ServerLog,
        counts: ServerCounters | None = None,
    ) -> None:
        self.settings, self.preparer, self.log = settings, preparer, log
        self.defaults, self.names, self.aliases = defaults, tuple(names), frozenset(aliases)
        self.chat_format = ChatFormat.of(settings, preparer.tokenizer)
        self.counts = counts or ServerCounters(preparer.facts.max_model_len)
        self.created = self.now()
        self.token_cache = TokenCache(settings.token_cache_bytes, self.counts.count_token_query)
        self.validator = ConstraintValidator(
            lambda: list_special_tokens(preparer.tokenizer),
            settings.schema_compile_timeout,
            most=max(LEAST_VALIDATED, settings.max_queued_requests // 4),
        )
        self._readers = ThreadPoolExecutor(READERS, "reader")

    def now(self) -> int:
        """Seconds since 1970: OpenAI's `created`."""
        return int(time.time())

    @cached_property
    def infill(self) -> Infill | None:
        """The tokenizer's marks for text to fill in; searched at the first request for it."""
        return Infill.of(self.tokenizer)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.preparer.tokenizer

    def cache_tokens(self, tenant: str, salt: str | None) -> Tokenizer:
        """The tokenizer, which knows earlier prompts of this tenant with this salt."""
        if not self.token_cache.most:
            return self.tokenizer
        codec = CachedCodec(self.tokenizer.codec, self.token_cache, tenant, salt or "")
        return replace(self.tokenizer, codec=codec)

    @property
    def max_model_len(self) -> int:
        return self.preparer.facts.max_model_len

    @property
    def all_names(self) -> list[str]:
        """The names that clients are shown, then those of the adapters."""
        return [*self.names, *self.preparer.facts.adapters]

    def serves(self, name: str) -> bool:
        """Whether a request for `name` runs here; an adapter is a model of its own name."""
        return name in self.aliases or name in self.all_names

    def make_context(
        self,
        model: str | None,
        cache_salt: str | None,
        priority: int | None,
        return_cache_explanation: bool | None = None,
        return_cost: bool | None = None,
    ) -> RequestContext:
        """How a request for `model`, a name that this model `serves`, is run."""
        adapter = model if model in self.preparer.facts.adapters else ""
        explain, measure = bool(return_cache_explanation), bool(return_cost)
        return RequestContext(cache_salt or "", priority or 0, adapter, explain, measure)

    async def run_in_thread(self, work: Callable[..., T], *args: Any) -> T:
        """Runs work that a long prompt makes slow, outside the event loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, work, *args)

    async def prepare(
        self,
        prompts: Sequence[Any],
        params: Params,
        context: RequestContext,
        schema: str = "",
        copies: int = 1,
        tenant: str | None = None,
    ) -> list[PreparedPrompt]:
        """Tokenizes and checks prompts and output constraints; a prompt that takes time to make is
        a function, called in a thread.  `schema` is the field of the client's schema, if that is
        not structured_outputs; log-probabilities of a prompt are returned `copies` times.  Token
        ids are kept for other requests of the `tenant`; None: they are not kept.
        """
        check_options(self.settings, len(prompts), params)
        if isinstance(params, SamplingParams) and params.structured_outputs is not None:
            await self.constrain(params.structured_outputs, schema)
        totals = RequestTotals(self.settings, self.max_model_len, copies)
        cancelled = Event()
        known = None if tenant is None else self.cache_tokens(tenant, context.salt)
        try:
            return await self.run_in_thread(
                self._prepare, prompts, params, context, totals, cancelled, known
            )
        finally:
            cancelled.set()

    def _prepare(
        self,
        prompts: Sequence[Any],
        params: Params,
        context: RequestContext,
        totals: RequestTotals,
        cancelled: Event,
        known: Tokenizer | None,
    ) -> list[PreparedPrompt]:
        """Prepares each prompt, until the sum exceeds a limit or the request is cancelled."""
        prepared: list[PreparedPrompt] = []
        for prompt in prompts:
            if cancelled.is_set():
                break
            made = prompt() if callable(prompt) else prompt
            if known is not None and isinstance(made, str):
                ids = encode_prompt(known, made, self.max_model_len)
                made = {"prompt": made, "prompt_token_ids": ids}
            one = self.preparer.prepare(made, params, context)
            totals.add(one)
            prepared.append(one)
        return prepared

    async def constrain(self, outputs: StructuredOutputs, schema: str) -> None:
        """Raises `RequestError` if the constraint does not compile, `HttpError` if too many wait
        for that.
        """
        with field_names(map_constraint_names(schema)):
            check(outputs, self.settings.max_schema_bytes, self.settings.max_schema_depth)
            await self.validator.check(outputs)
