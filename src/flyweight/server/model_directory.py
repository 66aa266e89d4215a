"""The models of a server: loaded when a request names one, and unloaded when another needs the
memory.

Invariant: one model is loaded or unloaded at a time, while others may be fetched or wait for
memory; a model that a request uses stays.  What is unloaded first is what was used longest ago.  A
model that cannot be loaded is marked as failed, and the next request for it tries again.  What was
begun goes on where the client leaves.  Knows no API.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from flyweight.errors import (
    CheckpointError,
    ConfigError,
    FlyweightError,
    MemoryShortage,
    nearest,
)
from flyweight.server.engine_host import Host
from flyweight.server.model_entry import ModelEntry
from flyweight.server.model_options import FOREVER
from flyweight.server.observability.log import ServerLog
from flyweight.server.served_model import ServedModel
from flyweight.server.transport.errors import HttpError, hide_folders
from flyweight.validation.untrusted import shown

POLL = 0.05  # seconds between looks at whether a model is idle
EXPIRY = 1.0  # the same, for models that are not kept alive
FetchModel = Callable[[ModelEntry], Awaitable[None]]
MakeModel = Callable[[ModelEntry], Awaitable[ServedModel]]


class ModelDirectory:
    """`entries` is not empty; the first is the default.  `fetch` finds an entry's files, `make`
    loads its engine and gives its model.  A load waits `patience` seconds for others' models to
    become idle.
    """

    def __init__(
        self,
        entries: Sequence[ModelEntry],
        host: Host,
        fetch: FetchModel,
        make: MakeModel,
        log: ServerLog,
        patience: float,
    ) -> None:
        self.entries, self.host, self.log = list(entries), host, log
        self.patience = patience
        self._leaving: list[ModelEntry] = []  # served no more, but not unloaded yet
        host.on_given_up = self._note_given_up
        self._fetch, self._make = fetch, make
        self._lock = asyncio.Lock()
        self._unloading: set[asyncio.Task[None]] = set()
        self._expiring: asyncio.Task[None] | None = None

    @property
    def first(self) -> ModelEntry:
        return self.entries[0]

    @property
    def known(self) -> list[ModelEntry]:
        """The models that are served, and those that were and are not unloaded yet."""
        return [*self.entries, *self._leaving]

    @property
    def loaded(self) -> list[ServedModel]:
        return [entry.model for entry in self.entries if entry.model is not None]

    @property
    def names(self) -> list[str]:
        return [name for entry in self.entries for name in entry.names]

    def find(self, name: str | None) -> ModelEntry:
        """The entry that a request names, or the default.  Raises `HttpError`."""
        for entry in self.entries:
            if name is None or entry.serves(name):
                return entry
        near = nearest((name or "")[:200], self.names)
        words = f"model = {shown(name)} is not served{near}; served: {', '.join(self.names)}"
        raise HttpError(404, words, "model", code="model_not_found")

    async def open(self, entry: ModelEntry) -> ServedModel:
        """The entry's model, which is loaded if it is not.  Raises `HttpError`, or `ConfigError`
        where it cannot be loaded.
        """
        while entry.model is None:
            if entry not in self.entries:
                self.find(entry.name)  # raises: it is not served any more
            entry.awaited += 1
            try:
                await asyncio.shield(self.start(entry))  # it goes on if this client leaves
            finally:
                entry.awaited -= 1
        return entry.model

    def start(self, entry: ModelEntry) -> "asyncio.Task[ServedModel]":
        """Starts to load an entry that is not loaded, or returns the load that runs."""
        if entry.loading is None:
            entry.loading_since = time.monotonic()
            entry.loading = asyncio.get_running_loop().create_task(self._load(entry))
            entry.loading.add_done_callback(note_failure)
        return entry.loading

    def replace(self, entries: Sequence[ModelEntry]) -> None:
        """The models from now on; those that are left out are unloaded once they are idle."""
        known, self.entries[:] = self.known, entries
        self._leaving = [entry for entry in known if entry not in entries]
        self.start_expiry()

    async def unload(self, entry: ModelEntry) -> None:
        """Raises `HttpError` while a request uses it."""
        check_idle(entry)  # at once, also while another model is loaded
        task = asyncio.get_running_loop().create_task(self._unload(entry))
        self._unloading.add(task)
        task.add_done_callback(self._unloading.discard)
        task.add_done_callback(note_failure)
        await asyncio.shield(task)  # half an unload would leave the engine without its client

    async def _unload(self, entry: ModelEntry) -> None:
        if entry.loading is not None:
            await asyncio.wait([entry.loading])
        async with self._lock:
            check_idle(entry)
            if entry.model is not None:
                await self._drop(entry, "requested")

    def keep(self, entry: ModelEntry, seconds: float) -> None:
        """How long the entry's model is kept after its last request, from now on."""
        entry.keep_alive = seconds
        self.start_expiry()

    def start_expiry(self) -> None:
        """Unloads models that are not kept for ever, if there are any."""
        finite = any(entry.keep_alive < FOREVER for entry in self.entries)
        if (finite or self._leaving) and self._expiring is None:
            self._expiring = asyncio.get_running_loop().create_task(self._expire())

    async def close(self) -> None:
        if self._expiring is not None:
            self._expiring.cancel()
        for entry in self.known:
            if entry.model is not None:
                await entry.model.validator.close()

    # --- loading ---

    async def _load(self, entry: ModelEntry) -> ServedModel:
        try:
            entry.apply_change()
            await self._fetch(entry)
            return await self._load_in_turn(entry)
        except (CheckpointError, ConfigError) as error:
            self._note_failure(entry, error)
            raise
        finally:
            entry.loading = None

    def _note_failure(self, entry: ModelEntry, error: FlyweightError) -> None:
        """Marks an entry that cannot be loaded; clients are shown no folder."""
        text = str(error)
        for path in entry.list_paths():
            text = text.replace(str(path), path.name)
        entry.failure = hide_folders(text)
        self.log.event("model_failed", model=entry.name, reason=error)

    async def _note_given_up(self, number: int, error: FlyweightError) -> None:
        """The engine process was started again, without this engine."""
        for entry in self.known:
            if entry.client.number == number:
                model, entry.model = entry.model, None
                self._note_failure(entry, error)
                if model is not None:
                    await model.validator.close()

    async def _load_in_turn(self, entry: ModelEntry) -> ServedModel:
        """Loads an engine as soon as others leave memory for it."""
        until, before = 0.0, set[ModelEntry]()  # what was loaded when memory did not suffice
        while True:
            async with self._lock:
                began = time.monotonic()
                until = until or began + self.patience
                short = bool(before) and before <= self._list_loaded()
                model = await self._make_room(entry, until, short)
                if model is not None:
                    entry.model, entry.failure = model, ""
                    entry.loads += 1
                    seconds = round(time.monotonic() - began, 3)
                    self.log.event("model_loaded", model=entry.name, seconds=seconds)
                    return model
                before = self._list_loaded()
            while time.monotonic() <= until and self._all_busy:  # others are loaded and unloaded
                await asyncio.sleep(POLL)

    async def _make_room(self, entry: ModelEntry, until: float, short: bool) -> ServedModel | None:
        """Loads an engine, and unloads the models that were used longest ago while memory does not
        suffice (`short`: as is known); None where all are busy.  Raises `MemoryShortage` where none
        is loaded, and `HttpError` where they stay busy.
        """
        while True:
            if not short:
                try:
                    return await self._make(entry)
                except MemoryShortage:
                    if not self._list_loaded():
                        raise
            idle = [(one.model.used, one) for one in self.known if one.model and one.idle]
            short = not idle
            if idle:
                await self._drop(min(idle, key=lambda found: found[0])[1], "memory")
            elif time.monotonic() <= until:
                return None
            else:
                busy = ", ".join(one.name for one in self.known if one.model)
                raise HttpError(
                    503,
                    f"no memory for the model while {busy} answer requests; retry later",
                    code="models_busy",
                    headers={"Retry-After": "5"},
                )

    def _list_loaded(self) -> set[ModelEntry]:
        return {one for one in self.known if one.model is not None}

    @property
    def _all_busy(self) -> bool:
        loaded = self._list_loaded()
        return bool(loaded) and not any(one.idle for one in loaded)

    async def _drop(self, entry: ModelEntry, reason: str) -> None:
        model, entry.model = entry.model, None
        assert model is not None
        await entry.client.unload()
        await model.validator.close()
        self.log.event("model_unloaded", model=entry.name, reason=reason)

    async def _expire(self) -> None:
        """Unloads models that were not used for as long as they are kept, or are not served any
        more.
        """
        while True:
            await asyncio.sleep(EXPIRY)
            now = time.monotonic()
            async with self._lock:
                for entry in self.entries:
                    unused = now - entry.model.used if entry.model is not None else 0.0
                    if entry.idle and unused > entry.keep_alive:
                        await self._drop(entry, "not used")
                await self._drop_removed()

    async def _drop_removed(self) -> None:
        for entry in list(self._leaving):
            if entry.loading is not None or (entry.model is not None and not entry.idle):
                continue
            if entry.model is not None:
                await self._drop(entry, "removed")
            if entry in self._leaving:  # else it is served again
                self._leaving.remove(entry)
                self.host.remove(entry.client.number)


def check_idle(entry: ModelEntry) -> None:
    """Raises `HttpError` for a model that requests use."""
    if entry.model is not None and not entry.idle:
        count = entry.model.users + entry.awaited
        raise HttpError(
            409,
            f"model = {entry.name} is busy with {count} requests; retry when they have ended",
            "model",
            code="model_busy",
        )


def note_failure(task: asyncio.Task[Any]) -> None:
    """Marks an error as retrieved: all clients that waited for it may have left."""
    if not task.cancelled():
        task.exception()
