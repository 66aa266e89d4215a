"""The models file is read again by SIGHUP and by a route, and models come and go."""

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from http_server import Reply, Running, started

PROMPT = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}
LONG = {"prompt": "Once", "max_tokens": 120, "ignore_eos": True, "stream": True}
FIRST = "models:\n  a: stories\n  b: stories\n"


@dataclass
class Several:
    """A server, and the file of its models."""

    server: Running
    file: Path

    def states(self) -> dict[str, str]:
        return {one["id"]: one["state"] for one in self.server.get("/v1/models").json["data"]}

    def complete(self, model: str) -> int:
        return self.server.post("/v1/completions", {**PROMPT, "model": model}).status

    def list_reloads(self) -> list[str]:
        """The log's lines about the models file."""
        events = " models_reloaded ", " models_unchanged "
        return [line for line in self.server.said if any(event in line for event in events)]

    def hang_up(self, text: str) -> str:
        """Writes the file and sends SIGHUP; the log's line, once it is there."""
        self.file.write_text(text)
        before = len(self.list_reloads())
        self.server.process.send_signal(signal.SIGHUP)
        self.server.until(lambda: len(self.list_reloads()) > before)
        return self.list_reloads()[before]

    def reload(self, text: str = "") -> Reply:
        """Writes the file, if there is a text, and uses the route."""
        if text:
            self.file.write_text(text)
        before = len(self.list_reloads())
        got = self.server.post("/v1/models/reload", {})
        self.server.until(lambda: len(self.list_reloads()) > before)
        return got

    def wait(self, words: str, seen: int) -> None:
        """Waits for a line of the log with these words."""
        said = self.server.said
        self.server.until(lambda: any(words in line for line in said[seen:]))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Several]:
    file = tmp_path_factory.mktemp("frobozzmagic") / "models.yaml"
    file.write_text(FIRST)
    with started("--models-file", str(file), "--max-model-len", "512") as server:
        yield Several(server, file)


@pytest.fixture
def several(running: Several) -> Several:
    """With the models a and b, of which only a is loaded."""
    running.reload(FIRST)
    running.server.post("/v1/models/load", {"model": "a"})
    running.server.post("/v1/models/unload", {"model": "b"})
    return running


def test_names_come_and_go(several: Several) -> None:
    assert several.complete("b") == 200
    seen = len(several.server.said)
    line = several.hang_up("models:\n  a: stories\n  c: stories\n")
    assert line.endswith(" models_reloaded added=c removed=b changed=\n")
    assert several.states() == {"a": "loaded", "c": "unloaded"}
    assert several.complete("b") == 404 and several.complete("c") == 200
    several.wait(" model_unloaded model=b reason=removed", seen)
    assert several.complete("a") == 200
    got = several.server.post("/v1/completions", PROMPT).json
    assert got["model"] == "a", "the default is the first"
    page = several.server.get("/metrics").body.decode()
    assert 'flyweight:model_loads_total{engine="0",model_name="c"} 1.0' in page
    assert 'model_name="b"' not in page


def test_another_first_model_is_the_default(several: Several) -> None:
    several.hang_up("models:\n  z: stories\n  b: stories\n")
    assert several.server.get("/metrics").status == 200
    assert several.server.post("/v1/completions", PROMPT).json["model"] == "z"
    assert several.server.get("/health").json == {"status": "ok"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("models: [", "not YAML"),
        ("models: {}", "no models"),
        ("models:\n  a: stories\n  b: {model: stories, weight: 0}\n", "out of range"),
        (
            "models:\n  a: {model: stories, memory: 60%}\n  b: {model: stories, memory: 60%}\n",
            "together, more than the",
        ),
        ("models:\n  a: {model: stories, max-model-length: 4k}\n", "unknown key"),
    ],
)
def test_a_broken_file_changes_nothing(several: Several, text: str, reason: str) -> None:
    before = several.states()
    line = several.hang_up(text)
    assert " models_unchanged " in line and reason in line
    got = several.reload()
    assert got.status == 409 and got.json["error"]["code"] == "models_unchanged"
    words = got.json["error"]["message"]
    assert words.startswith("the models were not changed: ") and reason in words
    assert "frobozzmagic" not in words
    assert several.states() == before and several.complete("b") == 200


def test_a_file_that_is_gone_changes_nothing(several: Several) -> None:
    several.file.unlink()
    got = several.reload()
    assert got.status == 409 and "models.yaml" in got.json["error"]["message"]
    assert "frobozzmagic" not in got.json["error"]["message"]
    assert set(several.states()) == {"a", "b"}


def test_options_change_at_the_next_load(several: Several) -> None:
    def length(model: str) -> int:
        found: int = several.server.get(f"/v1/models/{model}").json["max_model_len"]
        return found

    def requested(model: str) -> str:
        document = several.server.get(f"/v1/engine/effective?model={model}").json
        (row,) = [one for one in document["features"] if one["feature"] == "context"]
        return f"{row['requested']}: {row['effective']}"

    assert several.complete("b") == 200 and (length("a"), length("b")) == (512, 512)
    several.server.post("/v1/models/unload", {"model": "b"})
    shorter = "{model: stories, max-model-len: 128}"
    got = several.reload(f"models:\n  a: {shorter}\n  b: {shorter}\n")
    assert got.json == {"added": [], "removed": [], "changed": ["a", "b"]}
    assert several.reload().json == {"added": [], "removed": [], "changed": []}
    assert several.complete("a") == several.complete("b") == 200
    assert (length("a"), length("b")) == (512, 128)
    assert requested("a") == "--max-model-len 512: 512 tokens", "it was not loaded again"
    assert requested("b") == "--max-model-len 128: 128 tokens"
    several.server.post("/v1/models/unload", {"model": "a"})
    assert several.complete("a") == 200 and length("a") == 128


def test_a_model_that_is_preloaded_is_loaded_at_once(several: Several) -> None:
    several.hang_up(FIRST + "  p: {model: stories, preload: true}\n")
    several.server.until(lambda: several.states()["p"] == "loaded")


def test_a_removed_model_ends_its_requests_first(several: Several) -> None:
    assert several.complete("b") == 200
    line, seen = several.server.connection(), len(several.server.said)
    raw = json.dumps({**LONG, "model": "b"}).encode()
    with several.server.paused():
        line.request("POST", "/v1/completions", raw, {"content-type": "application/json"})
        several.server.until(lambda: several.server.get("/load").json["server_load"] == 1)
        assert several.reload("models:\n  a: stories\n").json["removed"] == ["b"]
        assert several.server.post("/v1/models/load", {"model": "b"}).status == 404
    assert b"[DONE]" in line.getresponse().read()
    line.close()
    several.wait(" model_unloaded model=b reason=removed", seen)


def test_a_model_is_removed_and_added_again(several: Several) -> None:
    assert several.complete("b") == 200
    with several.server.paused():  # it may be about to be unloaded, and is served all the same
        several.reload("models:\n  a: stories\n")
        assert several.reload(FIRST).json["added"] == ["b"]
    assert several.complete("b") == 200 and several.states() == {"a": "loaded", "b": "loaded"}


def test_a_server_without_a_models_file_has_nothing_to_read(server: Running) -> None:
    got = server.post("/v1/models/reload", {})
    assert got.status == 409 and got.json["error"]["code"] == "models_unchanged"
    assert "there is no --models-file to read again" in got.json["error"]["message"]
