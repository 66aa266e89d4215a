"""Parts and fields of messages: what is not read is refused by its place, in every dialect."""

from typing import Any

import pytest

from http_server import Running

APPLY, CHAT = "/apply-template", "/v1/chat/completions"
FILE = {"type": "file", "file": {"file_data": "AAAA"}}
TEXT = {"type": "text", "text": "Summarise:"}


def of(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


def beside(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hi", **fields}], "max_tokens": 1}


@pytest.mark.parametrize(
    ("part", "param", "words"),
    [
        (FILE, "messages.0.content.1.type", "allowed: 'text', 'input_text' or 'output_text'"),
        ({"type": "document"}, "messages.0.content.1.type", "'input_text' or 'output_text'"),
        ({"type": "text", "text": 5}, "messages.0.content.1.text", "= 5 is not valid; allowed: te"),
        ({}, "messages.0.content.1.type", "is missing"),
        ({**TEXT, "color": 1}, "messages.0.content.1.color", "unknown field"),
    ],
)
def test_a_part_that_is_not_text_is_refused(
    talker: Running, part: dict[str, Any], param: str, words: str
) -> None:
    for path in (APPLY, CHAT, "/tokenize", "/v1/embeddings"):
        got = talker.post(path, of(TEXT, part))
        error = got.json["error"]
        assert (got.status, error["param"]) == (400, param) and words in error["message"], error


def test_parts_of_text_are_taken_under_every_name(talker: Running) -> None:
    marked = {**TEXT, "cache_control": {"type": "ephemeral"}, "annotations": []}
    parts = (TEXT, {"type": "input_text", "text": "b"}, {**marked, "type": "output_text"})
    got = talker.post(APPLY, of(*parts))
    assert "Summarise:\nb\nSummarise:" in got.json["prompt"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/messages", {"max_tokens": 1, **of(TEXT, {"type": "document"})},
         "messages.0.content.1.type"),
        ("/v1/responses", {"input": of(TEXT, FILE)["messages"]}, "input.0.content.1.type"),
    ],
)  # fmt: skip
def test_other_apis_refuse_the_same(
    talker: Running, path: str, body: dict[str, Any], param: str
) -> None:
    model = talker.get("/v1/models").json["data"][0]["id"]
    got = talker.post(path, {"model": model, **body})
    assert got.status == 400 and param in got.json["error"]["message"], got.json


def test_ollama_takes_text_alone(talker: Running) -> None:
    model = talker.get("/v1/models").json["data"][0]["id"]
    got = talker.post("/api/chat", {"model": model, **of(TEXT)})
    assert got.status == 400 and "messages.0.content" in got.json["error"]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"colour": "red"}, "messages.0.colour", "unknown field"),
        ({"audio": {"id": "x"}}, "messages.0.audio", "images and files are not supported"),
        ({"function_call": {"name": "f"}}, "messages.0.function_call", "use 'tool_calls'"),
        ({"prefix": True}, "messages.0.prefix", "in the last message, if it is the assistant's"),
    ],
)
def test_unknown_fields_of_a_message_are_refused(
    talker: Running, fields: dict[str, Any], param: str, words: str
) -> None:
    got = talker.post(CHAT, beside(**fields))
    error = got.json["error"]
    assert (got.status, error["param"]) == (400, param) and words in error["message"], error


def test_fields_that_clients_send_back_are_taken(talker: Running) -> None:
    said = {
        "role": "assistant", "content": "Once", "reasoning": "Hm.", "refusal": None,
        "annotations": [], "audio": None, "function_call": None, "tool_calls": None,
        "provider_specific_fields": {"refusal": None},  # litellm's
    }  # fmt: skip
    talk = [{"role": "user", "content": "Hi"}, said, {"role": "user", "content": "Go on"}]
    assert talker.post(CHAT, {"messages": talk, "max_tokens": 1}).status == 200


def test_an_answer_goes_on_with_a_prefix(talker: Running) -> None:
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Once upon"}]
    going_on = talker.post(APPLY, {"messages": talk, "continue_final_message": True})
    talk[-1] = {**talk[-1], "prefix": True}  # type: ignore[dict-item]
    assert talker.post(APPLY, {"messages": talk}).json == going_on.json
    assert going_on.json["prompt"].endswith("Once upon")


def test_the_document_says_what_messages_may_be(talker: Running) -> None:
    schemas = talker.get("/openapi.json").json["components"]["schemas"]
    assert schemas["Message"]["additionalProperties"] == {"type": "null"}
    (part,) = [s for name, s in schemas.items() if name.endswith("TextPart") and "cache_control" in
               s["properties"]]  # fmt: skip
    assert part["properties"]["type"]["enum"] == ["text", "input_text", "output_text"]
    assert set(part["required"]) == {"type", "text"}


def test_a_lenient_server_lists_them(lenient: Running) -> None:
    got = lenient.post(CHAT, beside(colour="red"))
    assert got.status == 200 and got.headers["x-ignored-params"] == "messages.0.colour"
