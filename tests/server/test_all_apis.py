"""What must be the same in every dialect: schemas are kept to, strangers' fields refused."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import chat_model
from flyweight.server.apis.routes import find_error_format
from flyweight.server.settings import ServerSettings
from flyweight.server.transport.errors import OURS, HttpError
from flyweight.server.transport.guard import RequestGuard
from flyweight.server.transport.keys import ApiKeys
from http_server import Running, started

SCHEMA = {
    "type": "object",
    "properties": {"cat": {"type": "boolean"}, "legs": {"enum": [3, 4]}},
    "required": ["cat", "legs"],
    "additionalProperties": False,
}
HOSTNAME = {"type": "string", "minLength": 9, "maxLength": 2}  # nothing is
TALK = [{"role": "user", "content": "A cat sat."}]


def requested(name: str, path: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A request for JSON of `schema` in the dialect of `path`."""
    typed = {"type": "json_schema", "name": "cat", "schema": schema}
    return {
        "/v1/messages": {
            "model": name, "messages": TALK, "max_tokens": 60,
            "output_config": {"format": {"type": "json_schema", "schema": schema}},
        },
        "/v1/responses": {"input": "A cat sat.", "text": {"format": typed}},
        "/api/chat": {"model": name, "messages": TALK, "format": schema, "stream": False},
        "/api/generate": {"model": name, "prompt": "A cat", "format": schema, "stream": False},
        "/completion": {"prompt": "A cat", "n_predict": 60, "json_schema": schema},
    }[path]  # fmt: skip


def said(path: str, answer: dict[str, Any]) -> str:
    found: Any = {
        "/v1/messages": lambda: answer["content"][0]["text"],
        "/v1/responses": lambda: answer["output"][0]["content"][0]["text"],
        "/api/chat": lambda: answer["message"]["content"],
        "/api/generate": lambda: answer["response"],
        "/completion": lambda: answer["content"],
    }[path]()
    assert isinstance(found, str)
    return found


PATHS = ["/v1/messages", "/v1/responses", "/api/chat", "/api/generate", "/completion"]


def name_of(talker: Running) -> str:
    found: str = talker.get("/v1/models").json["data"][0]["id"]
    return found


@pytest.mark.parametrize("path", PATHS)
def test_a_schema_is_kept_to(talker: Running, path: str) -> None:
    got = talker.post(path, requested(name_of(talker), path, SCHEMA))
    assert got.status == 200, got.body
    found = json.loads(said(path, got.json))
    assert sorted(found) == ["cat", "legs"] and found["legs"] in (3, 4)


@pytest.mark.parametrize("path", PATHS)
def test_a_schema_nothing_satisfies_is_refused_by_the_apis_name(talker: Running, path: str) -> None:
    got = talker.post(path, requested(name_of(talker), path, HOSTNAME))
    assert got.status == 400, got.body
    words = got.body.decode()
    place = {"/v1/messages": "output_config.format", "/v1/responses": "text.format"}
    assert place.get(path, "schema" if path == "/completion" else "format") in words
    assert "response_format" not in words and "structured_outputs" not in words


def test_the_raw_prompt_of_ollama_keeps_to_json_too(talker: Running) -> None:
    body = {"model": name_of(talker), "prompt": "A cat", "raw": True, "stream": False}
    got = talker.post("/api/generate", {**body, "format": SCHEMA})
    assert sorted(json.loads(got.json["response"])) == ["cat", "legs"]


@pytest.mark.parametrize("path", PATHS)
def test_strangers_are_refused_by_name(talker: Running, path: str) -> None:
    body = {**requested(name_of(talker), path, SCHEMA), "no_such_field": 1}
    got = talker.post(path, body)
    assert got.status == 400 and "no_such_field" in got.body.decode()


# --- tools ---

TOOLED = "{% for t in tools or [] %}<tool> {{ t | tojson }}\n{% endfor %}" + chat_model.TEMPLATE
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}},
        "required": ["city"], "additionalProperties": False}  # fmt: skip
PLAIN = {"name": "weather", "parameters": CITY}


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A model whose template takes tools."""
    path = chat_model.write(tmp_path_factory.mktemp("caller") / "caller.gguf", TOOLED)
    words = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    with started(str(path), *words, "--served-model-name", "caller") as running:
        yield running


def test_a_call_in_anthropics_api(caller: Running) -> None:
    choice = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
    body = {
        "model": "caller", "messages": TALK, "max_tokens": 80, "tool_choice": choice,
        "tools": [{"name": "weather", "input_schema": CITY}],
    }  # fmt: skip
    whole = caller.post("/v1/messages", body).json
    (block,) = whole["content"]
    assert block["type"] == "tool_use" and block["name"] == "weather"
    assert block["input"]["city"] in ("Rome", "Oslo") and whole["stop_reason"] == "tool_use"
    events = caller.post("/v1/messages", {**body, "stream": True}).events
    (start,) = (e["content_block"] for e in events if e["type"] == "content_block_start")
    assert start["type"] == "tool_use" and start["input"] == {}
    parts = [e["delta"]["partial_json"] for e in events if e["type"] == "content_block_delta"]
    assert parts, "arguments come in pieces: as many as the client was given the time for"
    assert json.loads("".join(parts))["city"] in ("Rome", "Oslo")
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_a_call_in_a_response(caller: Running) -> None:
    body = {
        "input": "Hi", "max_output_tokens": 80, "parallel_tool_calls": False,
        "tools": [{"type": "function", **PLAIN}],
        "tool_choice": {"type": "function", "name": "weather"},
    }  # fmt: skip
    (item,) = caller.post("/v1/responses", body).json["output"]
    assert item["type"] == "function_call" and item["name"] == "weather"
    assert json.loads(item["arguments"])["city"] in ("Rome", "Oslo")
    events = caller.post("/v1/responses", {**body, "stream": True}).events
    names = [e["type"].removeprefix("response.") for e in events]
    parts = [e["delta"] for e in events if e["type"].endswith("arguments.delta")]
    assert names == [
        "created", "in_progress", "output_item.added",
        *["function_call_arguments.delta"] * len(parts),
        "function_call_arguments.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert parts and "".join(parts) == events[-3]["arguments"]
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    assert events[-1]["response"]["output"] == [events[-2]["item"]]
    again = [*TALK, item, {"type": "function_call_output", "call_id": item["call_id"],
                           "output": "Sun."}]  # fmt: skip
    assert caller.post("/v1/responses", {**body, "input": again}).status == 200


def test_tools_are_shown_in_ollamas_api(caller: Running) -> None:
    body = {"model": "caller", "messages": TALK, "stream": False, "options": {"num_predict": 1}}
    bare = caller.post("/api/chat", body).json["prompt_eval_count"]
    tools = [{"type": "function", "function": PLAIN}]
    assert caller.post("/api/chat", {**body, "tools": tools}).json["prompt_eval_count"] > bare


def test_a_call_in_ollamas_api_has_a_line_of_its_own(
    tmp_path: Path,
) -> None:
    """Arguments are objects there, so a call is sent whole.  It is called, as
    the form that might come instead begins with a letter the model has hardly seen.
    """
    path = chat_model.write(tmp_path / "bare.gguf", TOOLED)
    rome = {"type": "object", "properties": {"city": {"const": "Rome"}}, "required": ["city"]}
    tool = {**PLAIN, "parameters": {**rome, "additionalProperties": False}, "strict": True}
    form = {"type": "object", "properties": {"ÿ": {"type": "null"}}, "required": ["ÿ"]}
    options = {"num_predict": 200, "temperature": 0, "stop": [";"]}  # behind which another would be
    body = {
        "model": "bare", "messages": TALK, "options": options,
        "tools": [{"type": "function", "function": tool}], "format": form,
    }  # fmt: skip
    words = ("--tool-call-parser", "llama3_json", "--served-model-name", "bare")
    with started(str(path), *words) as running:
        reported = [json.loads(line) for line in running.post("/api/chat", body).body.splitlines()]
        whole = running.post("/api/chat", {**body, "stream": False}).json["message"]
        body["options"]["num_predict"] = 12
        cut = running.post("/api/chat", {**body, "stream": False}).json
    weather = [{"function": {"name": "weather", "arguments": {"city": "Rome"}}}]
    assert [one["message"].get("tool_calls") for one in reported] == [weather, None]
    assert [one["done"] for one in reported] == [False, True]
    assert whole["tool_calls"] == weather and whole["content"] == ""
    assert cut["done_reason"] == "length" and "tool_calls" not in cut["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_cut_off_has_its_finish_reason(caller: Running, stream: bool) -> None:
    tools = [{"name": "weather", "input_schema": CITY}]
    choice = {"type": "tool", "name": "weather"}
    body = {"model": "caller", "messages": TALK, "max_tokens": 30, "tools": tools,
            "tool_choice": choice, "stream": stream}  # fmt: skip
    schema = {**CITY, "properties": {"city": {"type": "string", "minLength": 500}}}
    tools[0]["input_schema"] = schema
    got = caller.post("/v1/messages", body)
    assert got.status == 200, got.body
    if stream:
        assert got.events[-2]["delta"]["stop_reason"] == "max_tokens"
        assert [e["type"] for e in got.events[-3:]] == [
            "content_block_stop", "message_delta", "message_stop",
        ]  # fmt: skip
    else:
        assert got.json["stop_reason"] == "max_tokens"
        assert [block["input"] for block in got.json["content"]] == [{}]
    requested = {
        "input": "Hi", "max_output_tokens": 30, "stream": stream,
        "tools": [{"type": "function", "name": "weather", "parameters": schema}],
        "tool_choice": {"type": "function", "name": "weather"},
    }  # fmt: skip
    got = caller.post("/v1/responses", requested)
    response = got.events[-1]["response"] if stream else got.json
    assert response["status"] == "incomplete"
    assert [item["status"] for item in response["output"]] == ["incomplete"]


@pytest.mark.parametrize("path", ["/api/chat", "/v1/messages", "/v1/completions", "/nowhere"])
def test_uncaught_errors_have_the_shape_of_the_api(path: str) -> None:
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("secret")

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "http_version": "1.1",
             "headers": [(b"host", b"localhost")]}  # fmt: skip
    settings = ServerSettings()
    guard = RequestGuard(app, settings, ApiKeys(settings), shape_of=find_error_format)
    asyncio.run(guard(scope, receive, send))
    assert sent[0]["status"] == 500
    shape = find_error_format(path)
    assert json.loads(sent[1]["body"]) == shape(HttpError(500, OURS, code="internal_error"))
