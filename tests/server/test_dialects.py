"""What must be the same in every dialect: schemas are kept to, strangers' fields refused."""

import json
from typing import Any

import pytest

from http_server import Running

SCHEMA = {
    "type": "object",
    "properties": {"cat": {"type": "boolean"}, "legs": {"enum": [3, 4]}},
    "required": ["cat", "legs"],
    "additionalProperties": False,
}
HOSTNAME = {"type": "string", "minLength": 9, "maxLength": 2}  # nothing is
TALK = [{"role": "user", "content": "A cat sat."}]


def asked(name: str, path: str, schema: dict[str, Any]) -> dict[str, Any]:
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
    got = talker.post(path, asked(name_of(talker), path, SCHEMA))
    assert got.status == 200, got.body
    found = json.loads(said(path, got.json))
    assert sorted(found) == ["cat", "legs"] and found["legs"] in (3, 4)


@pytest.mark.parametrize("path", PATHS)
def test_a_schema_nothing_satisfies_is_refused_by_the_dialects_name(
    talker: Running, path: str
) -> None:
    got = talker.post(path, asked(name_of(talker), path, HOSTNAME))
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
    body = {**asked(name_of(talker), path, SCHEMA), "no_such_field": 1}
    got = talker.post(path, body)
    assert got.status == 400 and "no_such_field" in got.body.decode()
