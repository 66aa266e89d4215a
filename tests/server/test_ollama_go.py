"""Bodies as Ollama's own client in Go writes them: a struct's zero values are no reason to refuse.

Fields with `omitempty` are absent from them, others are there with Go's zero value: "" or null.
"""

import json
from typing import Any

import pytest

from flyweight.server.apis.ollama.handlers import declare_tool
from flyweight.server.apis.ollama.schema import OllamaMessage
from flyweight.server.apis.tools import Tool
from http_server import Running

GENERATE = {"prompt": "", "suffix": "", "system": "", "template": "", "options": None}
CHAT: dict[str, Any] = {"messages": None, "options": None}
EMBED: dict[str, Any] = {"input": None, "options": None}
EMBEDDING: dict[str, Any] = {"prompt": "", "options": None}
SHOW = {"system": "", "template": "", "verbose": False, "options": None, "name": ""}
# What older clients, and ones in other languages, send of the same structs.
OLDER = {
    "context": None, "images": None, "format": "", "raw": False, "keep_alive": None,
    "think": None, "truncate": None, "shift": None, "logprobs": False, "top_logprobs": 0,
    "_debug_render_only": False,
}  # fmt: skip
SAID = {"role": "user", "content": "Hello"}


def model(server: Running) -> str:
    found: str = server.get("/api/tags").json["models"][0]["name"]
    return found


def reported(server: Running, path: str, **body: Any) -> Any:
    got = server.post(path, {"model": model(server), **body})
    assert got.status == 200, got.body
    return got.json


def test_nothing_but_zero_values_loads_a_model(server: Running) -> None:
    assert reported(server, "/api/generate", **GENERATE)["done_reason"] == "load"
    assert reported(server, "/api/generate", **GENERATE, **OLDER)["done_reason"] == "load"
    assert reported(server, "/api/chat", **CHAT)["done_reason"] == "load"
    assert reported(server, "/api/embed", **EMBED)["embeddings"] == []
    assert reported(server, "/api/embed", **EMBED, dimensions=0, truncate=None)["embeddings"] == []
    assert reported(server, "/api/embeddings", **EMBEDDING) == {"embedding": []}


@pytest.mark.parametrize("more", [{}, OLDER, {"options": {}}, {"context": [], "images": []}])
@pytest.mark.parametrize("keep", ["5m0s", -1, 0, "-1ns"])
def test_a_prompt_among_zero_values_is_answered(
    server: Running, more: dict[str, Any], keep: Any
) -> None:
    requested = {"prompt": "Once", "stream": False, "keep_alive": keep, "think": False}
    options = {**(more.get("options") or {}), "num_predict": 3, "temperature": 0}
    got = reported(server, "/api/generate", **{**GENERATE, **more, **requested, "options": options})
    assert got["response"] and got["eval_count"] == 3


@pytest.mark.parametrize("keep", ["5m", "1h30m", "1.5h", ".5s", "+2m", "-1m", "0", 0.5, -1, 300])
def test_a_duration_or_a_number_of_seconds_keeps_a_model(server: Running, keep: Any) -> None:
    body = {**GENERATE, "keep_alive": keep}
    assert reported(server, "/api/generate", **body)["done_reason"] == "load"


@pytest.mark.parametrize("keep", ["abc", "", "5", "-1", "5 m", "5m ", "5m\n", "m", "5d", True])
@pytest.mark.parametrize("path", ["generate", "chat", "embed", "embeddings"])
def test_what_is_no_duration_is_refused(server: Running, path: str, keep: Any) -> None:
    """As `time.ParseDuration` of Go does, which wants a unit of all but 0."""
    bodies = {"generate": GENERATE, "chat": CHAT, "embed": EMBED, "embeddings": EMBEDDING}
    body = {"model": model(server), **bodies[path], "keep_alive": keep}
    got = server.post(f"/api/{path}", body)
    assert got.status == 400
    assert got.json["error"].startswith(f"keep_alive = {keep!r} is not valid; allowed: ")
    allowed = "a duration such as 5m, a number of seconds, or -1"
    assert keep is True or got.json["error"].endswith(allowed)


def test_a_conversation_among_zero_values_is_answered(talker: Running) -> None:
    left_out = ("context", "images", "raw")
    older = {name: value for name, value in OLDER.items() if name not in left_out}
    call = {"function": {"index": 0, "name": "f", "arguments": {}}}
    talk = [SAID, {"role": "assistant", "content": "", "tool_calls": [{"id": "c", **call}, call]},
            {"role": "tool", "content": "7", "tool_name": "f", "tool_call_id": "c"}]  # fmt: skip
    options = {"num_predict": 3}
    for more in ({}, older):
        body = {**CHAT, **more, "messages": talk, "stream": False, "options": options}
        assert reported(talker, "/api/chat", **body)["eval_count"] == 3
    body = {**CHAT, "messages": [SAID], "tools": None, "options": options}
    got = talker.post("/api/chat", {"model": model(talker), **body})
    assert json.loads(got.body.splitlines()[-1])["done"] is True


def test_a_call_keeps_its_id_and_loses_its_place() -> None:
    call = {"id": "c7", "function": {"index": 3, "name": "f", "arguments": {"a": 1}}}
    given = {"role": "assistant", "content": "", "tool_calls": [call]}
    (kept,) = OllamaMessage.model_validate(given).to_chat()["tool_calls"]
    function = {"name": "f", "arguments": {"a": 1}}
    assert kept == {"id": "c7", "type": "function", "function": function}
    answer = {"role": "tool", "content": "", "tool_call_id": "c7"}
    assert OllamaMessage.model_validate(answer).to_chat()["tool_call_id"] == "c7"


def test_a_tool_without_parameters() -> None:
    function = {"name": "f", "parameters": {"type": "", "properties": None}}
    tool = Tool.model_validate({"type": "function", "function": function})
    assert declare_tool(tool)["function"] == {"name": "f", "parameters": {}}


def test_vectors_among_zero_values(server: Running) -> None:
    for one in (None, {}):
        body = {"input": "A cat", "options": one, "dimensions": 0, "keep_alive": "5m0s"}
        (vector,) = reported(server, "/api/embed", **body)["embeddings"]
        older = {"prompt": "A cat", "options": one, "keep_alive": -1}
        assert reported(server, "/api/embeddings", **older)["embedding"] == vector


def test_a_model_is_described_among_zero_values(server: Running) -> None:
    name = model(server)
    shown = server.post("/api/show", {"model": name, **SHOW})
    assert shown.status == 200, shown.body
    by_name = server.post("/api/show", {"model": "", **SHOW, "name": name})
    assert by_name.json == shown.json
    nobody = server.post("/api/show", {"model": "", **SHOW})
    assert nobody.status == 400 and "model is missing" in nobody.json["error"]


def test_what_is_loaded_is_what_is_served(server: Running) -> None:
    (listed,) = server.get("/api/tags").json["models"]
    (loaded,) = server.get("/api/ps").json["models"]
    assert loaded["name"] == listed["name"] and loaded["digest"] == listed["digest"]
    assert loaded["context_length"] > 0 and loaded["expires_at"].startswith("9999-12-31T")
    assert server.get("/api/version").json["version"]


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/api/generate", {"prompt": "x", "suffix": "y"}),
        ("/api/generate", {"prompt": "x", "template": "{{ .Prompt }}"}),
        ("/api/generate", {"prompt": "x", "context": [1]}),
        ("/api/generate", {"prompt": "x", "truncate": True}),
        ("/api/chat", {"messages": [SAID], "shift": True}),
        ("/api/chat", {"messages": [SAID], "top_logprobs": 2}),
        ("/api/embed", {"input": "x", "options": {"temperature": 1}}),
        ("/api/show", {"system": "Be kind."}),
    ],
)
def test_what_would_have_an_effect_is_refused(
    server: Running, path: str, more: dict[str, Any]
) -> None:
    got = server.post(path, {"model": model(server), **more})
    name = list(more)[-1]
    assert got.status == 400 and name in got.json["error"], got.body
