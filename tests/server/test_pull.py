"""Ollama's /api/pull: models of a stand-in Hub, fetched where the operator allows it."""

import json
import os
import resource
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from flyweight.describe import ASSETS
from flyweight.errors import CheckpointError, ConfigError
from flyweight.server.apis.ollama.pull import hide_cache
from flyweight.server.settings import ServerSettings
from http_server import Reply, Running, started
from hub_server import Hub, Repo, digest, serving

STORIES = (ASSETS / "stories.gguf").read_bytes()
DRAFT = (ASSETS / "stories-draft.gguf").read_bytes()
NAME = "tiny/T-GGUF:Q8_0"
PROMPT = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def serving_hub() -> Iterator[Hub]:
    with serving(Hub()) as found:
        yield found


@pytest.fixture
def hub(serving_hub: Hub) -> Hub:
    """The stand-in, with one repository of two quantisations."""
    serving_hub.forget()
    serving_hub.repos["tiny/T-GGUF"] = Repo({"T-Q8_0.gguf": STORIES, "T-Q4_0.gguf": DRAFT})
    return serving_hub


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("frobozzmagic") / "hf"


@pytest.fixture(scope="module")
def variables(serving_hub: Hub, home: Path) -> dict[str, str]:
    return {
        "HF_HOME": str(home), "HF_ENDPOINT": serving_hub.endpoint, "HF_HUB_OFFLINE": "0",
        "HF_HUB_CACHE": str(home / "hub"),
    }  # fmt: skip


@pytest.fixture(scope="module")
def puller(variables: dict[str, str]) -> Iterator[Running]:
    with started("--allow-pull", "--max-model-len", "256", **variables) as found:
        yield found


def pull(server: Running, name: str, **more: Any) -> Reply:
    return server.post("/api/pull", {"model": name, **more})


def lines(got: Reply) -> list[Any]:
    return [json.loads(line) for line in got.body.splitlines()]


def states(server: Running) -> dict[str, str]:
    return {one["id"]: one["state"] for one in server.get("/v1/models").json["data"]}


def blobs(home: Path, repo: str) -> list[Path]:
    return sorted(home.glob(f"hub/models--{repo.replace('/', '--')}/blobs/*"))


def test_a_model_is_fetched_and_served(puller: Running, hub: Hub, server: Running) -> None:
    got = pull(puller, f"hf.co/{NAME}")
    assert got.status == 200 and got.headers["content-type"] == "application/x-ndjson"
    found = lines(got)
    parts = [one for one in found if "digest" in one]
    (named,) = {one["digest"] for one in parts}
    short = named.removeprefix("sha256:")[:12]
    assert [key for key, _ in groupby(one["status"] for one in found)] == [
        "pulling manifest", f"pulling {short}", "verifying sha256 digest", "writing manifest",
        "success",
    ]  # fmt: skip
    come = [one["completed"] for one in parts]
    assert come == sorted(come) and come[-1] == len(STORIES)
    assert {one["total"] for one in parts} == {len(STORIES)}
    assert states(puller) == {"stories": "loaded", NAME: "unloaded"}
    (card,) = [one for one in puller.get("/api/tags").json["models"] if one["name"] == NAME]
    assert f"sha256:{card['digest']}" == named
    text = server.post("/v1/completions", PROMPT).json["choices"]
    assert puller.post("/v1/completions", {**PROMPT, "model": NAME}).json["choices"] == text
    for name in (f"hf.co/{NAME}", NAME, f"{NAME}:latest"):
        body = {"model": name, "prompt": "Once", "raw": True, "stream": False}
        assert puller.post("/api/generate", body).status == 200, name
    hub.requested.clear()
    assert lines(pull(puller, f"hf.co/{NAME}"))[-1] == {"status": "success"}
    assert hub.bodies() == [], "it is there"
    assert any(" model_pulled model=" in line for line in puller.said)


def test_a_reply_that_is_not_streamed(puller: Running, hub: Hub) -> None:
    got = puller.post("/api/pull", {"name": "tiny/T-GGUF:Q4_0", "stream": False, "insecure": True})
    assert got.status == 200 and got.json == {"status": "success"}
    assert got.headers["x-ignored-params"] == "insecure"
    assert "tiny/T-GGUF:Q4_0" in states(puller)
    zeros = {"name": "", "username": "", "password": "", "model": NAME, "insecure": None}
    assert lines(puller.post("/api/pull", zeros))[-1] == {"status": "success"}, "Go's client"


def test_a_file_that_is_served_is_not_fetched(puller: Running, hub: Hub) -> None:
    for name in ("stories", "stories:latest"):
        assert lines(pull(puller, name))[-1] == {"status": "success"}
    assert hub.requested == [] and pull(puller, "stories", stream=False).status == 200


def test_without_the_option_nothing_is_fetched(server: Running) -> None:
    for name in (NAME, "stories", "nothing"):
        got = pull(server, name)
        assert got.status == 403
        assert got.json == {"error": "models are not pulled here; --allow-pull allows it"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama3.2", "allowed: org/name, org/name:Q4_K_M"),
        ("../etc/passwd", "is not a name on the Hub"),
        ("", "model is missing"),
        ("tiny/T-GGUF:Q8\u001b", "model = 'tiny/T-GGUF:Q8\\x1b' is not a name on the Hub"),
        ("tiny/T-GGUF@a..b", "revision = 'a..b' is not valid"),
    ],
)
def test_what_is_no_name_is_refused(puller: Running, hub: Hub, name: str, words: str) -> None:
    got = pull(puller, name)
    assert got.status == 400 and words in got.json["error"], got.body
    assert hub.requested == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tiny/none", "tiny/none is neither a file or folder here nor a model at "),
        ("tiny/T-GGUF:Q5_K_M", "tiny/T-GGUF:Q5_K_M: no file or quantisation 'Q5_K_M'"),
    ],
)
def test_what_the_hub_lacks_is_an_error(puller: Running, hub: Hub, name: str, words: str) -> None:
    before = states(puller)
    first, last = lines(pull(puller, name))
    assert first == {"status": "pulling manifest"}
    assert list(last) == ["error"] and last["error"].startswith(words)
    got = pull(puller, name, stream=False)
    assert got.status == 500 and got.json == last
    assert states(puller) == before


def test_what_arrives_damaged_is_not_kept(puller: Running, hub: Hub, home: Path) -> None:
    hub.repos["tiny/d"] = Repo({"d-Q8_0.gguf": DRAFT})
    hub.faults = {f"/cdn/{digest(DRAFT)}/d-Q8_0.gguf": ["damage"]}
    last = lines(pull(puller, "tiny/d"))[-1]
    assert "arrived damaged: its SHA-256 is wrong" in last["error"]
    assert blobs(home, "tiny/d") == [] and "tiny/d" not in states(puller)
    assert lines(pull(puller, "tiny/d"))[-1] == {"status": "success"}
    assert [path.read_bytes() for path in blobs(home, "tiny/d")] == [DRAFT]


def test_a_download_whose_client_leaves_ends(puller: Running, hub: Hub, home: Path) -> None:
    """The Hub goes silent, the client leaves, and another gets the whole file."""
    raw = STORIES + bytes(100)
    hub.repos["tiny/left"] = Repo({"l-Q8_0.gguf": raw})
    hub.faults = {f"/cdn/{digest(raw)}/l-Q8_0.gguf": ["stay 1000"]}
    line = puller.connection()
    line.request("POST", "/api/pull", b'{"model": "tiny/left"}')
    answer = line.getresponse()
    assert json.loads(answer.readline()) == {"status": "pulling manifest"}
    assert json.loads(answer.readline())["completed"] == 0
    line.close()
    answer.close()
    hub.ended.set()
    puller.until(lambda: puller.get("/load").json["server_load"] == 0)
    assert "tiny/left" not in states(puller)
    assert lines(pull(puller, "tiny/left"))[-1] == {"status": "success"}
    assert [path.read_bytes() for path in blobs(home, "tiny/left")] == [raw]


def test_a_full_disk(puller: Running, hub: Hub, home: Path) -> None:
    """A limit on the size of files takes its place; what has come is kept."""
    big = STORIES + os.urandom(20_000_000)
    hub.repos["tiny/big"] = Repo({"b-Q8_0.gguf": big})
    pid, most = puller.process.pid, resource.RLIM_INFINITY
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (12_000_000, most))
    try:
        last = lines(pull(puller, "tiny/big"))[-1]
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))
    assert "the next run goes on with what has come" in last["error"]
    assert "frobozzmagic" not in last["error"]
    (kept,) = blobs(home, "tiny/big")
    assert kept.name == f"{digest(big)}.incomplete"
    assert "tiny/big" not in states(puller) and puller.get("/health").status == 200
    assert lines(pull(puller, "tiny/big"))[-1] == {"status": "success"}
    assert [path.read_bytes() for path in blobs(home, "tiny/big")] == [big]


def test_an_error_has_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", "/srv/models/hub")
    error = CheckpointError("a/b needs 5 more bytes in /srv/models/hub, where 4 are free")
    assert hide_cache(str(error)) == "a/b needs 5 more bytes in the Hub's cache, where 4 are free"


def test_a_network_without_a_key_may_not_pull() -> None:
    for given in ({"insecure": True}, {}):
        with pytest.raises(ConfigError, match="allow_pull = True lets any client"):
            ServerSettings(host="0.0.0.0", allow_pull=True, **given)
    assert ServerSettings(host="0.0.0.0", allow_pull=True, keys=("k",)).allow_pull
    assert ServerSettings(allow_pull=True).allow_pull
