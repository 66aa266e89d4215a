"""What all dialects share: the served model, making prompts off the event loop, running requests.

Invariant: nothing reaches the engine that was not checked; whatever becomes of a client, what it
began is ended.  Knows no dialect.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from threading import Event
from typing import Any, TypeVar

from starlette.requests import Request

from flyweight.errors import RequestError, field_names, nearest
from flyweight.params.structured import StructuredOutputs, check
from flyweight.params.tasks import BeamSearchParams
from flyweight.requests.preparing import Params, RequestPreparer, spelled
from flyweight.requests.prompts import PreparedPrompt, RequestContext
from flyweight.server.admission.preparing import Preparation
from flyweight.server.admission.queue import AdmissionQueue
from flyweight.server.admission.request_group import RequestGroup, width
from flyweight.server.apis.body import Body, read
from flyweight.server.apis.output_formats import form_keywords
from flyweight.server.chat_format import ChatFormat
from flyweight.server.constraints.validator import ConstraintValidator, constraint_names
from flyweight.server.engine_client.client import EngineClient
from flyweight.server.observability.counters import ServerCounters
from flyweight.server.observability.effective_config import EffectiveConfiguration
from flyweight.server.observability.log import ServerLog
from flyweight.server.observability.metrics import MetricsPage
from flyweight.server.observability.watch import StepObserver
from flyweight.server.settings import ServerSettings
from flyweight.server.transport.errors import HttpError
from flyweight.server.transport.ignored import ignore_keywords
from flyweight.server.transport.request_log import visit_of
from flyweight.text.infill import Infill
from flyweight.text.tokenizer import Tokenizer
from flyweight.types import SamplingParams
from flyweight.validation.untrusted import shown

T = TypeVar("T")
READERS = 2  # threads that tokenise and render; one long prompt does not hold up all others
LEAST_JUDGED = 16  # requests that may wait for constraints; else a quarter of all that wait
WRITERS = 2  # threads that write long replies


class ServedModel:
    """The server's insides: one model on one engine.  Requests may name the model as in `names`,
    which clients are told, or as in `also`, which they are not.
    """

    def __init__(
        self,
        settings: ServerSettings,
        client: EngineClient,
        asking: RequestPreparer,
        defaults: dict[str, Any],
        names: Sequence[str],
        ledger: EffectiveConfiguration,
        also: Collection[str] = (),
    ) -> None:
        self.settings, self.client, self.asking = settings, client, asking
        self.defaults, self.names, self.also = defaults, tuple(names), frozenset(also)
        self.speech = ChatFormat.of(settings, asking.tokenizer)
        self.door = AdmissionQueue(settings)
        self.log = ServerLog(settings.log_format)
        self.counts = ServerCounters(asking.facts.max_model_len)
        self.watch = StepObserver(self.counts, lambda: client.streams, self.log)
        self.metrics = MetricsPage(self.counts, client, self.names[0], self.door.refused)
        self.groups: set[RequestGroup] = set()  # of the HTTP requests being answered
        self.ledger = ledger
        self.created = int(time.time())
        self.document: asyncio.Future[bytes] | None = None  # of its routes, once it was asked for
        self.judges = ConstraintValidator(
            lambda: spelled(asking.tokenizer),
            settings.compile_seconds,
            most=max(LEAST_JUDGED, settings.queue_requests // 4),
        )
        self._readers = ThreadPoolExecutor(READERS, "reader")
        self._writers = ThreadPoolExecutor(WRITERS, "writer")

    def now(self) -> int:
        """Seconds since 1970, as OpenAI's `created` has them."""
        return int(time.time())

    @cached_property
    def infill(self) -> Infill | None:
        """How a hole is marked; looked for when it is first asked for."""
        return Infill.of(self.tokenizer)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.asking.tokenizer

    def read(self, request: Request, raw: bytes, kind: type[Body]) -> Body:
        """A body as what its route takes.  Raises `HttpError`."""
        return read(self.settings, request, raw, kind)

    async def aside(self, work: Callable[..., T], *args: Any) -> T:
        """Runs what takes long for a long prompt, away from the event loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, work, *args)

    async def written(self, work: Callable[[], T]) -> T:
        """A long reply, made away from the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._writers, work)

    def lane(
        self,
        model: str | None,
        salt: str | None,
        priority: int | None,
        explain: bool | None = None,
    ) -> RequestContext:
        """How a request for `model` runs; an adapter is a model of its own name."""
        if model is not None and not self.serves(model):
            raise self.unserved(model)
        adapter = model if model in self.asking.facts.adapters else ""
        return RequestContext(salt or "", priority or 0, adapter, bool(explain))

    def serves(self, model: str) -> bool:
        return model in self.names or model in self.also or model in self.asking.facts.adapters

    def unserved(self, model: str) -> HttpError:
        """Of a name nothing here has."""
        known = [*self.names, *self.asking.facts.adapters]
        near = nearest(model[:200], known)
        words = f"model = {shown(model)} is not served{near}; served: {', '.join(known)}"
        return HttpError(404, words, "model", code="model_not_found")

    async def ask(
        self,
        prompts: Sequence[Any],
        params: Params,
        lane: RequestContext,
        schema: str = "",
        told: int = 1,
    ) -> list[PreparedPrompt]:
        """Prompts tokenised and checked, and what their answers must look like; one that takes work
        to make is a function, called aside.  `schema` is where the client has it, if that is not
        structured_outputs; log-probabilities of a prompt that are asked for are `told` so often.
        """
        self._judge(len(prompts), params)
        if isinstance(params, SamplingParams) and params.structured_outputs is not None:
            await self.constrain(params.structured_outputs, schema)
        left = Event()
        try:
            return await self.aside(self._read, prompts, params, lane, left, told)
        finally:
            left.set()

    async def constrain(self, outputs: StructuredOutputs, schema: str) -> None:
        """Raises `RequestError` where that cannot be kept to, `HttpError` where too many ask."""
        with field_names(constraint_names(schema)):
            check(outputs, self.settings.schema_bytes, self.settings.schema_depth)
            await self.judges.check(outputs)

    def begin(self, asked: Sequence[PreparedPrompt], request: Request) -> RequestGroup:
        """Runs checked prompts, of an HTTP request.  Raises `HttpError` where there is no room."""
        tenant = request.scope.get("tenant", "")
        if tenant:  # of fixed length, so that no key and salt read like another pair
            asked = [
                replace(one, lane=replace(one.lane, salt=tenant + one.lane.salt)) for one in asked
            ]
        for form in {one.params.structured_outputs for one in asked} - {None}:
            ignore_keywords(request, form_keywords(form))
        choices = sum(width(one) for one in asked)
        tokens = sum(len(one.tokens) for one in asked)
        place = self.door.enter(choices, tokens)
        preparation = request.scope.get("preparation")
        if isinstance(preparation, Preparation):
            preparation.end()
        visit = visit_of(request.scope)
        bundle = RequestGroup(self, asked, place, visit.began)
        visit.collectors = bundle.collectors
        return bundle

    def _judge(self, prompts: int, params: Params) -> None:
        """What a request may ask for, before any of it is read."""
        limits = self.settings
        within("prompt", prompts, limits.prompts, "prompts")
        if isinstance(params, BeamSearchParams):
            within("n", params.beam_width, limits.choices, "beams of a prompt")
            within("n", params.beam_width * prompts, limits.request_choices, "beams of all prompts")
        if not isinstance(params, SamplingParams):
            return
        choices = max(params.n, params.best_of or 1)
        within("n", choices, limits.choices, "choices of a prompt")
        within("n", choices * prompts, limits.request_choices, "choices of all prompts")
        within("stop", len(params.stop), limits.stops, "strings", least=0)
        longest = max((len(one.encode()) for one in params.stop), default=0)
        within("stop", longest, limits.stop_bytes, "bytes of a string", least=0)
        for name in ("logprobs", "prompt_logprobs"):
            within(name, getattr(params, name) or 0, limits.logprobs, "of a token", least=0)
        listed = len(params.logprob_token_ids)
        within("logprob_token_ids", listed, limits.logprobs, "ids", least=0)
        within("logit_bias", len(params.logit_bias), limits.biases, "entries", least=0)

    def _read(
        self, prompts: Sequence[Any], params: Params, lane: RequestContext, left: Event, told: int
    ) -> list[PreparedPrompt]:
        """Each prompt, until all choices so far would come to too much, or nobody waits."""
        most, total, scores, answers = self.settings.request_tokens, 0, 0, 0
        asked: list[PreparedPrompt] = []
        for prompt in prompts:
            if left.is_set():
                break
            given = prompt() if callable(prompt) else prompt
            one = self.asking.ask(given, params, lane)
            total += self._weight(one)
            within("max_tokens", total, most, "tokens of all prompts and choices", least=0)
            if one.params.prompt_logprobs is not None:
                scores += told * len(one.tokens) * (1 + one.params.prompt_logprobs)
                self._judge_scores(scores, one.params)
            if one.params.scored is not None:
                answers += width(one) * self._longest(one) * (1 + one.params.scored)
                self._judge_answers(answers, one.params)
            asked.append(one)
        return asked

    def _judge_scores(self, found: int, params: SamplingParams) -> None:
        """All that is told of prompts: each of their tokens with its alternatives, so often."""
        most = self.settings.prompt_scores
        if found <= most:
            return
        repeated = params.echo and params.logprobs == params.prompt_logprobs
        name = "logprobs" if repeated else "prompt_logprobs"
        raise RequestError(
            f"would tell {found} log-probabilities of prompts (n x tokens of the prompts "
            f"x (1 + {name}))",
            name,
            value=params.prompt_logprobs,
            allowed=(
                f"0 to {most}, with fewer choices (n), shorter prompts or fewer "
                "alternatives; --max-prompt-scores sets that"
            ),
        )

    def _judge_answers(self, found: int, params: SamplingParams) -> None:
        """All that may be told of answers, which is kept until they have ended, streamed or not."""
        most = self.settings.answer_scores
        if found <= most:
            return
        listed = bool(params.logprob_token_ids)
        name = "logprob_token_ids" if listed else "logprobs"
        value = f"of {params.scored} ids" if listed else f"= {params.scored}"
        raise RequestError(
            f"{value} may tell {found} log-probabilities of answers (choices x "
            f"max_tokens x (1 + {params.scored}))",
            name,
            allowed=(
                f"0 to {most}, with fewer choices (n), a smaller max_tokens or fewer "
                "alternatives; --max-answer-scores sets that"
            ),
        )

    def _longest(self, one: PreparedPrompt) -> int:
        """Tokens of an answer at most."""
        answer = (one.beam or one.params).max_tokens
        room = self.asking.facts.max_model_len - len(one.tokens)
        return room if answer is None else min(room, answer)

    def _weight(self, one: PreparedPrompt) -> int:
        """Tokens of a prompt and its choices at most."""
        return width(one) * (len(one.tokens) + self._longest(one))


def within(name: str, found: int, most: int, what: str, least: int = 1) -> None:
    if not least <= found <= most:
        raise RequestError(f": {found} {what}", name, allowed=f"{least} to {most}")
