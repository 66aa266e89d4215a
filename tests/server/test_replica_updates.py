"""A reload of replicas: what is checked before one is replaced, in which order, and how it ends."""

import asyncio
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_cluster import FACTS, FakeCluster, look, run, turn

import chat_model
from flyweight import __version__
from flyweight.arguments.draft import SettingRequests
from flyweight.config import Settings
from flyweight.describe import ASSETS, NOTHING, SilentListener, describe
from flyweight.errors import ConfigError, FlyweightError
from flyweight.parallel.cluster import ReplicaPlan
from flyweight.server.lifecycle import lifecycle
from flyweight.server.lifecycle.lifecycle import LaunchOptions, ServerLifecycle
from flyweight.server.lifecycle.loading import ModelReader
from flyweight.server.lifecycle.replacing import ReplicaUpdates, describe_files
from flyweight.server.model_options import ModelChanges, ModelOptions
from flyweight.server.replicas.host import ReplicaHost
from flyweight.server.replicas.reports import ReplicaReport
from flyweight.server.settings import ServerSettings
from tiny_model import tiny_folder


class Show(SilentListener):
    def found(self, path: Path) -> None: ...
    def show_progress(self, message: Any) -> None: ...
    def ready(self, server: Any, port: int) -> None: ...


@dataclass
class Replicated:
    """A server with one replica, which has read its `model` and answers nothing."""

    life: ServerLifecycle
    host: ReplicaHost
    cluster: FakeCluster
    model: Path
    said: list[str]  # events of replicas, and what the service manager was told

    @property
    def updates(self) -> ReplicaUpdates:
        assert self.life.replacing is not None
        return self.life.replacing

    @property
    def names(self) -> list[str]:
        return [one.name for one in self.host.set.open]

    async def reload(self) -> None:
        """What SIGHUP does, until it has ended."""
        self.life._reload()
        await self.settle()

    async def settle(self) -> None:
        while self.life._reloading:
            await asyncio.sleep(0.01)

    def replace(self, raw: bytes | None = None) -> None:
        """Another file under the name, as the old one is mapped; by default with equal bytes."""
        raw = self.model.read_bytes() if raw is None else raw
        new = self.model.with_suffix(".new")
        new.write_bytes(raw)
        new.replace(self.model)


def read_facts(model: Path) -> dict[str, Any]:
    """What an engine with a model reports."""
    found = describe(model)
    try:
        return {**FACTS, **describe_files(found)}
    finally:
        found.checkpoint.close()


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """`await start()`: a server that is ready."""

    async def start(
        model: Path | None = None, options: Mapping[str, Any] = NOTHING, **facts: Any
    ) -> Replicated:
        file = model or Path(shutil.copy(ASSETS / "stories.gguf", tmp_path / "model.gguf"))
        cluster, said = FakeCluster(), list[str]()
        host = ReplicaHost(cluster, ReplicaPlan(1, 8), "prefix", print)
        monkeypatch.setattr(lifecycle, "make_host", lambda *given: host)
        monkeypatch.setattr(ModelReader, "make_model", lambda *given: "a model")
        served = ModelOptions(Settings.of(model=str(file), **options))
        life = ServerLifecycle(
            LaunchOptions((served,), ServerSettings(), Show(), SettingRequests()), None
        )
        life.begin()
        note: Any = SimpleNamespace(
            ready=lambda: said.append("READY"), reloading=lambda: said.append("RELOADING")
        )
        life.notifier = note

        def event(name: str, /, **more: object) -> None:
            said.extend([f"{name} {more}"] if name.startswith("replica") else [])

        life.log.event = event  # type: ignore[method-assign]
        first = life.directory.first
        await life._note_files()
        first.client.begin_loading()
        cluster.reports["a"] = ReplicaReport(__version__, facts={**read_facts(file), **facts})
        await look(host, cluster)
        first.model = await life._read_while_loading(first)
        host.restarts_lost = True
        life.http = SimpleNamespace(started=True)  # type: ignore[assignment]
        said.clear()
        return Replicated(life, host, cluster, file, said)

    return start


def swap_tokens(raw: bytes) -> bytes:
    """The same file, where two tokens have each other's ids."""
    ones, others = (len(text).to_bytes(8, "little") + text for text in (b"all", b"end"))
    first, second = raw.index(ones), raw.index(others)
    assert first < second
    between = raw[first + len(ones) : second]
    return raw[:first] + others + between + ones + raw[second + len(others) :]


def shorten_context(raw: bytes) -> bytes:
    at = raw.index(chat_model.CONTEXT) + len(chat_model.CONTEXT)
    return raw[:at] + (256).to_bytes(4, "little") + raw[at + 4 :]


def test_files_with_other_weights_are_served(start: Callable[..., Any]) -> None:
    async def work() -> None:
        server: Replicated = await start()
        raw = server.model.read_bytes()
        server.replace(raw[:-4] + b"\x01\x02\x03\x04")
        await server.reload()
        assert server.said == ["RELOADING", "replicas_reloading {'replicas': 1}", "READY"]
        assert server.cluster.starts == 1
        facts = read_facts(server.model)
        assert facts["fingerprint"] != server.life.directory.first.client.facts["fingerprint"]
        foreign = {**facts, "fingerprint": "of a file that was not copied"}
        server.cluster.reports |= {
            "foreign": ReplicaReport(__version__, 1, foreign),
            "b": ReplicaReport(__version__, 1, facts),
        }
        await look(server.host, server.cluster)
        assert server.names == ["a", "b"]

    run(work)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda raw: raw[: len(raw) // 2], "model.gguf"),
        (lambda raw: raw[:100], "model.gguf"),
        (lambda raw: b"", "model.gguf"),
        (lambda raw: b"GGUF" + bytes(64), "model.gguf"),
        (swap_tokens, "have tokenizer = "),
        (shorten_context, "have context = 256, the replicas' 512; unload the model"),
    ],
)
def test_files_that_cannot_be_served_replace_nothing(
    start: Callable[..., Any], change: Callable[[bytes], bytes], words: str
) -> None:
    async def work() -> None:
        server: Replicated = await start()
        server.replace(change(server.model.read_bytes()))
        await server.reload()
        begun, event, ended = server.said
        assert (begun, ended) == ("RELOADING", "READY")
        assert event.startswith("replicas_unchanged ") and words in event and "\\n" not in event
        assert server.cluster.starts == 0 and server.host.generation == 0
        assert server.names == ["a"]

    run(work)


def test_another_template_or_no_file_replaces_nothing(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    async def work() -> None:
        server: Replicated = await start(chat_model.write(tmp_path / "talker.gguf"))
        chat_model.write(server.model.with_suffix(".new"), "{{ messages[0].content }}")
        server.model.with_suffix(".new").replace(server.model)
        await server.reload()
        assert "have tokenizer = " in server.said[1]
        server.model.unlink()
        await server.reload()
        assert "talker.gguf" in server.said[4] and server.said[5] == "READY"
        assert server.cluster.starts == 0

    run(work)


def test_a_folder_of_another_vocabulary_replaces_nothing(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    async def work() -> None:
        server: Replicated = await start(tiny_folder(tmp_path / "tiny"))
        (server.model / "README.md").write_text("of other weights")
        await server.reload()
        assert server.cluster.starts == 1
        (server.model / "chat_template.jinja").write_text("{{ messages }}")
        await server.reload()
        assert "have tokenizer = " in server.said[-2]
        (server.model / "model.safetensors").write_bytes(b"none")
        await server.reload()
        assert "model.safetensors" in server.said[-2] and server.cluster.starts == 1

    run(work)


def test_reloads_follow_each_other_and_the_last_one_counts(start: Callable[..., Any]) -> None:
    async def work() -> None:
        server: Replicated = await start()
        raw, cluster = server.model.read_bytes(), server.cluster
        server.replace()
        cluster.gate.clear()
        server.life._reload()
        while not cluster.starts:
            await asyncio.sleep(0.01)
        for end in (b"\x01\0\0\0", b"\x02\0\0\0"):
            server.replace(raw[:-4] + end)
            server.life._reload()
            await turn()
        assert cluster.starts == 1 and "READY" not in server.said
        cluster.gate.set()
        await server.settle()
        assert cluster.starts == 2 and cluster.most == 1
        assert server.said.count("RELOADING") == 3 and server.said.count("READY") == 1
        assert server.said[-1] == "READY" and server.host.generation == 2
        newest = read_facts(server.model)
        cluster.reports["b"] = ReplicaReport(__version__, 2, newest)
        await look(server.host, cluster)
        assert server.names == ["a", "b"]

    run(work)


@pytest.mark.parametrize("error", [RuntimeError("a bug"), ConfigError("no"), KeyError("x")])
def test_a_reload_that_fails_ends(start: Callable[..., Any], error: Exception) -> None:
    async def work() -> None:
        server: Replicated = await start()
        server.cluster.error = error
        server.replace()
        await server.reload()
        assert server.said[2].startswith("replicas_unchanged ") and server.said[3] == "READY"
        assert server.names == ["a"]
        server.cluster.error = None
        await server.reload()
        assert server.said[-1] == "READY" and server.host.generation == 2

    run(work)


def test_a_model_that_is_unloaded_is_not_started_by_a_reload(start: Callable[..., Any]) -> None:
    async def work() -> None:
        server: Replicated = await start()
        server.replace()
        first = server.life.directory.first
        first.client.wanted = False  # between the look at the files and the start
        await server.reload()
        assert "the model was unloaded" in server.said[2] and server.said[3] == "READY"
        first.model = None
        await server.reload()
        assert "the model is not loaded" in server.said[5] and server.said[6] == "READY"
        assert server.cluster.starts == 0

    run(work)


@pytest.mark.parametrize("changed", ["model.gguf", "adapter_config.json", "draft.gguf"])
def test_equal_files_replace_nothing(
    start: Callable[..., Any], tmp_path: Path, changed: str
) -> None:
    """A signal may be for the keys alone; adapters and draft models are files of a model too."""

    async def work() -> None:
        (tmp_path / "lora").mkdir()
        (tmp_path / "lora" / "adapter_config.json").write_text("{}")
        draft = shutil.copy(ASSETS / "stories-draft.gguf", tmp_path / "draft.gguf")
        config = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": 2}
        server: Replicated = await start(
            options={"adapters": {"a": str(tmp_path / "lora")}, "speculative_config": config}
        )
        unchanged = "replicas_unchanged {'reason': 'no file of the model has changed"
        for _ in range(2):
            await server.reload()
        assert [one.startswith(unchanged) for one in server.said] == [False, True, False] * 2
        (file,) = tmp_path.rglob(changed)
        os.utime(file, ns=(1, 1))
        await server.reload()
        assert "no adapter_model.safetensors" in server.said[-2], "the files are read"
        assert server.cluster.starts == 0 and server.names == ["a"]

    run(work)


def test_equal_files_replace_replicas_that_have_others(start: Callable[..., Any]) -> None:
    """Their machines' files may have been mended meanwhile."""

    async def work() -> None:
        server: Replicated = await start()
        other = {**read_facts(server.model), "fingerprint": "of a file that was not copied"}
        server.cluster.reports["b"] = ReplicaReport(__version__, facts=other)
        await look(server.host, server.cluster)
        await server.reload()
        assert server.cluster.starts == 1 and server.said[-1] == "READY"

    run(work)


def test_the_route_replaces_replicas_as_the_signal_does(start: Callable[..., Any]) -> None:
    async def work() -> None:
        server: Replicated = await start()
        assert await server.life.updates.reload() == ModelChanges()
        server.replace()
        assert await server.life.updates.reload() == ModelChanges(changed=("model.gguf",))
        assert server.cluster.starts == 1
        server.replace(b"GGUF" + bytes(64))
        with pytest.raises(FlyweightError, match=r"model\.gguf"):
            await server.life.updates.reload()
        assert server.said[-1].startswith("replicas_unchanged {'problem'")

    run(work)


@pytest.mark.parametrize("name", ["tokenizer", "vocab", "context", "fingerprint"])
def test_a_start_ends_where_replicas_have_other_files(start: Callable[..., Any], name: str) -> None:
    async def work() -> None:
        with pytest.raises(ConfigError, match=rf"{name} = .*copy the same files to every machine"):
            await start(**{name: "another"})

    run(work)
