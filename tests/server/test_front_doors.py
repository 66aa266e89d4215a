"""Requests as clients send them that are not run here: Open WebUI, aider, Continue, those of LM
Studio and Ollama's command line.  The bodies are made from what these document of themselves.
Each has a page in docs/clients.
"""

import json
from typing import Any

import pytest

from http_server import Running

TALK = [{"role": "user", "content": "A cat sat."}]
USER = {"X-OpenWebUI-User-Name": "Ada", "X-OpenWebUI-User-Id": "1", "X-OpenWebUI-User-Role": "user"}
OPENAI: list[tuple[str, str, dict[str, Any]]] = [
    ("Open WebUI", "/v1/chat/completions", {"messages": TALK, "stream": True}),
    ("Open WebUI", "/v1/chat/completions", {
        "messages": TALK, "stream": False, "max_completion_tokens": 8,
    }),
    ("Open WebUI", "/v1/embeddings", {"input": ["A cat"]}),
    ("aider", "/v1/chat/completions", {"messages": TALK, "stream": True, "temperature": 0}),
    ("Continue", "/v1/chat/completions", {"messages": TALK, "stream": True, "max_tokens": 8}),
    ("Continue", "/v1/embeddings", {"input": ["A cat", "A dog"]}),
    ("LM Studio", "/v1/chat/completions", {
        "messages": TALK, "temperature": 0.7, "max_tokens": 8, "stream": False,
    }),
    ("LM Studio", "/v1/completions", {"prompt": "A cat", "max_tokens": 8, "stop": "\n"}),
    ("LM Studio", "/v1/embeddings", {"input": "A cat"}),
    ("LM Studio", "/v1/responses", {"input": "A cat", "max_output_tokens": 16}),
]  # fmt: skip
SHORT = {"num_predict": 8}
OLLAMA: list[tuple[str, str, dict[str, Any]]] = [
    ("Open WebUI", "/api/chat", {"messages": TALK, "stream": True, "options": SHORT}),
    ("Open WebUI", "/api/embed", {"input": ["A cat"]}),
    ("Open WebUI", "/api/generate", {"prompt": "", "keep_alive": 0}),
    ("aider", "/api/chat", {
        "messages": TALK, "stream": True, "options": {"num_ctx": 512, **SHORT},
    }),
    ("Continue", "/api/chat", {
        "messages": TALK, "stream": True, "keep_alive": 1800, "options": {"num_ctx": 512, **SHORT},
    }),
    ("Continue", "/api/generate", {
        "prompt": "def f(", "raw": True, "stream": True, "keep_alive": 1800,
        "options": {"temperature": 0.01, "stop": ["\n\n"], "num_ctx": 512, **SHORT},
    }),
    ("ollama", "/api/generate", {"prompt": "", "suffix": "", "system": "", "keep_alive": "5m0s"}),
    ("ollama", "/api/chat", {"messages": TALK, "options": SHORT}),
    ("aider", "/api/chat", {"messages": TALK, "options": {"num_ctx": 8204, **SHORT}}),
    ("Continue", "/api/chat", {"messages": TALK, "options": {"num_ctx": 32768, **SHORT}}),
]  # fmt: skip
REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    ("Continue", "/api/generate", {"prompt": "def f(", "suffix": ")"}, "suffix"),
]


def name(server: Running) -> str:
    found: str = server.get("/v1/models").json["data"][0]["id"]
    return found


@pytest.mark.parametrize(("client", "path", "body"), OPENAI + OLLAMA)
def test_a_request_is_answered(talker: Running, client: str, path: str, body: Any) -> None:
    more = USER if client == "Open WebUI" else {}
    got = talker.post(path, {"model": name(talker), **body}, **more)
    assert got.status == 200, got.body
    if path.startswith("/api/") and body.get("stream", True) and path != "/api/embed":
        assert json.loads(got.body.splitlines()[-1])["done"]


@pytest.mark.parametrize(("client", "path", "body", "field"), REFUSED)
def test_a_field_is_refused_by_name(
    talker: Running, client: str, path: str, body: Any, field: str
) -> None:
    got = talker.post(path, {"model": name(talker), **body})
    assert got.status == 400 and field in got.body.decode(), got.body


def test_lm_studios_ttl_is_listed_as_ignored_by_a_server_of_one_model(talker: Running) -> None:
    given = ("/v1/chat/completions", {"messages": TALK}), ("/v1/embeddings", {"input": "a"})
    for path, body in given:
        got = talker.post(path, {"model": name(talker), "ttl": 300, **body})
        assert got.status == 200 and got.headers["x-ignored-params"] == "ttl"
        refused = talker.post(path, {"model": name(talker), "ttl": -1, **body})
        assert refused.status == 400 and refused.json["error"]["param"] == "ttl"


@pytest.mark.parametrize("path", ["/v1/models", "/api/tags", "/api/ps", "/api/version", "/health"])
def test_what_there_is_is_listed(talker: Running, path: str) -> None:
    assert talker.get(path, **USER).status == 200


def test_a_model_is_shown_by_either_name_of_its_field(talker: Running) -> None:
    for field in ("model", "name"):
        assert talker.post("/api/show", {field: name(talker)}).status == 200


def test_ollamas_command_line_finds_the_server(talker: Running) -> None:
    got = talker.ask("HEAD", "/")
    assert got.status == 200 and got.body == b""


@pytest.mark.parametrize("path", ["/api/v0/models", "/api/v1/models", "/api/delete", "/api/copy"])
def test_routes_that_there_are_not(talker: Running, path: str) -> None:
    assert talker.get(path).status == 404
