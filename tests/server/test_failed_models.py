"""A model that cannot be loaded again after the engine process ended does not end the server."""

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flyweight.describe import ASSETS
from flyweight.errors import ConfigError, FlyweightError
from flyweight.server import engine_host, pipe
from flyweight.server.engine_host import TRIES, EngineHost
from http_server import Reply, Running, started

PROMPT = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copy(ASSETS / "stories.gguf", tmp_path_factory.mktemp("frobozzmagic")))


@pytest.fixture(scope="module")
def pair(file: Path) -> Iterator[Running]:
    with started("tales=stories", f"other={file}", "--max-model-len", "256") as server:
        yield server


def complete(server: Running, model: str) -> Reply:
    return server.post("/v1/completions", {"model": model, **PROMPT})


def cards(server: Running) -> dict[str, tuple[str, str | None]]:
    found = server.get("/v1/models").json["data"]
    return {one["id"]: (one["state"], one["failure"]) for one in found}


def replace(file: Path, raw: bytes) -> None:
    """Another file under the name: the engine has mapped the old one."""
    new = file.with_suffix(".new")
    new.write_bytes(raw)
    new.replace(file)


def test_the_others_go_on(pair: Running, file: Path) -> None:
    texts = [complete(pair, name).json["choices"] for name in ("tales", "other")]
    assert texts[0] == texts[1]
    replace(file, b"GGUF" + bytes(64))
    os.kill(pair.worker, signal.SIGKILL)
    pair.until(lambda: pair.get("/health").status == 503)
    pair.until(lambda: pair.get("/health").status == 200)
    assert pair.get("/health").json == {"status": "ok", "failed": ["other"]}
    (state, failure), tales = cards(pair)["other"], cards(pair)["tales"]
    assert state == "failed" and failure is not None and file.name in failure
    assert "frobozzmagic" not in failure and tales == ("loaded", None)
    assert complete(pair, "tales").json["choices"] == texts[0]
    got = complete(pair, "other")
    assert got.status == 503 and got.json["error"]["code"] == "model_not_loaded"
    failure = cards(pair)["other"][1]
    assert got.json["error"]["message"] == f"model = other cannot be loaded: {failure}"
    replace(file, (ASSETS / "stories.gguf").read_bytes())
    assert complete(pair, "other").json["choices"] == texts[0], "each request tries again"
    assert cards(pair)["other"] == ("loaded", None)
    assert pair.get("/health").json == {"status": "ok"}
    assert any(" model_failed model=other " in line for line in pair.said)


# --- the order of restarts ---

DIES = "dies"


class Client:
    """An engine's client, whose loads end as the test says: in an error, with the process, well."""

    def __init__(self, host: "Host", *ends: str) -> None:
        self.host, self.ends = host, list(ends)
        self.wanted, self.sent, self.lost, self.loads = True, False, 0, 0
        self.number = host.add(self)

    def begin_loading(self) -> pipe.EngineSetup:
        raise AssertionError("engines are loaded one after another")

    def load(self) -> None:
        assert self.host.connected
        self.loads += 1

    async def wait_until_ready(self) -> None:
        end = self.ends.pop(0) if self.ends else ""
        if end == DIES:
            self.host.handle_lost()
        if end:
            raise ConfigError(end)

    def take(self, message: Any) -> None: ...
    def handle_lost(self) -> None: ...


class Host(EngineHost):
    """One without processes."""

    def __init__(self) -> None:
        self.given_up: list[tuple[int, str]] = []
        self.failures: list[str] = []
        super().__init__(self.failures.append)
        self.on_given_up = self.note

    async def note(self, number: int, error: FlyweightError) -> None:
        self.given_up.append((number, str(error)))

    def adopt(self, engine: Any, *clients: Any) -> Any:
        assert clients == ()

    async def connect(self, ours: Any) -> None:
        line: Any = object()
        self._line = line


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(engine_host, "SOONEST", 0.0)
    monkeypatch.setattr(engine_host, "LATEST", 0.0)
    monkeypatch.setattr(engine_host.EngineProcess, "spawn", classmethod(lambda cls: None))
    return Host()


def test_an_engine_that_cannot_be_loaded_is_given_up_at_once(host: Host) -> None:
    first, second, third = Client(host), Client(host, "damaged"), Client(host)
    asyncio.run(host._restart())
    assert host.given_up == [(1, "damaged")] and host.restarts_lost and not host.failures
    assert [one.wanted for one in (first, second, third)] == [True, False, True]
    assert [one.loads for one in (first, second, third)] == [1, 1, 1] and host.restarts == 1


def test_an_engine_that_ends_the_process_twice_is_given_up(host: Host) -> None:
    first, second, third = Client(host), Client(host, DIES, DIES), Client(host)
    asyncio.run(host._restart())
    assert host.given_up == [(1, DIES)] and host.restarts_lost and not host.failures
    assert [one.loads for one in (first, second, third)] == [3, 2, 1] and host.restarts == 3


def test_every_engine_may_be_given_up(host: Host) -> None:
    """Without an end to the server: other requests may load them."""
    for _ in range(4):
        Client(host, DIES, DIES)
    asyncio.run(host._restart())
    assert [number for number, _ in host.given_up] == [0, 1, 2, 3]
    assert host.restarts_lost and not host.failures


@pytest.mark.parametrize("end", [DIES, "damaged"])
def test_the_only_model_ends_the_server_after_some_tries(host: Host, end: str) -> None:
    Client(host, *[end] * TRIES)
    asyncio.run(host._restart())
    assert host.failures == [f"the engine could not be restarted: {end}"]
    assert host.given_up == [] and host.restarts == TRIES


def test_an_engine_that_was_unloaded_meanwhile_is_no_failure(host: Host) -> None:
    first, second = Client(host, "the model was unloaded"), Client(host)
    first.load = lambda: setattr(first, "wanted", False)  # type: ignore[method-assign]
    asyncio.run(host._restart())
    assert host.given_up == [] and host.restarts_lost and second.loads == 1


def test_numbers_of_engines_are_used_again(host: Host) -> None:
    clients = [Client(host) for _ in range(3)]
    host.remove(clients[1].number)
    assert [Client(host).number, Client(host).number] == [1, 3]
