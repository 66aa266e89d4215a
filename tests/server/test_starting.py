"""How a server starts: its settings are those in its banner, and in effect."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from http_server import WAIT, Running, started
from tiny_model import tiny_adapter, tiny_folder

LONG = "Once there was a little dog who liked to play in the garden with a red ball. " * 10
GREEDY = {"temperature": 0, "ignore_eos": True}
KEY = {"authorization": "Bearer token-abc123"}


def effective(server: Running, **headers: str) -> dict[str, Any]:
    return server.get("/v1/engine/effective", **headers).json


def feature(server: Running, name: str, **headers: str) -> dict[str, Any]:
    (row,) = [r for r in effective(server, **headers)["features"] if r["feature"] == name]
    return row


def count(server: Running, name: str, **headers: str) -> int:
    return feature(server, name, **headers)["counter"]["value"]


@pytest.fixture(scope="module")
def requested() -> Iterator[Running]:
    """One after many requests."""
    speculation = '{"method": "ngram", "num_speculative_tokens": 4, "adaptive": false}'
    with started(
        "--dtype", "auto", "--api-key", "token-abc123", "-tp", "1", "--enforce-eager",
        "--max_num_batched_tokens", "64", "--max-num-seqs", "16", "--served-model-name", "a", "b",
        "--kv-cache-memory-bytes", "8MiB", "--gpu-memory-utilization", "0.5",
        "--speculative_config", speculation, "--max-prompts", "3", "--max-logprobs", "2",
        "--tool-call-parser", "hermes", "--enable-auto-tool-choice", "--seed", "7", "--port", "0",
        command=["-m", "flyweight", "serve"],
    ) as running:  # fmt: skip
        yield running


def test_the_banner_says_what_is_served(requested: Running) -> None:
    said = "".join(requested.said)
    for words in (
        "a, b: llama, 2.76 M parameters, Q8_0", "512 tokens", "K/V cache", "memory",
        "--enforce-eager", "prefix caching", "off by default: LoRA",
    ):  # fmt: skip
        assert words in said, said
    rows = {re.split(r"\s{2,}", line)[0]: line for line in requested.said}
    assert "always" in rows["--enforce-eager"]
    assert "required" in rows["API key"] and "1 accepted" in rows["API key"]
    assert rows["speculation"].split()[1] == "--speculative-config"
    assert "ngram, 4 tokens a step" in rows["speculation"]
    assert "int8" in rows["activations"] and "by default" in rows["threads"]
    assert "token-abc123" not in said
    plan = next(line for line in requested.said if " allowed (weights " in line)
    assert requested.said.index(plan) < len(requested.said) - 1
    assert f"http://127.0.0.1:{requested.port}" in said


def test_a_key_is_needed_where_one_was_given(requested: Running) -> None:
    for path in ("/v1/models", "/v1/engine/effective"):
        assert requested.get(path).status == 401
        assert requested.get(path, **KEY).status == 200
    names = [card["id"] for card in requested.get("/v1/models", **KEY).json["data"]]
    assert names == ["a", "b"]


def test_the_effective_configuration_has_both_sides(requested: Running) -> None:
    reported = effective(requested, **KEY)
    rows = {row["feature"]: row for row in reported["features"]}
    assert rows["--enforce-eager"]["effective"] == "always"
    assert rows["--tensor-parallel-size"]["requested"] == "--tensor-parallel-size 1"
    assert rows["prefix caching"]["requested"] == "by default"
    assert rows["speculation"]["effective"] == "ngram"
    assert rows["LoRA"]["effective"] == "off"
    assert rows["tool calls"]["requested"].startswith("--tool-call-parser hermes")
    assert rows["tool calls"]["effective"] == "<tool_call>, where required"
    assert rows["reasoning"]["effective"] == "off"
    assert "limit 50%" in rows["memory"]["reason"]
    assert reported["limits"]["max_prompts"] == 3
    assert all(row["reason"] for row in rows.values())
    assert "token-abc123" not in json.dumps(reported)
    blocks = requested.get("/server_info", **KEY).json["engine"]["memory"]["kv"]
    assert 0 < blocks <= 8 << 20


def test_limits_are_those_that_were_given(requested: Running) -> None:
    got = requested.post("/v1/completions", {"prompt": ["x"] * 4, "max_tokens": 1}, **KEY)
    assert got.status == 400 and "3" in got.json["error"]["message"]
    body = {"prompt": "x", "max_tokens": 1, "logprobs": 3}
    got = requested.post("/v1/completions", body, **KEY)
    assert got.status == 400 and got.json["error"]["param"] == "logprobs"
    assert requested.post("/v1/completions", {**body, "logprobs": 2}, **KEY).status == 200


def test_counters_are_alive(requested: Running) -> None:
    before = count(requested, "prefix caching", **KEY)
    body = {"prompt": LONG, "max_tokens": 2, **GREEDY}
    first = requested.post("/v1/completions", body, **KEY).json
    assert count(requested, "chunked prefill", **KEY) >= 1
    second = requested.post("/v1/completions", body, **KEY).json
    assert first["choices"][0]["text"] == second["choices"][0]["text"]
    assert count(requested, "prefix caching", **KEY) >= before + 64
    requested.post("/v1/completions", {**body, "n": 3, "max_tokens": 8, "temperature": 1}, **KEY)
    assert count(requested, "batching", **KEY) > 0
    choice = {"prompt": "Yes or no?", "max_tokens": 4, "structured_outputs": {"choice": ["no"]}}
    assert requested.post("/v1/completions", choice, **KEY).json["choices"][0]["text"] == "no"
    assert count(requested, "structured output", **KEY) == 1
    tool = {"type": "function", "function": {"name": "look"}}
    talk = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    for more in ({}, {"tools": [tool], "tool_choice": "required"}):
        assert requested.post("/v1/chat/completions", {**talk, **more}, **KEY).status == 200
    assert count(requested, "tool calls", **KEY) == 1


def test_speculation_is_on_and_changes_no_text(requested: Running, server: Running) -> None:
    body = {"prompt": LONG, "max_tokens": 60, **GREEDY}
    text = requested.post("/v1/completions", body, **KEY).json["choices"][0]["text"]
    assert text == server.post("/v1/completions", body).json["choices"][0]["text"]
    assert count(requested, "speculation", **KEY) > 0


def test_counters_reveal_features_without_effect_and_outlive_the_engine_process() -> None:
    """A hundred short prompts share no block: there is a line in the log and in the ledger."""
    with started() as server:
        body = {"prompt": "Hi", "n": 100, "max_tokens": 1, "temperature": 1}
        assert server.post("/v1/completions", body).status == 200
        assert feature(server, "prefix caching")["warning"]
        (warning,) = effective(server)["warnings"]
        assert warning.startswith("prefix caching: no effect in 100 sequences")
        server.until(lambda: any("no_effect" in line for line in server.said))
        (line,) = [line for line in server.said if "no_effect" in line]
        assert "prefix caching is on and has had no effect" in line
        body = {"prompt": LONG, "max_tokens": 8}
        for _ in range(2):
            assert server.post("/v1/completions", body).status == 200
        before = effective(server)
        assert before["warnings"] == []
        found = count(server, "prefix caching")
        os.kill(server.worker, signal.SIGKILL)
        server.until(lambda: server.get("/health").status == 503)
        server.until(lambda: server.get("/health").status == 200)
        assert count(server, "prefix caching") == found > 0
        assert server.post("/v1/completions", {"prompt": "One", "max_tokens": 1}).status == 200
        assert count(server, "prefix caching") == found
        assert effective(server)["requests"]["begun"] == before["requests"]["begun"] + 1


def test_an_adapter_and_a_template_of_the_operator(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}<{{ m.content }}>{% endfor %}")
    words = str(tiny_folder(tmp_path / "model")), "--enable-lora", "--chat-template", str(template)
    with started(*words, "--lora-modules", f"poet={tiny_adapter(tmp_path / 'poet')}") as server:
        ids = [card["id"] for card in server.get("/v1/models").json["data"]]
        assert ids == ["model", "poet"]
        body = {"model": "poet", "prompt": "hello there", "max_tokens": 4}
        assert server.post("/v1/completions", body).status == 200
        assert count(server, "LoRA") == 1
        row = feature(server, "LoRA")
        assert (row["effective"], row["requested"]) == (
            "1 loaded",
            "--lora-modules poet=poet, --enable-lora",
        )
        assert str(tmp_path) not in server.get("/v1/engine/effective").body.decode()
        talk = {"messages": [{"role": "user", "content": "hello"}]}
        assert server.post("/apply-template", talk).json["prompt"] == "<hello>"


def test_an_adapter_may_not_have_the_models_name(
    refusal: Callable[..., str], tmp_path: Path
) -> None:
    """It would be listed, and the base model would answer in its place."""
    model, adapter = str(tiny_folder(tmp_path / "model")), str(tiny_adapter(tmp_path / "poet"))
    for words in (("model",), ("tiny", "--served-model-name", "also", "tiny"), (model,)):
        name, *more = words
        given = "--enable-lora", "--lora-modules", f"{name}={adapter}", *more
        said = refusal(model, "--port", "0", *given)
        assert "is the model's own name; allowed: another" in said


def test_names_with_a_tag_and_parents_as_they_were_given(tmp_path: Path) -> None:
    """Ollama's clients say a name as it is listed, or without its tag."""
    adapter = {"path": str(tiny_adapter(tmp_path / "poet")), "base_model_name": "llama"}
    words = "--enable-lora", "--lora-modules", json.dumps({"name": "poet", **adapter})
    model = str(tiny_folder(tmp_path / "model"))
    with started(model, "--served-model-name", "tiny:latest", *words) as server:
        cards = {card["id"]: card["parent"] for card in server.get("/v1/models").json["data"]}
        assert cards == {"tiny:latest": None, "poet": "llama"}
        listed = [card["name"] for card in server.get("/api/tags").json["models"]]
        assert listed == [*cards]
        for name in ("tiny:latest", "tiny", "poet", "poet:latest"):
            requested = {"model": name, "stream": False}
            for path, body in (
                ("/api/show", {}),
                ("/api/embed", {"input": "hi"}),
                ("/api/generate", {"prompt": "hi", "options": {"num_predict": 1}}),
                ("/api/chat", {"messages": [], "options": {"num_predict": 1}}),
            ):
                taken = {"model": name} if path in ("/api/show", "/api/embed") else requested
                assert server.post(path, taken | body).status == 200, (name, path)
        assert server.post("/api/show", {"model": "tiny:other"}).status == 404


def test_the_names_of_modules(refusal: Callable[..., str]) -> None:
    """Of vLLM's; ours is the one that `requested` was started with."""
    draft = '{"model": "facebook/opt-125m","num_speculative_tokens": 5}'
    words = [
        "--host", "0.0.0.0", "--port", "8000", "--model", "facebook/opt-6.7b", "--seed", "42",
        "-tp", "1", "--gpu_memory_utilization", "0.8", "--speculative_config", draft,
    ]  # fmt: skip
    module = ["-m", "flyweight.entrypoints.openai.api_server"]
    done = subprocess.run(
        [sys.executable, *module, *words], capture_output=True, text=True, timeout=WAIT
    )
    assert done.returncode == 2 and done.stderr == refusal(*words)
    assert "--api-key" in done.stderr
    with started("--model", "stories", "--seed", "42", "-tp", "1", command=module) as server:
        body = {"prompt": "One day", "max_tokens": 4, "temperature": 1}
        assert server.post("/v1/completions", body).json["choices"][0]["text"]


def test_a_busy_port_names_its_holder(refusal: Callable[..., str], server: Running) -> None:
    said = refusal("--port", str(server.port))
    assert f"in use by process {server.process.pid} (" in said
    assert f"flyweight stop --port {server.port}" in said
    with socket.create_server(("127.0.0.1", 0)) as ours:
        port = ours.getsockname()[1]
        said = refusal("--port", str(port))
        assert f"in use by process {os.getpid()} (" in said and "flyweight stop" not in said


def test_files_of_another_kind_are_refused(refusal: Callable[..., str]) -> None:
    said = refusal("--port", "0", "--load-format", "safetensors")
    assert "load_format = 'safetensors', and stories.gguf holds gguf" in said


def test_kv_memory_too_small_for_one_sequence_is_refused(refusal: Callable[..., str]) -> None:
    said = refusal("--port", "0", "--kv-cache-memory-bytes", "1000", "--max-model-len", "512")
    assert "kv_cache_memory_bytes = 1000" in said and "nearest valid: " in said


def test_a_banner_for_scripts() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "flyweight.cli.main", "serve", "--port", "0", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    reported = json.loads(process.stdout.readline())
    process.terminate()
    process.communicate(timeout=WAIT)
    assert (
        reported["pid"] == process.pid and reported["url"] == f"http://127.0.0.1:{reported['port']}"
    )
    assert reported["effective"]["model"]["quantisation"] == "Q8_0"
    assert process.returncode == 0
