"""Tools next to a form of JSON: an answer is calls or the form, whichever the model begins, in
every dialect; where the two look alike, that is refused.  And calls that a stop of the caller's
ends.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from test_tool_calls import CALL, TALK, TEMPLATE, WEATHER, allowed, joined

import chat_model
from http_server import Running, started

CHAT = "/v1/chat/completions"
STRICT = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "<tool_call>"]}, "legs": {"enum": [2, 4]}},
    "required": ["kind", "legs"],
    "additionalProperties": False,
}
REFUSED = {"not": {"pattern": "a"}}
FORM = {"type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA}}
ALIKE = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = chat_model.write(tmp_path_factory.mktemp("either") / "caller.gguf", TEMPLATE)
    with started(str(path), "--max-model-len", "512", "--served-model-name", "m") as running:
        yield running


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Its calls are objects without a mark."""
    path = chat_model.write(tmp_path_factory.mktemp("either") / "bare.gguf", TEMPLATE)
    with started(str(path), "--max-model-len", "512", "--tool-call-parser", "llama3_json") as one:
        yield one


def beginning(server: Running, text: str) -> dict[str, Any]:
    """What has the model begin its answer so, where it may."""
    ids = server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json["tokens"]
    return {"logit_bias": {str(ids[-1]): 100}, "max_tokens": 200, "temperature": 0}


def requested(server: Running, **more: Any) -> dict[str, Any]:
    got = server.post(CHAT, {"messages": TALK, "tools": [STRICT], "response_format": FORM, **more})
    assert got.status == 200, got.body
    found: dict[str, Any] = got.json["choices"][0]
    return found


def pet(text: str) -> None:
    found = json.loads(text)
    assert found["kind"] in ("cat", "<tool_call>") and found["legs"] in (2, 4)


def weather(arguments: Any) -> None:
    assert arguments["city"] in ("Paris", "Rome") and arguments["days"] in (1, 2, 3)


@pytest.mark.parametrize("choice", [None, "auto", allowed("auto", "get_weather")])
def test_a_model_that_begins_a_call_makes_one(caller: Running, choice: Any) -> None:
    more = {**beginning(caller, "<"), "parallel_tool_calls": False, "tool_choice": choice}
    found = requested(caller, **more)
    (call,) = found["message"]["tool_calls"]
    weather(json.loads(call["function"]["arguments"]))
    assert found["message"]["content"] is None and found["finish_reason"] == "tool_calls"
    body = {"messages": TALK, "tools": [STRICT], "response_format": FORM, "stream": True, **more}
    streamed, finish = joined(caller.post(CHAT, body).events)
    assert [c["arguments"] for c in streamed["tool_calls"]] == [call["function"]["arguments"]]
    assert finish == "tool_calls"


@pytest.mark.parametrize("choice", [None, "none"])
def test_a_model_that_begins_the_form_keeps_to_it(caller: Running, choice: Any) -> None:
    """A mark of a call in a string of it begins none."""
    mark = caller.post("/tokenize", {"prompt": "<", "add_special_tokens": False}).json["tokens"]
    bias = {**beginning(caller, "{")["logit_bias"], str(mark[-1]): 50}
    more = {"max_tokens": 200, "temperature": 0, "logit_bias": bias, "tool_choice": choice}
    found = requested(caller, **more)
    assert found["finish_reason"] == "stop" and "tool_calls" not in found["message"]
    pet(found["message"]["content"])
    assert "<tool_call>" in found["message"]["content"]


def test_without_a_call_to_be_read_there_is_the_form(caller: Running) -> None:
    found = requested(caller, **beginning(caller, "<"), tool_choice="none")
    pet(found["message"]["content"])
    assert "tool_calls" not in found["message"]


def test_other_apis(caller: Running) -> None:
    more = beginning(caller, "<")
    function = STRICT["function"]
    text = {"format": {"type": "json_schema", "name": "pet", "schema": SCHEMA}}
    body = {"input": "Hi", "tools": [{"type": "function", **function}], "text": text,
            "parallel_tool_calls": False, "max_output_tokens": 200, "temperature": 0,
            "logit_bias": more["logit_bias"]}  # fmt: skip
    (item,) = caller.post("/v1/responses", body).json["output"]
    assert item["type"] == "function_call"
    weather(json.loads(item["arguments"]))


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
def test_a_demanded_call_comes_although_there_is_a_form(caller: Running, choice: Any) -> None:
    """The form says what a text must be, and a demanded call is none; both APIs."""
    text = {"format": {"type": "json_schema", "name": "pet", "schema": SCHEMA}}
    body = {
        "input": "Hi",
        "tools": [{"type": "function", **STRICT["function"]}],
        "text": text,
        "tool_choice": choice,
        "max_output_tokens": 200,
        "parallel_tool_calls": False,
    }
    got = caller.post("/v1/responses", body)
    assert got.status == 200, got.body
    (item,) = got.json["output"]
    weather(json.loads(item["arguments"]))
    (call,) = requested(caller, tool_choice="required", parallel_tool_calls=False, max_tokens=200)[
        "message"
    ]["tool_calls"]
    weather(json.loads(call["function"]["arguments"]))
    wrong = {**body, "text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": 1}}}}
    got = caller.post("/v1/responses", wrong)
    assert got.status == 400 and "text.format.schema" in got.json["error"]["message"]
    other = {"messages": TALK, "tools": [STRICT], "tool_choice": "required"}
    got = caller.post(CHAT, {**other, "structured_outputs": {"regex": "a"}})
    assert got.status == 400 and got.json["error"]["param"] == "tool_choice"


def test_calls_without_a_mark(bare: Running) -> None:
    """A schema that requires what no call has is distinguished from one by its first key."""
    more = {**beginning(bare, "name"), "parallel_tool_calls": False}
    (call,) = requested(bare, **more)["message"]["tool_calls"]
    weather(json.loads(call["function"]["arguments"]))
    more = {**beginning(bare, "k"), "tools": [WEATHER]}
    found = requested(bare, **more)
    assert "tool_calls" not in found["message"]
    pet(found["message"]["content"])


def test_any_object_has_calls_without_a_mark_in_it(bare: Running) -> None:
    more = {"tools": [WEATHER], "response_format": {"type": "json_object"}, "max_tokens": 40}
    content = requested(bare, **more)["message"]["content"]
    assert content is None or content.startswith("{")


@pytest.mark.parametrize(
    ("form", "tool"),
    [(ALIKE, WEATHER), ({"type": "array", "items": {}}, WEATHER), (True, WEATHER), (None, STRICT)],
)
def test_what_looks_like_a_call_is_refused_next_to_tools(
    bare: Running, form: Any, tool: dict[str, Any]
) -> None:
    outputs = {"json_object": True} if form is None else {"json": json.dumps(form)}
    body = {"messages": TALK, "tools": [tool], "structured_outputs": outputs}
    error = bare.post(CHAT, body).json["error"]
    assert error["param"] == "tools" and "plain JSON" in error["message"], error
    assert bare.post(CHAT, {**body, "tool_choice": "none", "max_tokens": 1}).status == 200


def test_a_form_that_is_wrong_is_to_blame(caller: Running) -> None:
    form = {
        "type": "json_schema",
        "json_schema": {"name": "pet", "schema": REFUSED},
    }
    body = {"messages": TALK, "tools": [STRICT], "response_format": form}
    error = caller.post(CHAT, body).json["error"]
    assert error["message"].startswith("response_format.json_schema.schema: "), error


def test_a_tool_that_is_wrong_is_to_blame(caller: Running) -> None:
    function = {
        "name": "f",
        "strict": True,
        "parameters": {"properties": {"x": REFUSED}},
    }
    tools = [WEATHER, {"type": "function", "function": function}]
    body = {"messages": TALK, "tools": tools, "response_format": FORM}
    error = caller.post(CHAT, body).json["error"]
    assert error["message"].startswith("tools.1.function.parameters: "), error


def test_a_form_that_spells_calls_has_them(caller: Running) -> None:
    found = requested(caller, response_format=None, structured_outputs={"choice": [CALL]})
    assert len(found["message"]["tool_calls"]) == 1


@pytest.mark.parametrize("stop", [{"stop": "ome"}, {"stop": ["</tool_call>"]}])
def test_a_stop_within_a_call_cuts_it_off(caller: Running, stop: dict[str, Any]) -> None:
    """What there is of it is a call still, and the answer ends with calls where it is whole."""
    given = {"structured_outputs": {"choice": [CALL]}, "tools": [WEATHER], **stop}
    found = requested(caller, response_format=None, **given)
    (call,) = found["message"]["tool_calls"]
    whole = stop["stop"] != "ome"
    assert call["function"]["arguments"] == ('{"city": "Rome"}' if whole else '{"city": "R')
    assert found["message"]["content"] is None
    assert found["finish_reason"] == ("tool_calls" if whole else "stop")
    streamed, finish = joined(caller.post(CHAT, {"messages": TALK, "stream": True, **given}).events)
    assert finish == found["finish_reason"] and not streamed.get("content")
    assert [c["arguments"] for c in streamed["tool_calls"]] == [call["function"]["arguments"]]


@pytest.mark.parametrize("length", [1, 4, 12])
def test_a_required_call_cut_off_before_its_name_is_no_content(bare: Running, length: int) -> None:
    body = {"messages": TALK, "tools": [WEATHER], "tool_choice": "required", "max_tokens": length}
    choice = bare.post("/v1/chat/completions", body).json["choices"][0]
    assert choice["finish_reason"] == "length"
    assert not choice["message"]["content"] and "tool_calls" not in choice["message"]
    streamed, finish = joined(bare.post("/v1/chat/completions", {**body, "stream": True}).events)
    assert finish == "length" and not streamed.get("content")


def test_ignored_keywords_of_schemas_that_are_kept_are_listed(caller: Running) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean", "optional": True}}}
    for strict in (True, False):
        function = {"name": "f", "parameters": schema, "strict": strict}
        body = {
            "messages": [{"role": "user", "content": "Hi"}],
            "tools": [{"type": "function", "function": function}],
        }
        got = caller.post("/v1/chat/completions", {**body, "max_tokens": 1})
        assert got.headers.get("x-ignored-schema-keywords") == ("optional" if strict else None)
