"""Ollama's routes."""

import json
from typing import Any

import pytest

from http_server import Reply, Running

TALK = [{"role": "user", "content": "A cat sat."}]
GREEDY = {"temperature": 0, "num_predict": 10}


def lines(got: Reply) -> list[Any]:
    return [json.loads(line) for line in got.body.splitlines()]


def model(server: Running) -> str:
    name: str = server.get("/api/tags").json["models"][0]["name"]
    return name


def test_a_conversation_streams_by_default(talker: Running) -> None:
    body = {"model": model(talker), "messages": TALK, "options": GREEDY}
    whole = talker.post("/api/chat", {**body, "stream": False}).json
    same = {"messages": TALK, "temperature": 0, "max_tokens": 10}
    answer = talker.post("/v1/chat/completions", same).json["choices"][0]["message"]
    assert whole["message"] == {"role": "assistant", "content": answer["content"]}
    assert whole["done"] and whole["done_reason"] == "length" and whole["eval_count"] == 10
    assert whole["total_duration"] >= whole["prompt_eval_duration"] + whole["eval_duration"] - 2
    streamed = talker.post("/api/chat", body)
    assert streamed.headers["content-type"] == "application/x-ndjson"
    parts = lines(streamed)
    assert "".join(p["message"]["content"] for p in parts) == answer["content"]
    assert [p["done"] for p in parts] == [False] * (len(parts) - 1) + [True]


def test_generate_goes_through_the_template_unless_raw(talker: Running) -> None:
    body = {"model": model(talker), "prompt": "A cat", "options": GREEDY, "stream": False}
    raw = talker.post("/api/generate", {**body, "raw": True}).json
    same = {"prompt": "A cat", "temperature": 0, "max_tokens": 10}
    assert raw["response"] == talker.post("/v1/completions", same).json["choices"][0]["text"]
    reported = talker.post("/api/generate", {**body, "system": "Be kind."}).json
    talk = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "A cat"}]
    prompt = talker.post("/tokenize", {"messages": talk}).json["count"]
    assert reported["prompt_eval_count"] == prompt > raw["prompt_eval_count"]


def test_a_model_is_loaded_already(server: Running) -> None:
    for path in ("/api/chat", "/api/generate"):
        got = server.post(path, {"model": model(server) + ":latest"}).json
        assert got["done"] and got["done_reason"] == "load"


def test_vectors(server: Running) -> None:
    name = model(server)
    got = server.post("/api/embed", {"model": name, "input": ["A cat", "A dog"]}).json
    same = server.post("/v1/embeddings", {"input": ["A cat", "A dog"]}).json
    assert got["embeddings"] == [one["embedding"] for one in same["data"]]
    assert got["prompt_eval_count"] == same["usage"]["prompt_tokens"]
    long = {"model": name, "input": "cat " * 3000}
    assert len(server.post("/api/embed", long).json["embeddings"]) == 1
    assert server.post("/api/embed", {**long, "truncate": False}).status == 400


def test_what_there_is(server: Running) -> None:
    assert server.get("/api/version").json["version"]
    shown = server.post("/api/show", {"model": model(server)}).json
    assert shown["model_info"]["llama.context_length"] > 0
    reported = server.get("/v1/engine/effective").json["model"]
    details = shown["details"]
    assert (details["format"], details["family"]) == (reported["format"], reported["family"])
    assert (
        details["families"] == [reported["family"]] == [shown["model_info"]["general.architecture"]]
    )
    assert shown["model_info"]["general.parameter_count"] == reported["parameters"]
    assert details["parameter_size"][-1] in "kMB" and float(details["parameter_size"][:-1]) > 0
    assert reported["quantisation"].startswith(details["quantization_level"])


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"options": {"num_ctx": 0}}, "num_ctx"),
        ({"options": {"num_gpu": "all"}}, "num_gpu"),
        ({"options": {"tfs_z": 0.5}}, "tfs_z"),
        ({"options": {"penalize_newline": False}}, "penalize_newline"),
        ({"template": "x"}, "template"),
        ({"model": "other"}, "other"),
        ({"messages": [{"role": "user", "content": "", "images": ["x"]}]}, "images"),
    ],
)
def test_errors_are_in_ollamas_shape(talker: Running, body: dict[str, Any], named: str) -> None:
    got = talker.post("/api/chat", {"model": model(talker), "messages": TALK, **body})
    assert got.status in (400, 404) and list(got.json) == ["error"]
    assert named in got.json["error"]


def test_a_format_is_kept_to(talker: Running) -> None:
    schema = {"type": "array", "items": {"enum": ["cat", 7]}, "minItems": 1, "maxItems": 3}
    head = {"model": model(talker), "stream": False, "format": schema}
    said = talker.post("/api/chat", {**head, "messages": TALK}).json["message"]["content"]
    for raw in (False, True):
        body = {**head, "prompt": "A cat", "raw": raw, "options": {"seed": 3}}
        said = talker.post("/api/generate", body).json["response"]
        assert set(json.loads(said)) <= {"cat", 7} and 1 <= len(json.loads(said)) <= 3
    body = {**head, "messages": TALK, "format": "json", "options": {"num_predict": 4}}
    assert talker.post("/api/chat", body).json["message"]["content"].startswith("{")
    got = talker.post("/api/chat", {**head, "messages": TALK, "format": {"not": {"pattern": "a"}}})
    assert got.status == 400 and "format: at '#': the keyword 'not'" in got.json["error"]


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
@pytest.mark.parametrize("most", [None, 3])
def test_log_probabilities_are_those_of_openais_chat(
    talker: Running, path: str, most: int | None
) -> None:
    scored = {"logprobs": True, "top_logprobs": most}
    body = {"model": model(talker), "options": {**GREEDY, "seed": 1}, **scored}
    said = {"messages": TALK} if path == "/api/chat" else {"prompt": TALK[0]["content"]}
    got = talker.post(path, {**body, **said, "stream": False}).json["logprobs"]
    same = {"messages": TALK, "temperature": 0, "max_tokens": 10, **scored}
    choice = talker.post("/v1/chat/completions", same).json["choices"][0]
    assert got == choice["logprobs"]["content"] and len(got) == 10
    assert all(len(one["top_logprobs"]) == (most or 0) for one in got)
    parts = lines(talker.post(path, {**body, **said}))
    assert [one for part in parts for one in part.get("logprobs", ())] == got


def test_log_probabilities_of_a_raw_prompt(talker: Running) -> None:
    body = {"model": model(talker), "prompt": "A cat", "raw": True, "options": GREEDY}
    parts = lines(talker.post("/api/generate", {**body, "logprobs": True}))
    found = [one["logprob"] for part in parts for one in part.get("logprobs", ())]
    same = {"prompt": "A cat", "temperature": 0, "max_tokens": 10, "logprobs": 0}
    choice = talker.post("/v1/completions", same).json["choices"][0]
    assert found == choice["logprobs"]["token_logprobs"]


@pytest.mark.parametrize(
    "scored", [{"top_logprobs": 2}, {"logprobs": True, "top_logprobs": 21}, {"logprobs": 1}]
)
def test_log_probabilities_out_of_range_are_refused(
    talker: Running, scored: dict[str, Any]
) -> None:
    for path, said in (("/api/chat", {"messages": TALK}), ("/api/generate", {"prompt": "A"})):
        for raw in ({}, {"raw": True}) if path == "/api/generate" else ({},):
            got = talker.post(path, {"model": model(talker), **said, **raw, **scored})
            assert got.status == 400 and list(scored)[-1] in got.json["error"], got.body


@pytest.mark.parametrize(
    ("field", "words"),
    [({"think": True}, "think = True"), ({"think": "high"}, "think = 'high'"),
     ({"system": "Be kind."}, "system is not supported, because raw")],
)  # fmt: skip
def test_a_raw_prompt_has_no_template(talker: Running, field: dict[str, Any], words: str) -> None:
    body = {"model": model(talker), "prompt": "A cat", "raw": True, "stream": False}
    got = talker.post("/api/generate", {**body, **field, "options": GREEDY})
    assert got.status == 400 and got.json["error"].startswith(words), got.body
    assert "raw = true" in got.json["error"]
    nothing = {"think": False, "system": ""}
    assert talker.post("/api/generate", {**body, **nothing, "options": GREEDY}).status == 200
