"""What is shown of models while a new engine process loads them again."""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from flyweight.cli.ps import describe_state
from flyweight.config import Settings
from flyweight.server import engine_client, engine_host, model_entry, pipe
from flyweight.server.apis.ollama.models import list_running
from flyweight.server.apis.own_routes import ModelBody, list_models, load_model
from flyweight.server.engine_client import EngineClient, EngineDown
from flyweight.server.engine_host import EngineHost
from flyweight.server.model_entry import ModelEntry
from flyweight.server.model_options import ModelOptions
from flyweight.server.observability.costs import MachineCosts
from flyweight.server.observability.counters import HttpCounts
from flyweight.server.observability.metrics import MetricsPage
from flyweight.server.settings import ServerSettings

NAMES = ("tales", "talker")
LOADED = dict.fromkeys(NAMES, ("loaded", 0.0))


class Host(EngineHost):
    """One without processes; `requested` are the numbers of the engines that it is to load."""

    def __init__(self) -> None:
        super().__init__(lambda reason: None)
        self.requested: asyncio.Queue[int] = asyncio.Queue()

    def adopt(self, engine: Any, *clients: Any) -> Any:
        assert clients == ()

    async def connect(self, ours: Any) -> None:
        line: Any = object()
        self._line = line

    def send(self, number: int, message: pipe.ToEngine) -> None:
        assert isinstance(message, pipe.EngineSetup)
        self.requested.put_nowait(number)


class Server:
    """What routes need of a server with two models that are loaded; `clock` is its time."""

    def __init__(self) -> None:
        self.clock, self.host = 100.0, Host()
        self.entries = [self.make_entry(name) for name in NAMES]
        self.directory = SimpleNamespace(entries=self.entries, find=self.find)
        http, costs = HttpCounts(), MachineCosts(ServerSettings())
        self.metrics = MetricsPage(self.entries, Counter(), http, costs)
        self.host.restarts_lost = True

    def make_entry(self, name: str) -> ModelEntry:
        client = EngineClient(self.host, pipe.EngineSetup({}, 1.0))
        entry = ModelEntry(ModelOptions(Settings(model="stories")), client, [name])
        files = SimpleNamespace(passport=None)
        about = SimpleNamespace(
            quality=files, format="GGUF", family="llama", size="3 M", kinds=["q8_0"]
        )
        model: Any = SimpleNamespace(
            client=client, effective=SimpleNamespace(summary=about), used=0.0, max_model_len=512
        )
        client.begin_loading()
        client.take(pipe.Ready({}))
        entry.model = model
        return entry

    def find(self, name: str) -> ModelEntry:
        return self.entries[NAMES.index(name)]

    async def open(self, request: Any, name: str) -> Any:
        return self.find(name).model

    async def call(self, route: Callable[..., Awaitable[Any]], *body: Any) -> Any:
        """The JSON of a route's reply."""
        reply = await route(self, None, *body)
        return msgspec.json.decode(reply.body)

    async def list_states(self) -> dict[str, tuple[str, float]]:
        """Each model's state and the seconds of its load, the same wherever they are shown."""
        cards = (await self.call(list_models))["data"]
        found = {one["id"]: (one["state"], one["loading_seconds"] or 0.0) for one in cards}
        page = self.metrics.page()[0].decode()
        metric = r'^flyweight:model_loading_seconds{.*model_name="(\w+)"} (\S+)$'
        assert dict(re.findall(metric, page, re.M)) == {
            name: str(seconds) for name, (_, seconds) in found.items()
        }
        running = (await self.call(list_running))["models"]
        assert [one["name"] for one in running] == [
            name for name, (state, _) in found.items() if state == "loaded"
        ]
        return found

    async def load_next(self) -> None:
        """The engine process has loaded what it was to load."""
        number = await self.host.requested.get()
        self.entries[number].client.take(pipe.Ready({}))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    found = Server()
    clock = SimpleNamespace(monotonic=lambda: found.clock)
    monkeypatch.setattr(model_entry, "time", clock)
    monkeypatch.setattr(engine_client, "time", clock)
    monkeypatch.setattr(engine_host, "SOONEST", 0.0)
    monkeypatch.setattr(engine_host, "LATEST", 0.0)
    monkeypatch.setattr(engine_host.EngineProcess, "spawn", classmethod(lambda cls: None))
    return found


def test_models_are_loading_until_the_new_process_has_them(server: Server) -> None:
    async def run() -> None:
        assert await server.list_states() == LOADED
        server.host.handle_lost()
        server.clock = 112.0
        assert await server.list_states() == dict.fromkeys(NAMES, ("loading", 12.0))
        cards = (await server.call(list_models))["data"]
        assert [describe_state(one) for one in cards] == ["loading, 12 s"] * 2
        await server.load_next()
        server.clock = 115.0
        assert await server.list_states() == {"tales": LOADED["tales"], "talker": ("loading", 15.0)}
        await server.load_next()
        assert await server.list_states() == LOADED

    asyncio.run(run())


def test_a_process_that_ends_while_it_loads_is_no_new_load(server: Server) -> None:
    async def run() -> None:
        server.host.handle_lost()
        server.clock = 105.0
        await server.load_next()
        server.host.handle_lost()
        server.clock = 110.0
        expected = {"tales": ("loading", 5.0), "talker": ("loading", 10.0)}
        assert await server.list_states() == expected
        await server.load_next()
        await server.load_next()
        assert await server.list_states() == LOADED

    asyncio.run(run())


def test_a_load_is_refused_while_the_process_is_restarted(server: Server) -> None:
    async def run() -> None:
        body = ModelBody(model="tales")
        assert (await server.call(load_model, body))["state"] == "loaded"
        server.host.handle_lost()
        with pytest.raises(EngineDown, match="the engine is restarting; retry later"):
            await server.call(load_model, body)
        await server.load_next()
        assert (await server.call(load_model, body))["state"] == "loaded"

    asyncio.run(run())
