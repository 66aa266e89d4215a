"""What clients send that changes no answer: nulls, options of the machine, bookkeeping."""

import re
from typing import Any

import pytest
from pydantic import BaseModel

from flyweight.server.apis.fields import Fields
from flyweight.server.apis.routes import ROUTES
from http_server import Running

HEADER = "x-ignored-params"
TALK = [{"role": "user", "content": "Hi"}]
CHAT = "/v1/chat/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": TALK, "max_tokens": 1},
    "/v1/chat/completions/input_tokens": {"messages": TALK},
    "/v1/completions": {"prompt": "a", "max_tokens": 1},
    "/v1/responses": {"input": "a", "max_output_tokens": 16},
    "/v1/responses/input_tokens": {"input": "a"},
    "/v1/embeddings": {"input": "a"},
    "/v1/messages": {"model": "stories", "messages": TALK, "max_tokens": 1},
    "/v1/messages/count_tokens": {"model": "stories", "messages": TALK},
    "/completion": {"prompt": "a", "n_predict": 1},
    "/tokenize": {"content": "a"},
    "/detokenize": {"tokens": [5]},
    "/apply-template": {"messages": TALK},
    "/api/chat": {"model": "stories", "messages": TALK, "stream": False},
    "/api/generate": {"model": "stories", "prompt": "a", "stream": False},
    "/api/embed": {"model": "stories", "input": "a"},
    "/api/embeddings": {"model": "stories", "prompt": "a"},
    "/api/show": {"model": "stories"},
    "/generate": {"prompt": "a", "max_tokens": 1},
}
OPTIONS: dict[str, Any] = {
    "num_thread": 4, "num_gpu": 99, "main_gpu": 0, "num_batch": 512, "num_keep": 5,
    "use_mmap": True, "use_mlock": False, "numa": False, "low_vram": False, "f16_kv": True,
    "logits_all": False,
}  # fmt: skip


def refused(server: Running, path: str, body: dict[str, Any]) -> str:
    got = server.post(path, body)
    assert got.status == 400, got.body
    return got.body.decode()


@pytest.mark.parametrize("path", BODIES)
def test_a_null_is_as_good_as_an_absent_field(server: Running, path: str) -> None:
    """Of every field that is known and not in the body, and of one that nobody knows."""
    entry = next(entry for entry in ROUTES if entry.path == path and entry.body is not None)
    assert entry.body is not None
    fields = entry.body.model_fields
    names = [field.alias or name for name, field in fields.items()]
    nulls = {name: None for name in [*names, "new_option"] if name not in BODIES[path]}
    got = server.post(path, {**nulls, **BODIES[path]})
    assert got.status == 200, got.body
    assert HEADER not in got.headers


def objects(kind: type[BaseModel]) -> list[type[BaseModel]]:
    return [kind, *(one for below in kind.__subclasses__() for one in objects(below))]


@pytest.mark.parametrize("kind", objects(Fields), ids=lambda kind: kind.__name__)
def test_a_null_within_a_field_is_too(kind: type[BaseModel]) -> None:
    """The same parts of a body, with a null of an unknown field: no mistake more."""
    plain, nulls = _mistakes(kind, {}), _mistakes(kind, {"new_option": None, "n": None})
    assert plain == nulls
    assert ("new_option",) in _mistakes(kind, {"new_option": 1}) or kind.__name__ == "OllamaCall"


def _mistakes(kind: type[BaseModel], given: dict[str, Any]) -> set[Any]:
    try:
        kind.model_validate(given)
    except ValueError as error:
        return {one["loc"] for one in error.errors()}  # type: ignore[attr-defined]
    return set()


def test_nulls_of_clients(server: Running) -> None:
    """As langchain-ollama and others write their options; those of a schema stay what they are."""
    options = dict.fromkeys([*OPTIONS, "mirostat", "tfs_z", "stop", "new_option", "num_ctx"])
    body = {"model": "stories", "input": ["a"], "options": options, "keep_alive": None}
    assert server.post("/api/embed", body).status == 200
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    talk = [{"role": "user", "content": [{"type": "text", "text": "Hi", "new_option": None}]},
            {"role": "assistant", "content": None, "tool_calls": [call], "new_option": None},
            {"role": "tool", "content": "7", "tool_call_id": "c", "name": None}]  # fmt: skip
    form = {"type": "json_schema", "new_option": None,
            "json_schema": {"name": "x", "strict": None, "schema": {"enum": [None]}}}  # fmt: skip
    body = {"messages": talk, "response_format": form, "stream_options": None}
    got = server.post(CHAT, body)
    assert got.status == 200, got.body
    assert got.json["choices"][0]["message"]["content"] == "null"
    assert "new_option" in refused(server, CHAT, {"messages": [{**TALK[0], "new_option": 1}]})


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/api/embed", "/api/embeddings"])
def test_options_of_the_machine_are_taken_and_listed(server: Running, path: str) -> None:
    plain = server.post(path, BODIES[path])
    got = server.post(path, {**BODIES[path], "options": OPTIONS, "keep_alive": "5m"})
    assert plain.status == got.status == 200, got.body
    listed = set(got.headers[HEADER].split(", "))
    assert listed == {"keep_alive", *(f"options.{name}" for name in OPTIONS)}


def test_the_window_of_penalties(server: Running) -> None:
    """64 tokens where llama-server and Ollama have 64, all elsewhere; equal windows, equal text."""
    drawn = {"temperature": 0, "seed": 1}
    prompt = "He saw a big tree and ran to the park. " * 4 + "The sun was hot in my day. " * 9
    reported: dict[Any, list[str]] = {}
    for n in (None, -1, 0, 64, 8):
        more = {} if n is None else {"repeat_last_n": n}
        own = {**drawn, "repeat_penalty": 4.0, **more}
        body: dict[str, Any] = {"prompt": prompt, "n_predict": 20, "top_k": 0, "top_p": 1.0,
                                "min_p": 0.0, **own}  # fmt: skip
        got = server.post("/completion", body).json
        assert got["generation_settings"]["repeat_last_n"] == (64 if n is None else n)
        options = {"num_predict": 20, **own}
        body = {"model": "stories", "prompt": prompt, "raw": True, "stream": False}
        ollama = server.post("/api/generate", {**body, "options": options}).json["response"]
        body = {"prompt": prompt, "max_tokens": 20, "repetition_penalty": 4.0, **drawn, **more}
        ours = server.post("/v1/completions", body).json["choices"][0]["text"]
        reported[n] = [got["content"], ollama, ours]
    assert reported[None] == [reported[64][0], reported[64][1], reported[-1][2]]
    assert all(len(set(reported[n])) == 1 for n in (-1, 0, 64, 8))
    assert len({reported[n][0] for n in (-1, 0, 64, 8)}) == 4
    plain = {"prompt": prompt, "max_tokens": 20, **drawn}
    assert server.post("/v1/completions", plain).json["choices"][0]["text"] == reported[0][0]


def test_what_would_be_shifted_is_refused(server: Running) -> None:
    """So that num_keep never has anything to act on."""
    options = {"num_keep": 5}
    body = {**BODIES["/api/chat"], "shift": True, "options": options}
    assert "shift" in refused(server, "/api/chat", body)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses"])
def test_bookkeeping_is_taken_and_listed(server: Running, path: str) -> None:
    more = {"store": True, "metadata": {"a": "b"}, "user": "u", "service_tier": "flex"}
    if path != "/v1/responses":
        more["prediction"] = {"type": "content", "content": "x"}
    got = server.post(path, {**BODIES[path], **more, "seed": 1, "temperature": 0})
    assert got.status == 200, got.body
    assert set(got.headers[HEADER].split(", ")) == set(more)
    assert HEADER not in server.post(path, {**BODIES[path], "store": False}).headers
    got = server.post(path, {**BODIES[path], **more, "stream": True})
    assert set(got.headers[HEADER].split(", ")) == set(more)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_chat_takes_a_grammar(server: Running, path: str) -> None:
    body = {**BODIES[path], "max_tokens": 20, "grammar": 'root ::= "yes" | "no"'}
    (choice,) = server.post(path, body).json["choices"]
    assert (choice.get("text") or choice["message"]["content"]) in ("yes", "no")
    assert server.post(path, {**body, "grammar": ""}).status == 200
    assert "grammar: line 1" in refused(server, path, {**body, "grammar": "root ::= ("})
    form = {"response_format": {"type": "json_object"}}
    assert "grammar and response_format exclude" in refused(server, path, {**body, **form})
    form = {"structured_outputs": {"regex": "a"}}
    assert "grammar and structured_outputs exclude" in refused(server, path, {**body, **form})


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/v1/nothing", 404, "there is no route GET '/v1/nothing'"),
        ("POST", "/v1/chat/completion", 404, "did you mean '/v1/chat/completions'?"),
        ("POST", "/api/push", 404, "there is no route POST '/api/push'"),
        ("POST", "/v1/messages/batches", 404, "there is no route POST '/v1/messages/batches'"),
        ("GET", "/v1/messages", 405, "'/v1/messages' does not take GET; allowed: POST"),
        ("GET", "/api/chat", 405, "'/api/chat' does not take GET; allowed: POST"),
        ("DELETE", "/v1/models", 405, "allowed: GET"),
    ],
)
def test_an_unknown_route_is_named_in_the_shape_of_its_api(
    server: Running, method: str, path: str, status: int, words: str
) -> None:
    got = server.ask(method, path, {} if method == "POST" else None)
    assert got.status == status
    error = got.json["error"]
    if path.startswith("/api/"):
        assert list(got.json) == ["error"] and words in error
    elif path.startswith("/v1/messages"):
        assert got.json["type"] == "error" and words in error["message"]
    else:
        assert error["type"] and words in error["message"]


def test_a_path_forges_no_line(server: Running) -> None:
    got = server.get("/v1/%0d%0aset-cookie%3A%20x")
    assert got.status == 404 and "set-cookie" not in got.headers
    assert re.search(r"[\r\n]", got.json["error"]["message"]) is None
