"""Calls over HTTP in forms that are not Hermes's, a server for each form."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_tool_calls import TALK, TEMPLATE, TOOLS, joined, named, requested

import chat_model
from http_server import Running, started

FORMS = ("qwen3_coder", "pythonic", "hermes")


@pytest.fixture(scope="module", params=FORMS)
def parser(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """A server whose calls have one form."""
    path = chat_model.write(tmp_path_factory.mktemp("forms") / "m.gguf", TEMPLATE)
    words = ("--max-model-len", "512", "--tool-call-parser", request.param)
    with started(str(path), *words) as running:
        yield running


def test_demanded_calls_in_other_forms(parser: Running) -> None:
    """In tags and in Python's spelling: held to the schema, whole and streamed."""
    body = {"messages": TALK, "tools": TOOLS, "max_tokens": 200, "temperature": 1, "seed": 3,
            "tool_choice": named("get_weather")}  # fmt: skip
    (call,) = requested(parser, **body)["message"]["tool_calls"]
    events = parser.post("/v1/chat/completions", {**body, "stream": True}).events
    arguments = json.loads(call["function"]["arguments"])
    assert arguments["city"] in ("Paris", "Rome") and arguments["days"] in (1, 2, 3)
    message, finish = joined(events)
    assert finish == "tool_calls" and "content" not in message
    assert message["tool_calls"][0]["arguments"] == call["function"]["arguments"]


def test_templates_of_mistral_get_short_ids(tmp_path: Path) -> None:
    path = chat_model.write(tmp_path / "mistral.gguf", "{# [TOOL_CALLS] #}" + TEMPLATE)
    with started(str(path), "--max-model-len", "512") as running:
        (call, *_) = requested(running, tool_choice="required")["message"]["tool_calls"]
    assert len(call["id"]) == 9 and call["id"].isalnum()


def test_a_demanded_call_comes_after_bounded_reasoning(tmp_path: Path) -> None:
    """The template begins reasoning, and this model would never end it."""
    template = TEMPLATE.replace("<assistant>", "<assistant><think>") + "{# </think> #}"
    path = chat_model.write(tmp_path / "opened.gguf", template)
    with started(str(path), "--max-model-len", "512", "--thinking-percent", "30") as running:
        more = {"tool_choice": named("get_weather"), "max_tokens": 250}
        found = [requested(running, **more, seed=seed) for seed in range(3)]
    for choice in found:
        assert choice["finish_reason"] == "tool_calls"
        assert 0 < len(choice["message"]["reasoning"]) <= 250 * 3 * 30 // 100
        assert [c["function"]["name"] for c in choice["message"]["tool_calls"]] == ["get_weather"]


def test_half_a_character_in_arguments_is_shown_as_it_is_read(parser: Running) -> None:
    function = {"name": "get_weather", "arguments": '{"city": "\\ud83d"}'}
    call = {"id": "call_1", "type": "function", "function": function}
    talk = [*TALK, {"role": "assistant", "content": "", "tool_calls": [call]}]
    shown = parser.post("/apply-template", {"messages": talk})
    assert shown.status == 200
    assert "get_weather(\N{REPLACEMENT CHARACTER})" in shown.json["prompt"]
    ids = parser.post("/tokenize", {"messages": talk}).json["tokens"]
    assert parser.post("/tokenize", {"content": shown.json["prompt"]}).json["tokens"] == ids


def test_malformed_schemas_are_refused_with_their_place(parser: Running) -> None:
    for schema, place in (({"required": [1]}, "/required"), ({"required": 5}, "/required"),
                          ({"properties": 5}, "/properties")):  # fmt: skip
        odd = {"type": "function", "function": {"name": "odd", "parameters": schema}}
        body = {"messages": TALK, "tools": [odd], "tool_choice": "required"}
        got = parser.post("/v1/chat/completions", body)
        assert got.status == 400 and f"at '{place}'" in got.json["error"]["message"], got.body
        strict = {"type": "function", "function": {"name": "f", "strict": True}}
        body = {"messages": TALK, "tools": [odd, strict], "max_tokens": 2}
        assert parser.post("/v1/chat/completions", body).status == 200


def test_a_schema_that_nothing_satisfies_is_refused_by_its_tool(parser: Running) -> None:
    none = {"properties": {"x": {"type": "integer", "const": "a"}}, "required": ["x"]}
    function = {"name": "none", "parameters": none}
    tools = [*TOOLS, {"type": "function", "function": function}]
    for choice in ("required", named("none")):
        body = {"messages": TALK, "tools": tools, "tool_choice": choice}
        got = parser.post("/v1/chat/completions", body)
        message = got.json["error"]["message"]
        assert got.status == 400, got.body
        assert message.startswith("tools.2.function.parameters: no value satisfies it"), message
