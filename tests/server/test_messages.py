"""Anthropic's routes, without its client."""

from typing import Any

import pytest

from flyweight.server.apis.anthropic.messages import MessagesBody, MessageTurn
from flyweight.server.apis.openai.content_blocks import make_chat_body
from http_server import Running

TALK = [{"role": "user", "content": "A cat sat."}]


def body(talker: Running, **more: Any) -> dict[str, Any]:
    name = talker.get("/v1/models").json["data"][0]["id"]
    return {"model": name, "messages": TALK, "max_tokens": 16, "temperature": 0, **more}


def test_a_message_is_what_chat_says(talker: Running) -> None:
    got = talker.post("/v1/messages", body(talker)).json
    same = talker.post("/v1/chat/completions", body(talker)).json
    assert got["content"] == [{"type": "text", "text": same["choices"][0]["message"]["content"]}]
    assert got["stop_reason"] == "max_tokens" and got["role"] == "assistant"
    spent = got["usage"]
    read = spent["input_tokens"] + spent["cache_read_input_tokens"]
    assert read == same["usage"]["prompt_tokens"] and spent["output_tokens"] == 16


def test_events_come_in_anthropics_order(talker: Running) -> None:
    whole = talker.post("/v1/messages", body(talker)).json
    got = talker.post("/v1/messages", body(talker, stream=True))
    kinds = [e["type"] for e in got.events]
    deltas = len(kinds) - 5
    assert kinds == [
        "message_start", "content_block_start", *["content_block_delta"] * deltas,
        "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    names = [x for x in got.body.decode().split("\n") if x.startswith("event: ")]
    assert [name.removeprefix("event: ") for name in names] == kinds
    said = "".join(e["delta"]["text"] for e in got.events if e["type"] == "content_block_delta")
    assert said == whole["content"][0]["text"]
    assert got.events[-2]["usage"]["output_tokens"] == 16


def test_stop_sequences_and_system(talker: Running) -> None:
    text = talker.post("/v1/messages", body(talker, max_tokens=60)).json["content"][0]["text"]
    word = text.split()[3]
    got = talker.post("/v1/messages", body(talker, max_tokens=60, stop_sequences=[word])).json
    assert got["stop_reason"] == "stop_sequence" and got["stop_sequence"] == word
    assert got["content"][0]["text"] == text[: text.index(word)]
    systems = ("Be kind.", [{"type": "text", "text": "Be kind."}])
    one, other = (talker.post("/v1/messages", body(talker, system=s)).json for s in systems)
    assert one["content"] == other["content"] and one["usage"] != {}


def test_tokens_are_counted_as_they_are_run(talker: Running) -> None:
    talk = [
        {"role": "user", "content": [{"type": "text", "text": "A cat sat."}]},
        {"role": "assistant", "content": "On the"},
    ]
    given = {"model": body(talker)["model"], "system": "Be kind.", "messages": talk}
    counted = talker.post("/v1/messages/count_tokens", given).json["input_tokens"]
    spent = talker.post("/v1/messages", {**given, "max_tokens": 1}).json["usage"]
    assert counted == spent["input_tokens"] + spent["cache_read_input_tokens"]
    shown = talker.post(
        "/apply-template",
        {"messages": [{"role": "system", "content": "Be kind."}, TALK[0], talk[1]],
         "continue_final_message": True, "add_generation_prompt": False},
    ).json["prompt"]  # fmt: skip
    assert shown.endswith("<assistant> On the"), "the last message is gone on with"


def test_what_is_sent_to_be_answered_can_be_counted(talker: Running) -> None:
    form = {"type": "json_schema", "schema": {"enum": ["cat", "dog"]}}
    more = {"cache_control": {"type": "ephemeral"}, "output_config": {"format": form}}
    requested = body(talker, **more)
    got = talker.post("/v1/messages", requested)
    assert got.status == 200, got.body
    spent = got.json["usage"]
    del requested["max_tokens"], requested["temperature"]
    counted = talker.post("/v1/messages/count_tokens", requested)
    assert counted.status == 200, counted.body
    read = spent["input_tokens"] + spent["cache_read_input_tokens"]
    assert counted.json["input_tokens"] == read


def test_results_of_tools_are_messages_of_their_own(talker: Running) -> None:
    use = {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "cat"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "It sat."}
    talk = [TALK[0], {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    counted = talker.post(
        "/v1/messages/count_tokens", {"model": body(talker)["model"], "messages": talk}
    )
    same = [TALK[0], {"role": "assistant", "content": ""}, {"role": "tool", "content": "It sat."}]
    assert (
        counted.json["input_tokens"] == talker.post("/tokenize", {"messages": same}).json["count"]
    )


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"content": "No cat."}, "No cat."),
        ({"content": "No cat.", "is_error": False}, "No cat."),
        ({"content": "No cat.", "is_error": True}, "Error: No cat."),
        ({"content": [{"type": "text", "text": "No cat."}], "is_error": True}, "Error: No cat."),
        ({"content": "ERROR 7: no cat", "is_error": True}, "ERROR 7: no cat"),
        ({"is_error": True}, "Error"),
    ],
)
def test_a_failed_tool_is_shown_to_the_model(result: dict[str, Any], text: str) -> None:
    given = {"type": "tool_result", "tool_use_id": "t1", **result}
    (found,) = MessageTurn.model_validate({"role": "user", "content": [given]}).to_chat()
    assert found == {"role": "tool", "tool_call_id": "t1", "content": text}


@pytest.mark.parametrize(
    ("field", "kind"),
    [
        ({"max_tokens": 0}, "invalid_request_error"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "invalid_request_error"),
        ({"container": "x"}, "invalid_request_error"),
        ({"model": "claude-opus"}, "not_found_error"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "invalid_request_error"),
        ({"tool_choice": {"type": "tool"}}, "invalid_request_error"),
    ],
)
def test_errors_are_in_anthropics_shape(talker: Running, field: dict[str, Any], kind: str) -> None:
    got = talker.post("/v1/messages", body(talker, **field))
    assert got.status in (400, 404) and got.json["type"] == "error"
    assert got.json["error"]["type"] == kind
    assert next(iter(field)) in got.json["error"]["message"]


@pytest.mark.parametrize("strict", [True, False, None])
def test_a_strict_tool_is_one_in_openais_api(*, strict: bool | None) -> None:
    tool = {"name": "f", "input_schema": {"type": "object"}, "strict": strict}
    given = {"model": "m", "messages": TALK, "max_tokens": 16, "tools": [tool]}
    (same,) = make_chat_body(MessagesBody.model_validate(given).to_chat()).tools or ()
    assert same.function.strict is strict
