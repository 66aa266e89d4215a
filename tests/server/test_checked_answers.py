"""`strictness: "validate"` over HTTP: answers are checked when they are complete, and replies count
the attempts.
"""

import asyncio
import json
from typing import Any

import jsonschema
import pytest

from flyweight.params.structured import StructuredOutputs
from flyweight.server.constraints.validator import ConstraintValidator
from http_server import Reply, Running

DIGITS = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": 9},
    "minItems": 2,
    "maxItems": 3,
    "uniqueItems": True,
}
IMPOSSIBLE = {**DIGITS, "items": {"const": 1}}  # two different ones
TALK = [{"role": "user", "content": "Tell me about a cat."}]
ONCE = "Once upon a time"


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    requested = {"name": "digits", "schema": schema, "strictness": "validate"}
    return {"type": "json_schema", "json_schema": requested}


def completed(server: Running, **body: Any) -> Reply:
    requested = {"prompt": ONCE, "max_tokens": 200, "temperature": 1, "seed": 3, **body}
    return server.post("/v1/completions", requested)


def test_answers_are_valid_and_attempts_are_counted(server: Running) -> None:
    refused = completed(server, structured_outputs={"json": DIGITS})
    assert refused.status == 400 and "'uniqueItems'" in refused.json["error"]["message"]
    counts = []
    for seed in range(8):
        got = completed(server, response_format=strict(DIGITS), n=2, seed=seed)
        assert got.status == 200, got.body
        produced = 0
        for choice in got.json["choices"]:
            report = choice["structured_output"]
            assert report["valid"] is True and choice["finish_reason"] == "stop"
            jsonschema.validate(json.loads(choice["text"]), DIGITS)
            counts.append(report["attempts"])
            produced += 3 * report["attempts"]  # of "[1, 2]", at least
        assert got.json["usage"]["completion_tokens"] >= produced
    assert min(counts) == 1 and max(counts) > 1


def test_the_tokens_of_all_attempts_are_max_tokens(server: Running) -> None:
    for temperature in (0, 1):
        body = {"temperature": temperature, "max_tokens": 60, "n": 2 if temperature else 1}
        got = completed(server, structured_outputs={"json": IMPOSSIBLE, "strictness": "validate"},
                        **body)  # fmt: skip
        for choice in got.json["choices"]:
            assert choice["structured_output"]["valid"] is False
            assert choice["structured_output"]["attempts"] > 3
        most = 60 * len(got.json["choices"])
        assert most // 2 < got.json["usage"]["completion_tokens"] <= most
    got = completed(server, response_format=strict(IMPOSSIBLE), max_tokens=2)
    (choice,) = got.json["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["structured_output"] == {"attempts": 1, "valid": False}


def test_a_stream_is_the_whole_answer(server: Running) -> None:
    body = {"structured_outputs": {"json": DIGITS, "strictness": "validate"}, "n": 2, "seed": 1}
    whole = completed(server, **body).json["choices"]
    events = completed(server, stream=True, **body).events
    assert len(events) == 2
    for event in events:
        (choice,) = event["choices"]
        same = whole[choice["index"]]
        for name in ("text", "finish_reason", "structured_output"):
            assert choice[name] == same[name]


def test_chat_and_responses_say_the_same(talker: Running) -> None:
    body = {"messages": TALK, "max_tokens": 200, "seed": 1, "response_format": strict(DIGITS)}
    (choice,) = talker.post("/v1/chat/completions", body).json["choices"]
    assert choice["structured_output"]["valid"] is True
    jsonschema.validate(json.loads(choice["message"]["content"]), DIGITS)
    events = talker.post("/v1/chat/completions", {**body, "stream": True}).events
    last = [event["choices"][0] for event in events if event["choices"]][-1]
    assert last["structured_output"] == choice["structured_output"]
    form = {"type": "json_schema", **strict(DIGITS)["json_schema"]}
    requested = {
        "input": "Hello",
        "max_output_tokens": 200,
        "temperature": 1,
        "text": {"format": form},
    }
    got = talker.post("/v1/responses", requested)
    assert got.status == 200, got.body
    assert got.json["structured_output"]["valid"] is True
    jsonschema.validate(json.loads(got.json["output"][0]["content"][0]["text"]), DIGITS)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"structured_outputs": {"json": {}, "strictness": "loose"}},
         "structured_outputs.strictness"),
        ({"structured_outputs": {"regex": "a", "strictness": "validate"}},
         "structured_outputs.strictness"),
        ({"response_format": {"type": "json_schema", "json_schema": {
            "name": "a", "schema": {}, "strictness": 1}}},
         "response_format.json_schema.strictness"),
        ({"response_format": strict({"$ref": "http://x.example/"})},
         "response_format.json_schema.schema"),
        ({"response_format": strict({}), "best_of": 2}, "best_of"),
        ({"response_format": strict({}), "include_stop_str_in_output": True},
         "include_stop_str_in_output"),
    ],
)  # fmt: skip
def test_bad_values_are_refused_by_name(server: Running, given: dict[str, Any], param: str) -> None:
    got = completed(server, **given)
    assert got.status == 400 and got.json["error"]["param"] == param, got.body


def test_a_text_that_takes_too_long_to_check_blocks_no_other() -> None:
    async def work() -> None:
        validator = ConstraintValidator(list, 60.0)
        form = StructuredOutputs(json={"uniqueItems": True}, strictness="validate")
        try:
            assert await validator.validate(form, "[1, 2]") is True
            assert await validator.validate(form, "[1, 1]") is False
            validator.seconds = 0.0
            assert await validator.validate(form, "[1, 2]") is None
            validator.seconds = 60.0
            assert await validator.validate(form, "[1, 2]") is True
        finally:
            await validator.close()

    asyncio.run(work())
