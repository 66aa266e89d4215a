"""OpenAI's /v1/responses, without its client."""

from typing import Any

import pytest

from flyweight.server.apis.openai.responses import ResponseBody, make_messages
from http_server import Running

GREEDY = {"temperature": 0, "max_output_tokens": 16}
TALK = [{"role": "user", "content": "A cat sat."}]


def test_a_response_is_what_chat_says(talker: Running) -> None:
    got = talker.post("/v1/responses", {"input": "A cat sat.", **GREEDY}).json
    same = {"messages": TALK, "temperature": 0, "max_tokens": 16}
    chat = talker.post("/v1/chat/completions", same).json
    (item,) = got["output"]
    assert item["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert got["status"] == "incomplete" == item["status"]
    assert got["incomplete_details"] == {"reason": "max_output_tokens"}
    assert got["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
    assert got["usage"]["output_tokens"] == 16 and got["store"] is False


def test_input_as_items_is_the_same(talker: Running) -> None:
    text = {"input": "A cat sat.", "instructions": "Be kind.", **GREEDY}
    part = {"type": "input_text", "text": "A cat sat."}
    items = [
        {"role": "system", "content": "Be kind."},
        {"type": "message", "role": "user", "content": [part]},
    ]
    one = talker.post("/v1/responses", text).json
    other = talker.post("/v1/responses", {"input": items, **GREEDY}).json
    said = [r["output"][0]["content"][0]["text"] for r in (one, other)]
    assert said[0] == said[1] and one["usage"]["input_tokens"] == other["usage"]["input_tokens"]
    assert one["instructions"] == "Be kind." and other["instructions"] is None


def test_events_come_in_order_and_end_with_the_whole(talker: Running) -> None:
    whole = talker.post("/v1/responses", {"input": "A cat sat.", **GREEDY}).json
    got = talker.post("/v1/responses", {"input": "A cat sat.", **GREEDY, "stream": True})
    kinds = [e["type"].removeprefix("response.") for e in got.events]
    deltas = kinds.count("output_text.delta")
    assert kinds == [
        "created", "in_progress", "output_item.added", "content_part.added",
        *["output_text.delta"] * deltas,
        "output_text.done", "content_part.done", "output_item.done", "incomplete",
    ]  # fmt: skip
    assert [e["sequence_number"] for e in got.events] == list(range(len(kinds)))
    said = "".join(e["delta"] for e in got.events if e["type"].endswith("text.delta"))
    last = got.events[-1]["response"]
    assert said == whole["output"][0]["content"][0]["text"]
    assert last["output"][0]["content"] == whole["output"][0]["content"]
    assert last["usage"]["output_tokens"] == 16


SCORED = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


def test_log_probabilities_are_chats(talker: Running) -> None:
    body = {"input": "A cat sat.", **GREEDY, **SCORED}
    got = talker.post("/v1/responses", body).json
    same = {"messages": TALK, "temperature": 0, "max_tokens": 16, "logprobs": True}
    chat = talker.post("/v1/chat/completions", {**same, "top_logprobs": 2}).json
    known = got["output"][0]["content"][0]["logprobs"]
    assert known == chat["choices"][0]["logprobs"]["content"] and len(known) == 16
    assert got["top_logprobs"] == 2 and len(known[0]["top_logprobs"]) == 2
    bare = talker.post("/v1/responses", {**body, "top_logprobs": None}).json
    reported = bare["output"][0]["content"][0]["logprobs"]
    assert [one["logprob"] for one in reported] == [one["logprob"] for one in known]
    assert all(one["top_logprobs"] == [] for one in reported)


def test_events_have_the_log_probabilities_of_their_text(talker: Running) -> None:
    body = {"input": "A cat sat.", **GREEDY, **SCORED}
    known = talker.post("/v1/responses", body).json["output"][0]["content"][0]["logprobs"]
    events = talker.post("/v1/responses", {**body, "stream": True}).events
    deltas = [e for e in events if e["type"] == "response.output_text.delta"]
    assert [one for e in deltas for one in e["logprobs"]] == known
    for delta in deltas:
        assert delta["delta"] == "".join(one["token"] for one in delta["logprobs"])
    (done,) = [e for e in events if e["type"] == "response.output_text.done"]
    (part,) = [e["part"] for e in events if e["type"] == "response.content_part.done"]
    last = events[-1]["response"]["output"][0]["content"][0]
    assert done["logprobs"] == part["logprobs"] == last["logprobs"] == known


def test_top_logprobs_without_logprobs_are_refused(talker: Running) -> None:
    got = talker.post("/v1/responses", {"input": "x", "top_logprobs": 2})
    assert got.status == 400 and got.json["error"]["param"] == "top_logprobs"
    assert "include = ['message.output_text.logprobs']" in got.json["error"]["message"]


def test_what_was_called_and_what_came_of_it(talker: Running) -> None:
    items = [
        *TALK,
        {"type": "reasoning", "id": "rs_1", "summary": [],
         "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "It sat."},
    ]  # fmt: skip
    got = talker.post("/v1/responses", {"input": items, **GREEDY}).json
    same = [*TALK, {"role": "assistant", "content": ""}, {"role": "tool", "content": "It sat."}]
    count = talker.post("/tokenize", {"messages": same}).json["count"]
    assert got["usage"]["input_tokens"] == count


@pytest.mark.parametrize(
    "field",
    [
        {"previous_response_id": "resp_1"},
        {"background": True},
        {"truncation": "auto"},
        {"include": ["message.output_text.logits"]},
        {"top_logprobs": 3},
        {"top_logprobs": 21, "include": ["message.output_text.logprobs"]},
        {"top_logprobs": False},
        {"stream_options": {"include_obfuscation": True}},
        {"conversation": "c"},
        {"tools": [{"type": "web_search"}]},
        {"input": []},
    ],
)
def test_what_would_need_a_memory_is_refused(talker: Running, field: dict[str, Any]) -> None:
    got = talker.post("/v1/responses", {"input": "x", **field})
    assert got.status == 400, got.body
    assert got.json["error"]["param"].split(".")[0] == next(iter(field))


def test_a_format_is_kept_to(talker: Running) -> None:
    form = {"type": "json_schema", "name": "pet", "schema": {"enum": ["cat", 7]}, "strict": True}
    got = talker.post("/v1/responses", {"input": "A cat", "text": {"format": form}}).json
    (said,) = [one for one in got["output"] if one["type"] == "message"]
    assert said["content"][0]["text"] in ('"cat"', "7")
    assert got["text"]["format"] == form
    bad = {**form, "schema": {"not": {"pattern": "a"}}}
    got = talker.post("/v1/responses", {"input": "A cat", "text": {"format": bad}})
    assert got.status == 400
    assert "text.format.schema: at '#': the keyword 'not'" in got.json["error"]["message"]


def test_a_repeating_answer_is_incomplete(talker: Running) -> None:
    found = {"max_pattern_size": 3, "min_count": 4}
    body = {"input": "A cat sat.", "allowed_token_ids": [300], "ignore_eos": True,
            "max_output_tokens": 20, "repetition_detection": found}  # fmt: skip
    events = talker.post("/v1/responses", {**body, "stream": True}).events
    assert events[-1]["type"] == "response.incomplete"
    for got in (talker.post("/v1/responses", body).json, events[-1]["response"]):
        assert got["status"] == "incomplete" == got["output"][-1]["status"]
        assert got["incomplete_details"] == {"reason": "repetition"}
        assert got["usage"]["output_tokens"] == 4


def thought(text: str) -> dict[str, Any]:
    part = {"type": "reasoning_text", "text": text}
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": [part]}


def test_what_was_thought_stays_in_its_turn() -> None:
    """Reasoning whose answer never came is no part of the next one, and is not left out."""
    said = {"type": "message", "role": "assistant", "content": "Yes."}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    items = [thought("a"), *TALK, thought("b"), said, thought("c"), call, *TALK, thought("d")]
    talk = make_messages(ResponseBody.model_validate({"input": items}).input)  # type: ignore[arg-type]
    empty = {"role": "assistant", "content": ""}
    assert [one.get("reasoning") for one in talk] == ["a", None, "b", "c", None, "d"]
    assert talk[0] == {**empty, "reasoning": "a"} and talk[2]["content"] == "Yes."
    assert talk[3]["tool_calls"] and talk[-1] == {**empty, "reasoning": "d"}
