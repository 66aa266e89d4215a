"""What all APIs and all models share: the admission queue, the log, the metrics.

Invariant: whatever happens to a client, the requests it started are ended.  Knows no API.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from starlette.requests import Request

from flyweight.describe import LoadListener
from flyweight.errors import CheckpointError, ConfigError
from flyweight.requests.prompts import PreparedPrompt
from flyweight.server.admission.batching import RequestBatcher
from flyweight.server.admission.deadlines import TimedRequest
from flyweight.server.admission.overload import OverloadLadder
from flyweight.server.admission.queue import AdmissionQueue, Preparation
from flyweight.server.admission.request_group import AdmittedRequest, RequestGroup
from flyweight.server.model_directory import ModelDirectory
from flyweight.server.model_entry import ModelEntry
from flyweight.server.model_options import ModelChanges
from flyweight.server.observability.costs import MachineCosts
from flyweight.server.observability.counters import HttpCounts
from flyweight.server.observability.log import ServerLog
from flyweight.server.observability.metrics import MetricsPage
from flyweight.server.overload_steps import OverloadStep
from flyweight.server.request_model import count_sequences
from flyweight.server.served_model import ServedModel
from flyweight.server.settings import ServerSettings
from flyweight.server.transport.errors import HttpError, hide_folders
from flyweight.server.transport.replies import format_names, set_header
from flyweight.server.transport.request_log import get_record

T = TypeVar("T")
WRITERS = 2  # threads that write long replies
PREDICTED, DEGRADED = "x-predicted-", "x-flyweight-degraded"  # headers of replies


class ChangesModels(Protocol):
    """Changes which models are served; see `lifecycle.updates`."""

    async def reload(self) -> ModelChanges: ...
    async def pull(self, name: str, tell: LoadListener) -> None: ...
    def parse(self, name: str) -> object: ...


class ApiServer:
    """There is one per process."""

    def __init__(
        self,
        settings: ServerSettings,
        directory: ModelDirectory,
        log: ServerLog,
        updates: ChangesModels,
    ) -> None:
        self.settings, self.directory, self.log = settings, directory, log
        self.queue, self.batcher = AdmissionQueue(settings), RequestBatcher(settings)
        self.ladder = OverloadLadder(settings, self.queue)
        self.updates = updates
        self.groups: set[RequestGroup] = set()  # of the HTTP requests being answered
        self.http = HttpCounts()
        costs = MachineCosts(settings)
        self.metrics = MetricsPage(directory.entries, self.queue.refused, self.http, costs)
        self.document: asyncio.Future[bytes] | None = None  # OpenAPI, once it was requested
        self._writers = ThreadPoolExecutor(WRITERS, "writer")

    async def open(self, request: Request, name: str | None = None) -> ServedModel:
        """The model that a request names, or the default; loaded first if it is not.  It stays
        loaded until `release_models`.  Raises `HttpError`.
        """
        return await self._open_entry(request, self.directory.find(name))

    async def open_to_generate(self, request: Request, name: str | None = None) -> ServedModel:
        """The same, or the model that an overload step names in its place."""
        chosen = None
        if not request.scope.get("as_named"):
            chosen = self.ladder.choose_model(self.directory, name)
        if chosen is None:
            return await self.open(request, name)
        entry, request.scope["model_step"] = chosen
        return await self._open_entry(request, entry)

    async def _open_entry(self, request: Request, entry: ModelEntry) -> ServedModel:
        began, loaded = time.monotonic(), entry.model is not None
        try:
            model = await self.directory.open(entry)
        except (CheckpointError, ConfigError) as error:
            reason = entry.failure or hide_folders(str(error))
            words = f"model = {entry.name} cannot be loaded: {reason}"
            raise HttpError(503, words, "model", code="model_not_loaded") from None
        model.hold()
        if not loaded:
            get_record(request.scope).loading += time.monotonic() - began
        request.scope.setdefault("models", []).append(model)
        return model

    def keep_model(self, request: Request) -> bool:
        """Whether another model than the named one was to answer; now the named one will."""
        request.scope["as_named"] = True
        return request.scope.pop("model_step", None) is not None

    def serves(self, name: str) -> bool:
        return any(entry.serves(name) for entry in self.directory.entries)

    async def write_in_thread(self, work: Callable[[], T]) -> T:
        """Writes a long reply outside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._writers, work)

    def begin(
        self,
        model: ServedModel,
        prompts: Sequence[PreparedPrompt],
        request: Request,
        *,
        stream: bool = False,
    ) -> RequestGroup:
        """Runs the prompts of an HTTP request, those of a `stream` without waiting for a batch.
        Raises `HttpError` where the queue is full, or a strict deadline is predicted to be missed.
        """
        record = get_record(request.scope)
        admitted = self._admit(model, prompts, request, record.began, stream=stream)
        preparation = request.scope.get("preparation")
        if isinstance(preparation, Preparation):
            preparation.end()
        record.model, record.prepared = model.names[0], time.monotonic()
        group = RequestGroup(model, self.queue, self.groups, admitted, record.note_start)
        record.collectors = group.collectors
        return group

    def _admit(
        self,
        model: ServedModel,
        prompts: Sequence[PreparedPrompt],
        request: Request,
        arrived: float,
        *,
        stream: bool,
    ) -> AdmittedRequest:
        """Applies overload steps and deadlines, and takes a place in the queue.  Raises
        `HttpError`.
        """
        own = separate_tenant(prompts, get_tenant(request))
        changed, done = self.ladder.change_prompts(model, own)
        timed: TimedRequest | None = None
        notes = dict[str, Any]()
        if changed and changed[0].pooling is None:
            timed = TimedRequest(model, changed, arrived, request.scope.get("deadlines"))
            notes |= note_prediction(request, timed)
            timed.check()
            if self.settings.max_priority:  # else requests start as they arrived
                changed = timed.schedule(changed)
        choices = sum(count_sequences(one) for one in changed)
        reservation = self.queue.enter(choices, sum(len(one.tokens) for one in changed))
        notes |= note_steps(model, request, done) | note_loading(request)
        batcher = self.batcher if self.batcher.enabled and not stream else None
        loading = get_record(request.scope).loading
        return AdmittedRequest(changed, reservation, arrived, loading, batcher, timed, notes)


def separate_tenant(prompts: Sequence[PreparedPrompt], tenant: str) -> Sequence[PreparedPrompt]:
    """The prompts with a salt of their tenant's, if there are several."""
    if not tenant:
        return prompts
    return [  # a tenant is of fixed length, so that no tenant and salt read like another pair
        replace(one, lane=replace(one.lane, salt=tenant + one.lane.salt)) for one in prompts
    ]


def get_tenant(request: Request) -> str:
    """Whose prefix cache a request may use: the hash of its API key, or "" where keys share one."""
    found: str = request.scope.get("tenant", "")
    return found


def note_steps(
    model: ServedModel, request: Request, done: Sequence[OverloadStep]
) -> dict[str, Any]:
    """The overload steps that changed a request, in its headers and for its reply."""
    chosen = request.scope.get("model_step")
    steps = [*done] if chosen is None else [chosen, *done]
    if not steps:
        return {}
    for one in steps:
        model.counts.degraded[one.kind] += 1
    names = [str(one) for one in steps]
    set_header(request, DEGRADED, format_names(names))
    return {"degraded": names}


def note_loading(request: Request) -> dict[str, Any]:
    """How long a request waited for its model to be loaded, if it did."""
    seconds = get_record(request.scope).loading
    return {"load_time_ms": round(1000 * seconds, 3)} if seconds else {}


def note_prediction(request: Request, timed: TimedRequest) -> dict[str, Any]:
    """What is predicted of a request with deadlines, in its headers and for its reply."""
    found = timed.prediction
    for name, milliseconds in found.items():
        set_header(request, PREDICTED + name.replace("_", "-"), f"{milliseconds:.15g}")
    return {f"predicted_{name}": milliseconds for name, milliseconds in found.items()}


def release_models(request: Request) -> None:
    """A request's handler has ended; what it began goes on."""
    for model in request.scope.pop("models", ()):
        model.release()
