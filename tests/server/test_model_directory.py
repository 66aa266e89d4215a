"""Loads and unloads of several models, without engines: what waits for what, and who may leave."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from flyweight.config import Settings
from flyweight.errors import ConfigError, MemoryShortage
from flyweight.server import pipe
from flyweight.server.engine_client import EngineClient
from flyweight.server.engine_host import EngineHost
from flyweight.server.model_directory import ModelDirectory
from flyweight.server.model_entry import ModelEntry
from flyweight.server.model_options import ModelOptions
from flyweight.server.transport.errors import HttpError

NAMES = ("first", "second", "third")


class Models:
    """Three models, of which memory holds `room`; `fetched` and `unloads` let a download and an
    unload go on.
    """

    def __init__(self, room: int = 3, patience: float = 30.0) -> None:
        self.room, self.events = room, list[tuple[str, str]]()
        self.fetched: dict[str, asyncio.Event] = {}
        self.unloads = asyncio.Event()
        self.unloads.set()
        host = EngineHost(print)
        self.entries = [self._make_entry(host, name) for name in NAMES]
        log: Any = SimpleNamespace(event=lambda kind, model, **facts: self.note(kind, model))
        self.directory = ModelDirectory(self.entries, host, self._fetch, self._make, log, patience)

    def note(self, kind: str, model: str) -> None:
        self.events.append((kind, model))

    def _make_entry(self, host: EngineHost, name: str) -> ModelEntry:
        client = EngineClient(host, pipe.EngineSetup({}, 1.0))
        client.unload = self.unloads.wait  # type: ignore[method-assign,assignment]
        return ModelEntry(ModelOptions(Settings(model="stories")), client, [name])

    async def _fetch(self, entry: ModelEntry) -> None:
        if entry.name in self.fetched:
            await self.fetched[entry.name].wait()

    async def _make(self, entry: ModelEntry) -> Any:
        await asyncio.sleep(0)
        if len(self.directory.loaded) >= self.room:
            raise MemoryShortage("does not fit")
        closed: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)  # noqa: E731
        used = asyncio.get_running_loop().time()
        return SimpleNamespace(users=0, used=used, validator=SimpleNamespace(close=closed))


def test_an_unload_goes_on_without_its_client() -> None:
    async def work() -> None:
        models = Models()
        first, directory = models.entries[0], models.directory
        await directory.open(first)
        models.unloads.clear()
        leaving = asyncio.ensure_future(directory.unload(first))
        await asyncio.sleep(0.01)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        again = asyncio.ensure_future(directory.open(first))
        await asyncio.sleep(0.01)
        assert not again.done(), "the engine is not gone yet"
        models.unloads.set()
        assert await again is first.model
        assert [kind for kind, _ in models.events] == [
            "model_loaded", "model_unloaded", "model_loaded",
        ]  # fmt: skip

    asyncio.run(work())


def test_a_download_delays_no_other_model() -> None:
    async def work() -> None:
        models = Models()
        first, second, _ = models.entries
        models.fetched["first"] = asyncio.Event()
        slow = asyncio.ensure_future(models.directory.open(first))
        await asyncio.sleep(0.01)
        assert await models.directory.open(second) is second.model
        await models.directory.unload(second)
        assert not slow.done()
        models.fetched["first"].set()
        assert await slow is first.model

    asyncio.run(work())


def test_a_load_that_waits_for_memory_delays_no_unload() -> None:
    """The others are busy; one of them ends, is unloaded on request, and the load goes on."""

    async def work() -> None:
        models = Models(room=2)
        first, second, third = models.entries
        for entry in (first, second):
            (await models.directory.open(entry)).users = 1
        waiting = asyncio.ensure_future(models.directory.open(third))
        await asyncio.sleep(0.02)
        with pytest.raises(HttpError, match="first is busy with 1 requests"):
            await asyncio.wait_for(models.directory.unload(first), 1)
        assert second.model is not None
        second.model.users = 0
        assert await asyncio.wait_for(waiting, 5) is third.model and second.model is None

    asyncio.run(work())


def test_an_unload_waits_for_the_load_of_its_model() -> None:
    async def work() -> None:
        models = Models()
        first = models.entries[0]
        models.fetched["first"] = asyncio.Event()
        models.directory.start(first)
        unload = asyncio.ensure_future(models.directory.unload(first))
        await asyncio.sleep(0.01)
        assert not unload.done()
        models.fetched["first"].set()
        await asyncio.wait_for(unload, 5)
        assert first.model is None and first.loads == 1

    asyncio.run(work())


def test_a_load_that_waits_for_memory_is_not_tried_in_vain() -> None:
    """A model that is idle for a moment is unloaded at once, before the load is tried again."""

    async def work() -> None:
        models = Models(room=1)
        first, second, _ = models.entries
        (await models.directory.open(first)).users = 1
        tries, make = list[str](), models.directory._make

        async def count(entry: ModelEntry) -> Any:
            tries.append(entry.name)
            return await make(entry)

        models.directory._make = count
        waiting = asyncio.ensure_future(models.directory.open(second))
        await asyncio.sleep(0.2)
        assert tries == ["second"], "it knows that memory does not suffice"
        assert first.model is not None
        first.model.users = 0
        await asyncio.wait_for(waiting, 5)
        assert tries == ["second"] * 2 and first.model is None

    asyncio.run(work())


def test_a_busy_model_is_refused_while_another_is_loaded() -> None:
    async def work() -> None:
        models = Models()
        first = models.entries[0]
        (await models.directory.open(first)).users = 1
        async with models.directory._lock:  # a load under way
            with pytest.raises(HttpError) as caught:
                await asyncio.wait_for(models.directory.unload(first), 1)
        assert caught.value.status == 409

    asyncio.run(work())


def test_a_model_stays_until_its_waiting_requests_have_it() -> None:
    """Two loads that fit only one by one: each request gets its model once."""

    async def use(models: Models, entry: ModelEntry) -> None:
        model = await models.directory.open(entry)
        assert entry.model is model
        model.users += 1
        await asyncio.sleep(0.01)
        assert entry.model is model
        model.users -= 1

    async def work() -> None:
        models = Models(room=1)
        await asyncio.wait_for(asyncio.gather(*(use(models, one) for one in models.entries)), 10)
        assert [one.loads for one in models.entries] == [1, 1, 1]

    asyncio.run(work())


def test_why_a_model_failed_names_no_folder() -> None:
    async def work() -> None:
        models = Models()
        first = models.entries[0]

        async def fail(entry: ModelEntry) -> Any:
            raise ConfigError("is in use", "prefix_cache_dir", value="/home/somebody/secret/cache")

        models.directory._make = fail
        with pytest.raises(ConfigError):
            await models.directory.open(first)
        assert "cache" in first.failure and "somebody" not in first.failure

    asyncio.run(work())
