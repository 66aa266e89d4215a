"""Several models behind one endpoint: loaded on demand, unloaded for others, sharing the time."""

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from json import dumps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import chat_model
from flyweight.cli.ps import ask_models, describe_state
from http_server import Reply, Running, started

DETERMINISTIC = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0}
LONG = {"prompt": "Once", "max_tokens": 480, "ignore_eos": True}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a second model, and one that is damaged."""
    folder = tmp_path_factory.mktemp("models")
    chat_model.write(folder / "talker.gguf")
    (folder / "damaged.gguf").write_bytes(b"GGUF" + bytes(64))
    return folder


@pytest.fixture(scope="module")
def pair(files: Path) -> Iterator[Running]:
    words = "tales=stories", f"talker={files / 'talker.gguf'}", f"bad={files / 'damaged.gguf'}"
    with started(*words, "--max-model-len", "512") as running:
        yield running


def complete(server: Running, model: str, **more: Any) -> Reply:
    return server.post("/v1/completions", {"model": model, **DETERMINISTIC, **more})


def states(server: Running) -> dict[str, str]:
    return {one["id"]: one["state"] for one in server.get("/v1/models").json["data"]}


def unload(server: Running, model: str) -> Reply:
    return server.post("/v1/models/unload", {"model": model})


def read_metric(server: Running, name: str, model: str) -> float:
    page = server.get("/metrics").body.decode()
    (found,) = re.findall(rf'^{name}{{[^}}]*model_name="{model}"[^}}]*}} (\S+)$', page, re.M)
    return float(found)


def test_each_name_has_its_model(pair: Running, server: Running, talker: Running) -> None:
    """With the text that a server of it alone gives."""
    for name, alone in (("tales", server), ("talker", talker)):
        got = complete(pair, name)
        assert got.status == 200 and got.json["model"] == name
        assert got.json["choices"] == alone.post("/v1/completions", DETERMINISTIC).json["choices"]
    assert pair.post("/v1/completions", DETERMINISTIC).json["model"] == "tales", "the default"


def test_a_model_is_loaded_when_it_is_named_and_unloaded_on_request(pair: Running) -> None:
    complete(pair, "talker")
    assert states(pair) == {"tales": "loaded", "talker": "loaded", "bad": "unloaded"}
    text, loads = complete(pair, "talker").json["choices"], "flyweight:model_loads_total"
    before = read_metric(pair, loads, "talker")
    assert unload(pair, "talker").json["state"] == "unloaded"
    assert [one["name"] for one in pair.get("/api/ps").json["models"]] == ["tales"]
    assert len(pair.get("/api/tags").json["models"]) == 3
    assert pair.get("/health").status == 200
    assert pair.post("/v1/models/load", {"model": "talker"}).json["state"] == "loaded"
    assert complete(pair, "talker").json["choices"] == text
    assert read_metric(pair, loads, "talker") == before + 1
    assert read_metric(pair, "vllm:generation_tokens_total", "talker") > 0, "counters go on"


def test_requests_that_arrive_together_load_a_model_once(pair: Running) -> None:
    unload(pair, "talker")
    before = read_metric(pair, "flyweight:model_loads_total", "talker")
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda _: complete(pair, "talker"), range(8)))
    assert {one.status for one in got} == {200}
    assert len({str(one.json["choices"]) for one in got}) == 1
    assert read_metric(pair, "flyweight:model_loads_total", "talker") == before + 1


def test_a_model_that_cannot_be_loaded_is_refused_alone(pair: Running) -> None:
    got = complete(pair, "bad")
    assert got.status == 503 and got.json["error"]["code"] == "model_not_loaded"
    assert got.json["error"]["message"].startswith("model = bad cannot be loaded: ")
    assert states(pair)["bad"] == "failed" and complete(pair, "tales").status == 200


def test_an_unknown_model_is_refused(pair: Running) -> None:
    for route in ("/v1/completions", "/v1/models/load", "/v1/models/unload"):
        got = pair.post(route, {"model": "tale", **(DETERMINISTIC if "comp" in route else {})})
        assert got.status == 404 and "(did you mean 'tales'?)" in got.json["error"]["message"]


def test_facts_of_a_model_do_not_load_it(pair: Running) -> None:
    complete(pair, "talker")
    of_both = [pair.get(f"/v1/engine/effective?model={name}").json for name in states(pair)][:2]
    assert of_both[0] != of_both[1]
    unload(pair, "talker")
    for route in ("/v1/engine/effective", "/debug/kv", "/debug/steps"):
        got = pair.get(f"{route}?model=talker")
        assert got.status == 409 and got.json["error"]["code"] == "model_not_loaded"
    assert states(pair)["talker"] == "unloaded"


def test_a_busy_model_is_not_unloaded(pair: Running) -> None:
    line = pair.connection()
    raw = dumps({"model": "talker", **LONG, "max_tokens": 200, "stream": True}).encode()
    complete(pair, "talker")
    with pair.paused():
        line.request("POST", "/v1/completions", raw, {"content-type": "application/json"})
        pair.until(lambda: pair.get("/load").json["server_load"] == 1)
        got = unload(pair, "talker")
    assert got.status == 409 and got.json["error"]["code"] == "model_busy"
    assert b"[DONE]" in line.getresponse().read()
    line.close()


def test_a_client_may_leave_during_an_unload(pair: Running) -> None:
    """The engine's process goes on, and so does the unload."""
    text = complete(pair, "talker").json["choices"]
    worker, line = pair.worker, pair.connection()
    with pair.paused():
        raw = dumps({"model": "talker"}).encode()
        line.request("POST", "/v1/models/unload", raw, {"content-type": "application/json"})
        pair.until(lambda: states(pair)["talker"] == "unloaded")
        line.close()
        pair.until(lambda: pair.get("/load").json["server_load"] == 0)
    assert complete(pair, "talker").json["choices"] == text
    assert pair.get("/health").status == 200 and pair.worker == worker


def test_ollamas_keep_alive_unloads(pair: Running) -> None:
    body = {"model": "talker", "stream": False}
    got = pair.post("/api/generate", {**body, "prompt": "Hi", "keep_alive": "10m"}).json
    assert got["done"] and states(pair)["talker"] == "loaded"
    (one,) = [m for m in pair.get("/api/ps").json["models"] if m["name"] == "talker"]
    assert not one["expires_at"].startswith("9999")
    assert pair.post("/api/generate", {**body, "keep_alive": 0}).json["done_reason"] == "unload"
    assert states(pair)["talker"] == "unloaded"
    pair.post("/api/generate", {**body, "prompt": "Hi", "keep_alive": 0.01})
    pair.until(lambda: states(pair)["talker"] == "unloaded")
    pair.post("/api/generate", {**body, "keep_alive": -1})


def test_lm_studios_ttl_unloads(pair: Running) -> None:
    talk = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    for path, body in (
        ("/v1/chat/completions", talk),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 1}),
        ("/v1/embeddings", {"input": "Hi"}),
    ):
        got = pair.post(path, {"model": "talker", "ttl": 600, **body})
        assert got.status == 200 and "x-ignored-params" not in got.headers
        (one,) = [m for m in pair.get("/api/ps").json["models"] if m["name"] == "talker"]
        assert not one["expires_at"].startswith("9999")
        pair.post(path, {"model": "talker", "ttl": 0, **body})
        pair.until(lambda: states(pair)["talker"] == "unloaded")
    pair.post("/api/generate", {"model": "talker", "keep_alive": -1, "stream": False})


def test_a_reply_has_the_wait_for_its_model(pair: Running) -> None:
    body = {"model": "talker", "prompt": "Hi", "stream": False}
    unload(pair, "talker")
    first = pair.post("/api/generate", body).json
    assert first["load_duration"] == round(1e6 * first["metrics"]["load_time_ms"]) > 0
    assert first["total_duration"] > first["load_duration"] + first["eval_duration"]
    again = pair.post("/api/generate", body).json
    assert again["load_duration"] == 0 and "load_time_ms" not in again["metrics"]
    unload(pair, "talker")
    vector = pair.post("/api/embed", {"model": "talker", "input": "Hi"}).json
    assert vector["total_duration"] > vector["load_duration"] > 0
    assert pair.post("/api/embed", {"model": "talker", "input": "Hi"}).json["load_duration"] == 0
    unload(pair, "talker")
    assert complete(pair, "talker").json["metrics"]["load_time_ms"] > 0
    pair.until(
        lambda: any("path=/v1/completions" in line and " load_ms=" in line for line in pair.said)
    )


def test_a_load_under_way_is_shown(pair: Running) -> None:
    """In the list of models, in metrics and by `ps`; the stopped engine process cannot end it."""
    metric, url = "flyweight:model_loading_seconds", f"http://127.0.0.1:{pair.port}"
    record: Any = SimpleNamespace(port=pair.port, host="127.0.0.1", url=url)
    unload(pair, "talker")
    assert read_metric(pair, metric, "talker") == 0
    with ThreadPoolExecutor(1) as pool:
        with pair.paused():
            waiting = pool.submit(complete, pair, "talker", stream=True)
            pair.until(lambda: states(pair)["talker"] == "loading")
            pair.until(lambda: pair.get("/v1/models/talker").json["loading_seconds"] > 0)
            seconds = pair.get("/v1/models/talker").json["loading_seconds"]
            pair.until(lambda: read_metric(pair, metric, "talker") > seconds)
            tales, talker = ask_models(record)[:2]
            assert describe_state(talker) == f"loading, {talker['loading_seconds']:.0f} s"
            assert (describe_state(tales), tales["loading_seconds"]) == ("loaded", None)
        got = waiting.result()
    assert got.status == 200 and got.events[-1]["choices"][0]["finish_reason"]
    found = pair.get("/v1/models/talker").json
    assert (found["state"], found["loading_seconds"]) == ("loaded", None)
    assert read_metric(pair, metric, "talker") == 0


def test_a_stream_of_a_model_that_cannot_be_loaded_is_refused_as_json(pair: Running) -> None:
    got = complete(pair, "bad", stream=True)
    assert got.status == 503 and got.json["error"]["code"] == "model_not_loaded"


def test_all_models_are_back_after_the_engine_process_died(pair: Running) -> None:
    texts = {name: complete(pair, name).json["choices"] for name in ("tales", "talker")}
    os.kill(pair.worker, signal.SIGKILL)
    pair.until(lambda: pair.get("/health").status == 503)
    pair.until(lambda: pair.get("/health").status == 200)
    assert {name: complete(pair, name).json["choices"] for name in texts} == texts


def find_least_limit(model: str) -> int:
    """MiB that a server of this model alone needs, by its refusal."""
    with pytest.raises(AssertionError) as caught:
        started(model, "--memory-limit", "64MiB").__enter__()
    found = re.search(r"memory_limit = (\d+)MiB", str(caught.value))
    assert found
    return int(found[1])


def test_the_model_used_longest_ago_makes_room(files: Path) -> None:
    most = find_least_limit("stories") + 12
    words = f"--memory-limit={most}MiB", "--max-model-len", "512"
    talker = f"talker={files / 'talker.gguf'}"
    with started("tales=stories", talker, "again=stories", *words) as server:
        text = complete(server, "tales").json["choices"]
        assert complete(server, "again").json["choices"] == text
        assert [name for name, state in states(server).items() if state == "loaded"] == ["again"]
        assert complete(server, "tales").json["choices"] == text
        assert states(server)["again"] == "unloaded"
        said = "".join(server.said)
        assert "model_unloaded model=again reason=memory" in said


def test_busy_models_share_the_time_by_weight(tmp_path: Path, files: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(
        "models:\n  light: {model: stories, weight: 30}\n"
        "  heavy: {model: stories, weight: 70, preload: true}\n"
    )
    busy = "flyweight:busy_seconds_total"
    words = "--models-file", str(file)
    slow = {"FLYWEIGHT_TESTING": "1", "FLYWEIGHT_FAULT": "slow:ms=5"}  # steps of about equal length
    with started(*words, **slow) as server, ThreadPoolExecutor(8) as pool:
        body = {**LONG, "max_tokens": 240}
        bodies = [{"model": name, **body} for name in ("light", "heavy") for _ in range(4)]
        going = [pool.submit(server.post, "/v1/completions", body) for body in bodies]

        def spent() -> tuple[float, float]:
            return read_metric(server, busy, "light"), read_metric(server, busy, "heavy")

        server.until(lambda: min(spent()) > 0)
        begin = spent()
        server.until(lambda: sum(spent()) > sum(begin) + 1.2 or any(one.done() for one in going))
        light, heavy = (end - start for end, start in zip(spent(), begin, strict=True))
        assert {one.result().status for one in going} == {200}
    assert light / (light + heavy) == pytest.approx(0.3, abs=0.05)
