"""OpenAI's routes on a real server."""

import json
from typing import Any

import pytest

from http_server import Running
from passports import make_passport

TALK = [{"role": "user", "content": "Tell me about a cat."}]


def joined(events: list[Any], index: int = 0) -> str:
    choices = [c for e in events for c in e["choices"] if c["index"] == index]
    return "".join(c["delta"].get("content") or "" for c in choices)


def test_a_completion(server: Running) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    got = server.post("/v1/completions", body)
    assert got.status == 200, got.body
    (choice,) = got.json["choices"]
    assert choice["text"] and choice["finish_reason"] == "length"
    assert got.json["usage"]["completion_tokens"] == 8
    assert got.json["metrics"]["time_to_first_token_ms"] > 0


def test_a_stream_joined_is_the_answer(server: Running) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0}
    whole = server.post("/v1/completions", body).json["choices"][0]["text"]
    streamed = server.post("/v1/completions", {**body, "stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.body.endswith(b"data: [DONE]\n\n")
    assert "".join(e["choices"][0]["text"] for e in streamed.events) == whole


def test_several_prompts_and_choices_are_numbered(server: Running) -> None:
    body = {"prompt": ["One day", "A dog"], "n": 2, "max_tokens": 4, "seed": 3, "temperature": 1}
    got = server.post("/v1/completions", body).json
    assert [c["index"] for c in got["choices"]] == [0, 1, 2, 3]
    streamed = server.post("/v1/completions", {**body, "stream": True})
    for choice in got["choices"]:
        mine = [c for e in streamed.events for c in e["choices"] if c["index"] == choice["index"]]
        assert "".join(c["text"] for c in mine) == choice["text"]


def test_usage_comes_last_where_it_is_requested(server: Running) -> None:
    options = {"include_usage": True}
    body = {"prompt": "Once", "max_tokens": 3, "stream": True, "stream_options": options}
    last = server.post("/v1/completions", body).events[-1]
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 3


def test_unknown_fields_are_named(server: Running) -> None:
    got = server.post("/v1/completions", {"prompt": "x", "max_token": 3})
    assert got.status == 400
    assert got.json["error"]["param"] == "max_token"
    assert "did you mean 'max_tokens'" in got.json["error"]["message"]


def test_values_out_of_range_are_named(server: Running) -> None:
    got = server.post("/v1/completions", {"prompt": "x", "temperature": -1})
    assert got.status == 400 and got.json["error"]["param"] == "temperature"
    assert got.json["error"]["type"] == "invalid_request_error"


def test_bad_json_is_a_400(server: Running) -> None:
    for raw in (b"{", b"[1]", b"\xff", b'{"prompt": NaN}', b"[" * 100_000, b""):
        got = server.ask("POST", "/v1/completions", raw)
        assert got.status == 400, raw[:20]
        assert json.loads(got.body)["error"]["message"]


def test_what_is_not_there(server: Running) -> None:
    assert server.get("/nothing").json["error"]["type"] == "not_found_error"
    assert server.get("/v1/completions").status == 405
    got = server.post("/v1/completions", {"prompt": "x", "model": "other"})
    assert got.status == 404 and got.json["error"]["code"] == "model_not_found"


def test_keys_that_are_always_null_are_there(server: Running) -> None:
    prompt = {"prompt": "Once", "max_tokens": 2}
    talk = {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 2}
    for path, body in (("/v1/completions", prompt), ("/v1/chat/completions", talk)):
        got = server.post(path, body).json
        assert got["system_fingerprint"] is None and got["service_tier"] is None
        events = server.post(path, {**body, "stream": True}).events
        assert events and all(one["system_fingerprint"] is None for one in events)


def test_the_server_describes_itself(server: Running) -> None:
    assert server.get("/health").status == 200 == server.get("/ready").status
    for got in (server.get("/v1/health"), server.get("/ping"), server.post("/ping", {})):
        assert got.status == 200 and got.json == {"status": "ok"}
    server.until(lambda: server.get("/load").json == {"server_load": 0})
    (card,) = server.get("/v1/models").json["data"]
    assert card["max_model_len"] > 0 and card["permission"] == []
    assert card["quality"]["kld_mean"] < 0.003  # the bundled model's
    assert server.get(f"/v1/models/{card['id']}").json == card
    assert server.get("/debug/steps").json["steps"]
    assert server.get("/debug/kv").json["sequences"] == []


def test_a_card_has_the_figures_of_the_passport(talker: Running) -> None:
    (card,) = talker.get("/v1/models").json["data"]
    assert card["quality"] == make_passport().summarize()
    assert card["quality"]["kld_mean"] == 0.02 and "command" not in card["quality"]
    assert any(line.startswith("quality: mean KLD 0.02 ± 0.001, ") for line in talker.said)


def test_a_model_without_a_template_goes_on_with_what_is_said(server: Running) -> None:
    more = {"max_tokens": 12, "temperature": 0}
    talk = [{"role": "system", "content": "A story."}, {"role": "user", "content": "Once upon a"}]
    said = server.post("/v1/chat/completions", {"messages": talk, **more})
    assert said.status == 200, said.body
    plain = server.post("/v1/completions", {"prompt": "A story.\nOnce upon a", **more})
    assert said.json["choices"][0]["message"]["content"] == plain.json["choices"][0]["text"]
    assert said.json["usage"] == plain.json["usage"]


@pytest.mark.parametrize("role", ["user", "tool"])
def test_a_message_of_a_user_or_a_tool_needs_content(server: Running, role: str) -> None:
    for empty in ({}, {"content": None}):
        body = {"messages": [*TALK, {"role": role, "tool_call_id": "a", **empty}]}
        got = server.post("/v1/chat/completions", body)
        assert got.status == 400, got.body
        error = got.json["error"]
        assert (error["param"], error["code"]) == ("messages.1.content", "missing_field")


def test_logprobs_of_a_chat_have_a_refusal(server: Running) -> None:
    body = {"messages": TALK, "max_tokens": 2, "logprobs": True}
    got = server.post("/v1/chat/completions", body).json["choices"][0]["logprobs"]
    assert len(got["content"]) == 2 and got["refusal"] is None


def test_include_usage_false_wins(server: Running) -> None:
    options = {"include_usage": False, "continuous_usage_stats": True}
    more = {"max_tokens": 3, "stream": True, "stream_options": options}
    bodies = {"/v1/chat/completions": {"messages": TALK}, "/v1/completions": {"prompt": "Once"}}
    for path, body in bodies.items():
        got = server.post(path, {**body, **more})
        assert got.status == 200 and got.events
        assert not any("usage" in one for one in got.events)


def test_a_body_must_be_declared_as_json(server: Running) -> None:
    def status(path: str, body: dict[str, Any], kind: str) -> int:
        return server.ask("POST", path, body, {"content-type": kind}).status

    prompt = {"prompt": "Once", "max_tokens": 1}
    for path in ("/v1/completions", "/generate"):
        assert status(path, prompt, "application/x-www-form-urlencoded") == 415
        assert status(path, prompt, "text/plain") == 415
        assert status(path, prompt, "application/json; charset=utf-8") == 200
    assert status("/v1/messages", {"messages": TALK, "max_tokens": 1}, "text/plain") == 415
    assert status("/completion", {"prompt": "Once"}, "text/plain") == 415
    ollama = {"model": "x", "prompt": "Once"}  # as curl posts it in Ollama's documentation
    got = server.ask("POST", "/api/generate", ollama, {"content-type": "text/plain"})
    assert got.status != 415
