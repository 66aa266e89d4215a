"""A model that may be served: its names and options, the client of its engine, and its
`ServedModel` while it is loaded.

Invariant: it is not unloaded while a request uses it.  Counters outlive the model.  Knows no HTTP
and no other model.
"""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from flyweight.describe import DEFAULT_MODEL, LoadListener, find, find_here
from flyweight.server import pipe
from flyweight.server.engine_client import EngineClient
from flyweight.server.latency import LatencyModel
from flyweight.server.model_options import ModelOptions
from flyweight.server.observability.counters import ServerCounters
from flyweight.server.replicas.places import find_snapshot
from flyweight.server.served_model import ServedModel


class ModelEntry:
    """Clients are shown its `own` names; requests may also use those of `also`.  `counts` and
    `latency` are of all its engines, one after another; `loads` is how many there were.  `failure`
    is why it could not be loaded when that was tried last, else empty; `loading_since` is when the
    last load was requested.
    `parents` are what adapters' base models are called in lists, where that is not this model.
    """

    def __init__(
        self,
        options: ModelOptions,
        client: EngineClient,
        own: Sequence[str],
        also: Collection[str] = (),
        parents: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.options, self.client, self.parents = options, client, parents
        self.own, self.also = tuple(own), frozenset(also)
        self.created = int(time.time())
        self.path: Path | None = None
        self.model: ServedModel | None = None
        self.counts: ServerCounters | None = None
        self.latency = LatencyModel()
        self.keep_alive = options.keep_alive
        self.loading: asyncio.Task[ServedModel] | None = None
        self.awaited = 0  # requests that wait for it to be loaded
        self.loading_since = 0.0
        self.loads = 0
        self.failure = ""
        self._later: tuple[ModelOptions, pipe.EngineSetup] | None = None
        self._changed = False  # newer files were fetched

    @property
    def newest(self) -> ModelOptions:
        """Its options from the next load on."""
        return self._later[0] if self._later is not None else self.options

    def change(self, options: ModelOptions, setup: pipe.EngineSetup) -> bool:
        """Sets other options, which apply from the next load on; whether they differ."""
        differs = options != self.newest
        begin = self.client.begin
        same = (setup.room, setup.fixed) == (begin.room, begin.fixed)
        self._later = None if same and options == self.options else (options, setup)
        if self.model is None and self.loading is None:
            self.apply_change()
        return differs

    def apply_change(self) -> None:
        """Called before it is loaded."""
        if self._changed:
            self._changed, self.path = False, None
        if self._later is None:
            return
        (options, setup), self._later = self._later, None
        if options.keep_alive != self.options.keep_alive:
            self.keep_alive = options.keep_alive
        self.latency = LatencyModel()  # with other options steps may take other times
        setup.fault = self.client.begin.fault
        self.options, self.client.begin, self.path = options, setup, None

    def note_new_files(self) -> None:
        """The next load finds the model's files anew."""
        self._changed = True

    @property
    def is_here(self) -> bool:
        """Whether the model is a file or folder of this machine."""
        return find_here(self.options.settings.model or DEFAULT_MODEL) is not None

    def list_paths(self) -> list[Path]:
        """Of the files and folders that its settings name, and of the model."""
        settings = self.options.settings
        drafts = settings.speculation.options.get("model") if settings.speculation else None
        given = [*settings.adapters.values(), drafts, settings.prefix_cache_dir]
        named = [Path(one) for one in given if one]
        return [self.path, *named] if self.path is not None else named

    def find(self, show: LoadListener) -> Path:
        """The model's files, which may be fetched from the Hub; its engines have the same commit.
        Raises `ConfigError` or `CheckpointError`.
        """
        if self.path is None:
            given = self.options.settings.model
            self.path = find(self.options.settings, show)
            settings = self.client.begin.settings
            settings["model"] = str(self.path)
            if (
                given is not None
                and find_here(given) is None
                and (snapshot := find_snapshot(self.path))
            ):
                settings["revision"] = snapshot.commit
        return self.path

    @property
    def state(self) -> str:
        if self.model is not None:  # after the process ended, its engine is loaded again
            return "loaded" if self.client.ready else "loading"
        if self.loading is not None:
            return "loading"
        return "failed" if self.failure else "unloaded"

    @property
    def loading_seconds(self) -> float | None:
        """How long its load has been under way, others' before it included; None without one.  A
        load after the end of the process begins with that end.
        """
        if self.state != "loading":
            return None
        since = self.loading_since if self.model is None else self.client.lost_since
        return time.monotonic() - since

    @property
    def idle(self) -> bool:
        """Whether it is loaded, and no request uses it or has waited for it."""
        used = self.awaited or self.client.streams or (self.model is not None and self.model.users)
        return self.model is not None and not used

    @property
    def name(self) -> str:
        return self.own[0]

    @property
    def names(self) -> list[str]:
        """What clients are shown: its own name, then those of its adapters."""
        return [*self.own, *self.options.settings.adapters]

    def serves(self, name: str) -> bool:
        return name in self.also or name in self.names

    def observe_step(self, message: pipe.StepReport) -> None:
        """Counts a step of the engine, before its events are passed on."""
        model = self.model
        if model is None:
            return
        model.observer.observe_step(message)
        model.latency.record_step(message.gauges)
        for warning in model.effective.note(model.counts):
            model.log.event("no_effect", warning=warning)
