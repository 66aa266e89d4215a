"""What replicas on other hosts are told: names that mean the same files there."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from fake_cluster import FakeCluster, Listener, run

from flyweight.config import Settings
from flyweight.describe import ASSETS, SilentListener
from flyweight.parallel.cluster import ReplicaPlan
from flyweight.server import model_entry, pipe
from flyweight.server.model_entry import ModelEntry
from flyweight.server.model_options import ModelOptions
from flyweight.server.replicas.host import ReplicaHost
from flyweight.server.replicas.places import locate_settings
from flyweight.server.replicas.reports import decode_setup, encode_setup
from flyweight.weights.hub import cache
from flyweight.weights.hub.find import find_cached
from flyweight.weights.hub.names import parse_hub_name

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def make_snapshot(home: Path, *files: str) -> Path:
    folder = home / "models--tiny--one" / "snapshots" / COMMIT
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(b"{}")
    return folder


async def send(setup: pipe.EngineSetup) -> dict[str, Any]:
    """The settings that the cluster starts replicas with."""
    cluster, listener = FakeCluster(), Listener()
    host = ReplicaHost(cluster, ReplicaPlan(1, 8), "prefix", print)
    listener.begin_loading = lambda: setup  # type: ignore[method-assign]
    host.add(listener)
    await host.open()
    await host.close()
    assert cluster.setup is not None
    return cluster.setup.engine.settings


@pytest.mark.parametrize(
    ("given", "files", "opened", "sent"),
    [
        ("tiny/one", ("one-Q8_0.gguf",), "one-Q8_0.gguf", "tiny/one:one-Q8_0.gguf"),
        ("tiny/one:Q8_0@v2", ("Q8_0/one.gguf",), "Q8_0/one.gguf", "tiny/one:Q8_0/one.gguf"),
        ("tiny/one", ("config.json", "tokenizer.json", "model.safetensors"), "", "tiny/one"),
        (
            "tiny/one:pytorch_model.bin",
            ("config.json", "tokenizer.json", "pytorch_model.bin"), "",
            "tiny/one:pytorch_model.bin",
        ),
    ],
)  # fmt: skip
def test_a_model_of_the_hub_keeps_its_name_and_gets_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, files: Any, opened: str, sent: str
) -> None:
    folder = make_snapshot(tmp_path, *files)
    path = folder / opened if opened else folder
    monkeypatch.setattr(model_entry, "find", lambda settings, show: path)
    settings = Settings.of(model=given)
    client: Any = SimpleNamespace(begin=pipe.EngineSetup({"model": given}, 0.2))
    entry = ModelEntry(ModelOptions(settings), client, ("one",))
    assert entry.find(SilentListener()) == path
    assert client.begin.settings["model"] == str(path), "an engine here needs no cache"

    async def work() -> None:
        there = await send(client.begin)
        assert (there["model"], there["revision"]) == (sent, COMMIT)
        monkeypatch.setattr(cache, "find_cache_folder", lambda: tmp_path)
        name = parse_hub_name(there["model"], there["revision"])
        assert name is not None and find_cached(name) == path, "it means the same files"

    run(work)


def test_a_path_in_the_hubs_cache_stays_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_snapshot(tmp_path, "one.gguf") / "one.gguf"
    client: Any = SimpleNamespace(begin=pipe.EngineSetup({"model": str(model)}, 0.2))
    entry = ModelEntry(ModelOptions(Settings.of(model=str(model))), client, ("one",))
    entry.find(SilentListener())
    there = msgspec.msgpack.decode(encode_setup(1, client.begin))[1][1]
    assert there["model"] == str(model) and "revision" not in there


def test_each_host_has_the_cache_at_one_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It need not be there yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for given, whole in (("blocks", tmp_path / "blocks"), ("~/b", tmp_path / "home" / "b")):
        settings = {"model": "stories", "prefix_cache_dir": given}
        assert locate_settings(settings)["prefix_cache_dir"] == str(whole)
        sent = decode_setup(encode_setup(1, pipe.EngineSetup(settings, 0.2)))
        assert sent.engine.settings["prefix_cache_dir"] == str(whole) and sent.engine.replica
    assert locate_settings({"prefix_cache_dir": None})["prefix_cache_dir"] is None


def test_relative_paths_become_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("model.gguf", "draft.gguf", "stories"):
        Path(name).write_bytes(b"")
    Path("lora").mkdir()
    drafts = {"method": "draft_model", "model": "draft.gguf", "num_speculative_tokens": 2}
    given = {"model": "model.gguf", "adapters": {"a": "lora"}, "speculative_config": drafts}
    found = locate_settings(given)
    assert found["model"] == str(tmp_path / "model.gguf")
    assert found["adapters"] == {"a": str(tmp_path / "lora")}
    assert found["speculative_config"] == {**drafts, "model": str(tmp_path / "draft.gguf")}
    text = locate_settings({**given, "speculative_config": json.dumps(drafts)})
    assert text == found
    inside = {"model": "stories", "speculative_config": {**drafts, "model": "stories-draft"}}
    assert locate_settings(inside) == inside, "the model of the package"
    assert locate_settings({"model": str(ASSETS / "stories.gguf")})["model"] == "stories"
    assert locate_settings({"model": "tiny/one", "revision": "v2"})["model"] == "tiny/one"
