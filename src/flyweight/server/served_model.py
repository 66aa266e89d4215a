"""A model that is served: its tokenizer, chat format, limits, and the client of its engine.

Invariant: nothing reaches the engine unchecked, and prompts are prepared off the event loop.  Knows
no API, and no other model.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from threading import Event
from typing import Any, TypeVar

from flyweight.errors import field_names
from flyweight.params.structured import StructuredOutputs, check
from flyweight.requests.preparing import Params, RequestPreparer, list_special_tokens
from flyweight.requests.prompts import PreparedPrompt, RequestContext
from flyweight.server.chat_format import ChatFormat
from flyweight.server.constraints.validator import ConstraintValidator, map_constraint_names
from flyweight.server.engine_client.client import EngineClient
from flyweight.server.observability.counters import ServerCounters
from flyweight.server.observability.effective_config import EffectiveConfiguration
from flyweight.server.observability.log import ServerLog
from flyweight.server.observability.watch import StepObserver
from flyweight.server.request_limits import RequestTotals, check_options
from flyweight.server.settings import ServerSettings
from flyweight.text.infill import Infill
from flyweight.text.tokenizer import Tokenizer
from flyweight.types import SamplingParams

T = TypeVar("T")
READERS = 2  # threads that tokenize and render: one long prompt does not delay all others
LEAST_VALIDATED = 16  # requests that may wait for constraints; else a quarter of the queue


class ServedModel:
    """What there is one of per model.  Requests name the model by one of `names`, which clients are
    shown, or of `aliases`, which they are not.
    """

    def __init__(
        self,
        settings: ServerSettings,
        client: EngineClient,
        preparer: RequestPreparer,
        defaults: dict[str, Any],
        names: Sequence[str],
        aliases: Collection[str],
        effective: EffectiveConfiguration,
        log: ServerLog,
    ) -> None:
        self.settings, self.client, self.preparer = settings, client, preparer
        self.defaults, self.names, self.aliases = defaults, tuple(names), frozenset(aliases)
        self.effective, self.log = effective, log
        self.chat_format = ChatFormat.of(settings, preparer.tokenizer)
        self.counts = ServerCounters(preparer.facts.max_model_len)
        self.observer = StepObserver(self.counts, lambda: client.streams, log)
        self.created = self.now()
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
        """How the tokenizer marks text to fill in; looked for at the first request for it."""
        return Infill.of(self.tokenizer)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.preparer.tokenizer

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

    def context(
        self,
        name: str | None,
        salt: str | None,
        priority: int | None,
        explain: bool | None = None,
    ) -> RequestContext:
        """How a request for `name` runs, which is a name that this model `serves`."""
        adapter = name if name in self.preparer.facts.adapters else ""
        return RequestContext(salt or "", priority or 0, adapter, bool(explain))

    async def run_in_thread(self, work: Callable[..., T], *args: Any) -> T:
        """Runs what takes long for a long prompt, off the event loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, work, *args)

    async def prepare(
        self,
        prompts: Sequence[Any],
        params: Params,
        context: RequestContext,
        schema: str = "",
        copies: int = 1,
    ) -> list[PreparedPrompt]:
        """Tokenizes and checks prompts and output constraints; a prompt that takes work to make is
        a function, called in a thread.  `schema` is the field of the client's schema, if that is
        not structured_outputs; log-probabilities of a prompt are returned `copies` times.
        """
        check_options(self.settings, len(prompts), params)
        if isinstance(params, SamplingParams) and params.structured_outputs is not None:
            await self.constrain(params.structured_outputs, schema)
        totals = RequestTotals(self.settings, self.max_model_len, copies)
        cancelled = Event()
        try:
            return await self.run_in_thread(
                self._prepare, prompts, params, context, totals, cancelled
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
    ) -> list[PreparedPrompt]:
        """Prepares each prompt, until the sum exceeds a limit or the request is cancelled."""
        prepared: list[PreparedPrompt] = []
        for prompt in prompts:
            if cancelled.is_set():
                break
            one = self.preparer.ask(prompt() if callable(prompt) else prompt, params, context)
            totals.add(one)
            prepared.append(one)
        return prepared

    async def constrain(self, outputs: StructuredOutputs, schema: str) -> None:
        """Raises `RequestError` where the constraint does not compile, `HttpError` where too many
        wait for that.
        """
        with field_names(map_constraint_names(schema)):
            check(outputs, self.settings.max_schema_bytes, self.settings.max_schema_depth)
            await self.validator.check(outputs)
