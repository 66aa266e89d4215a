"""vLLM's fields in all dialects: /v1/responses has chat's, each has cache_salt and priority."""

from collections.abc import Iterator
from typing import Any

import pytest

import chat_model
from flyweight.server.apis.anthropic.messages import MessagesBody
from flyweight.server.apis.openai.responses import ResponseBody
from http_server import Reply, Running, started

LONG = "Once upon a time there was a small cat who sat on a mat and looked at the big moon. " * 3
TALK = [{"role": "user", "content": "A cat sat."}]
CHAT, ANSWERS = "/v1/chat/completions", "/v1/responses"
REFUSED = {"not": {"pattern": "a"}}
DRAWN = {"temperature": 1.0, "seed": 7}
MOST = {"max_tokens": 2}
DIALECTS: dict[str, dict[str, Any]] = {  # a long prompt in each
    "/v1/completions": {"prompt": LONG, **MOST},
    CHAT: {"messages": [{"role": "user", "content": LONG}], **MOST},
    ANSWERS: {"input": LONG, "max_output_tokens": 2},
    "/v1/messages": {"model": "m", "messages": [{"role": "user", "content": LONG}], **MOST},
    "/v1/embeddings": {"input": LONG},
    "/completion": {"prompt": LONG, "n_predict": 2},
    "/generate": {"prompt": LONG, **MOST},
    "/api/generate": {"model": "m", "prompt": LONG, "stream": False},
    "/api/chat": {"model": "m", "messages": [{"role": "user", "content": LONG}], "stream": False},
    "/api/embed": {"model": "m", "input": LONG},
}
WITHIN = ("/api/generate", "/api/chat", "/api/embed")  # where such fields are options
NEVER_TOLD = ("/api/embed",)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One that takes all requests in order, so that a priority but 0 is refused."""
    path = chat_model.write(tmp_path_factory.mktemp("fields") / "m.gguf")
    words = ("--max-model-len", "512", "--served-model-name", "m", "--scheduling-policy", "fcfs")
    with started(str(path), *words) as running:
        yield running


def requested(server: Running, path: str, **more: Any) -> Reply:
    body = dict(DIALECTS[path])
    if path in WITHIN:
        options = {} if path == "/api/embed" else {"num_predict": 2}
        return server.post(path, {**body, "options": {**options, **more}})
    return server.post(path, {**body, **more})


def text(server: Running, **more: Any) -> tuple[str, str]:
    """What is said with options by /v1/responses, and by chat."""
    same = {**DRAWN, **more}
    got = server.post(ANSWERS, {"input": TALK, "max_output_tokens": 12, **same})
    assert got.status == 200, got.body
    parts = [part["text"] for item in got.json["output"] for part in item["content"]]
    talked = server.post(CHAT, {"messages": TALK, "max_tokens": 12, **same})
    return "".join(parts), talked.json["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    "more",
    [
        {"top_k": 1}, {"min_p": 0.9}, {"repetition_penalty": 5.0}, {"presence_penalty": 2.0},
        {"frequency_penalty": 2.0, "repeat_last_n": 2}, {"seed": 11}, {"logit_bias": {"300": 100}},
        {"allowed_token_ids": [300, 301]}, {"structured_outputs": {"choice": ["yes", "no"]}},
        {"min_tokens": 12}, {"ignore_eos": True}, {"typical_p": 0.1}, {"top_n_sigma": 0.1},
        {"bad_words": ["a", " a"]}, {"xtc_probability": 1.0, "xtc_threshold": 0.01},
        {"add_special_tokens": True}, {"truncate_prompt_tokens": 5},
        {"mirostat": 2, "mirostat_tau": 0.1}, {"dry_multiplier": 5.0, "dry_allowed_length": 1},
    ],
    ids=lambda more: next(iter(more)),
)  # fmt: skip
def test_responses_take_what_a_chat_takes(server: Running, more: dict[str, Any]) -> None:
    said, same = text(server, **more)
    assert said == same


def test_what_stops_a_chat_stops_a_response(server: Running) -> None:
    whole, _ = text(server)
    word = whole[2:5]
    cut, same = text(server, stop=word)
    assert cut == same == whole[: whole.index(word)]
    shown, same = text(server, stop=[word], include_stop_str_in_output=True)
    assert shown == same == cut + word
    ids = server.post("/tokenize", {"content": whole}).json["tokens"]
    ended, same = text(server, stop_token_ids=ids[:3])
    assert ended == same and len(ended) < len(whole)


def test_what_only_some_models_heed_reaches_the_chat() -> None:
    given: dict[str, Any] = {"thinking_token_budget": 9, "documents": [{"text": "x"}]}
    given |= {"chat_template_kwargs": {"a": 1}, "cache_salt": "s", "repetition_penalty": 2.0}
    found = ResponseBody.model_validate({"input": "x", **given}).to_chat()
    assert {name: found[name] for name in given} == given
    said = {"model": "m", "max_tokens": 1, "messages": TALK, "priority": 3, "cache_salt": "s"}
    found = MessagesBody.model_validate(said).to_chat()
    assert (found["priority"], found["cache_salt"]) == (3, "s")


def test_a_schema_is_refused_by_its_own_name(server: Running) -> None:
    form = {"structured_outputs": {"json": REFUSED}}
    got = server.post(ANSWERS, {"input": TALK, **form})
    assert got.status == 400 and "structured_outputs" in got.json["error"]["param"]
    own = {"text": {"format": {"type": "json_schema", "name": "a", "schema": REFUSED}}}
    got = server.post(ANSWERS, {"input": TALK, **own})
    assert got.status == 400
    assert got.json["error"]["message"].startswith("text.format.schema: ")
    got = server.post(ANSWERS, {"input": TALK, **own, "structured_outputs": {"regex": "a"}})
    assert got.status == 400
    assert got.json["error"]["message"].startswith("text.format and structured_outputs exclude")


@pytest.mark.parametrize("path", DIALECTS)
def test_a_priority_reaches_the_server_in_every_api(server: Running, path: str) -> None:
    assert requested(server, path, priority=0).status == 200
    got = requested(server, path, priority=3)
    name = "options.priority" if path in WITHIN else "priority"
    assert got.status == 400 and f"{name} = 3 is out of range".encode() in got.body, got.body
    assert b"--scheduling-policy" in got.body


@pytest.mark.parametrize("path", [path for path in DIALECTS if path not in NEVER_TOLD])
def test_a_salt_parts_caches_in_every_api(server: Running, path: str) -> None:
    """Each with salts of its own: dialects share what one salt hides from others."""

    def cached(salt: str) -> int:
        more = {"cache_salt": salt + path}
        if path in WITHIN:
            body = {**DIALECTS[path], "options": {"num_predict": 2, **more}}
        else:
            body = {**DIALECTS[path], **more}
        got = server.post(path, {**body, "return_cache_explanation": True})
        assert got.status == 200, got.body
        found: int = got.json["cache_explanation"][0]["hit_tokens"]
        return found

    assert cached("a") == 0 and cached("a") > 0 and cached("b") == 0


@pytest.mark.parametrize("id", ["a\nb", "a b", "ä", "", "a" * 129, "a\x1b[31m", "a\n"])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", ANSWERS, "/v1/embeddings"])
def test_a_request_id_forges_no_line(server: Running, path: str, id: str) -> None:
    got = requested(server, path, request_id=id)
    assert got.status == 400 and got.json["error"]["param"] == "request_id"
    assert b"\n" not in got.body


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", ANSWERS, "/v1/embeddings"])
def test_a_request_id_is_part_of_the_replys(server: Running, path: str) -> None:
    got = requested(server, path, request_id="Job-7_a:b.c")
    assert got.status == 200 and got.json["id"].endswith("-Job-7_a:b.c".replace("-J", "J", 1))


def test_input_of_responses_is_counted(server: Running) -> None:
    body = {"input": TALK, "instructions": "Be kind."}
    got = server.post(f"{ANSWERS}/input_tokens", {"model": "m", **body})
    assert got.status == 200, got.body
    spent = server.post(ANSWERS, {**body, "max_output_tokens": 1}).json["usage"]
    assert got.json == {"object": "response.input_tokens", "input_tokens": spent["input_tokens"]}
    wrong = server.post(f"{ANSWERS}/input_tokens", {"model": "other", **body})
    assert wrong.status == 404
    wrong = server.post(f"{ANSWERS}/input_tokens", {"input": []})
    assert wrong.status == 400 and wrong.json["error"]["param"] == "input"
