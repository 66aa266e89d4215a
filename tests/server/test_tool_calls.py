"""Tools over HTTP: what is refused, what the model is shown, and calls as OpenAI's clients read
them, whole and streamed.
"""

from collections.abc import Iterator
from typing import Any

import pytest

import chat_model
from http_server import Running, started

TALK = [{"role": "user", "content": "Is it raining in Paris?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather at a place.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"enum": [1, 2, 3]}},
            "required": ["city", "days"],
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, NOW]
TEMPLATE = (
    "{% if tools %}Tools as <tool_call></tool_call>: {{ tools | tojson }}\n{% endif %}"
    "{% if reasoning_effort %}effort {{ reasoning_effort }} {{ enable_thinking }}\n{% endif %}"
    "{% for m in messages %}<{{ m.role }}> {{ m.content }}"
    "{% for c in m.tool_calls %}{{ c.function.name }}({{ c.function.arguments.city }})"
    "{% endfor %}; {% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}{# </think> #}"
)


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The model inside with a template in Hermes's form."""
    path = chat_model.write(tmp_path_factory.mktemp("caller") / "caller.gguf", TEMPLATE)
    with started(str(path), "--max-model-len", "512") as running:
        yield running


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize(
    ("more", "param", "words"),
    [
        ({"tools": [NOW] * 129}, "tools", "128"),
        ({"tools": [NOW, NOW]}, "tools", "'now' is there twice"),
        ({"tools": [{"type": "web"}]}, "tools.0.type", "'function'"),
        ({"tools": [named("a b")]}, "tools.0.function.name", "pattern"),
        ({"tools": [named("x" * 129)]}, "tools.0.function.name", "128"),
        ({"tools": [named("é")]}, "tools.0.function.name", "pattern"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice", "'required'"),
        ({"tools": TOOLS, "tool_choice": named("get_wether")}, "tool_choice", "'get_weather'"),
        ({"reasoning_effort": "huge"}, "reasoning_effort", "'high'"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls", "boolean"),
    ],
)
def test_what_is_refused_is_named(
    caller: Running, more: dict[str, Any], param: str, words: str
) -> None:
    got = caller.post("/v1/chat/completions", {"messages": TALK, **more})
    error = got.json["error"]
    assert got.status == 400, got.body
    assert error["param"] == param and words in error["message"], error


def test_schemas_of_tools_are_bounded(caller: Running) -> None:
    deep: dict[str, Any] = {}
    for _ in range(80):
        deep = {"properties": {"x": deep}}
    for schema, words in ((deep, "deep"), ({"enum": ["x" * 70_000]}, "characters")):
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        got = caller.post("/v1/chat/completions", {"messages": TALK, "tools": [tool]})
        error = got.json["error"]
        assert got.status == 400 and "tools.0.function.parameters" in error["message"]
        assert words in error["message"]


def prompt(caller: Running, **more: Any) -> str:
    got = caller.post("/apply-template", {"messages": TALK, **more})
    assert got.status == 200, got.body
    text: str = got.json["prompt"]
    return text


def test_the_model_is_shown_the_tools(caller: Running) -> None:
    plain = prompt(caller)
    assert "get_weather" in prompt(caller, tools=TOOLS)
    assert prompt(caller, tools=TOOLS, tool_choice="none") == plain == prompt(caller, tools=[])


def test_effort_goes_to_the_template(caller: Running) -> None:
    assert "effort high \n" in prompt(caller, reasoning_effort="high")
    assert "effort none False\n" in prompt(caller, reasoning_effort="none")
    own = {"enable_thinking": True}
    assert "none True\n" in prompt(caller, reasoning_effort="none", chat_template_kwargs=own)


def test_calls_and_their_results_go_to_the_template(caller: Running) -> None:
    function = {"name": "get_weather", "arguments": '{"city": "Rome"}'}
    call = {"id": "call_1", "type": "function", "function": function}
    talk = [
        *TALK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "It rains."},
    ]
    got = caller.post("/apply-template", {"messages": talk})
    assert "get_weather(Rome); <tool> It rains." in got.json["prompt"]


def test_tools_leave_plain_answers_alone(caller: Running) -> None:
    body = {"messages": TALK, "tools": TOOLS, "max_tokens": 24, "temperature": 0}
    whole = caller.post("/v1/chat/completions", body).json["choices"][0]
    assert whole["message"]["content"] and "tool_calls" not in whole["message"]
    events = caller.post("/v1/chat/completions", {**body, "stream": True}).events
    pieces = [e["choices"][0]["delta"].get("content") or "" for e in events]
    assert "".join(pieces) == whole["message"]["content"]


@pytest.mark.parametrize("name", ["tool-call-parser", "reasoning-parser"])
def test_parsers_are_refused_by_name(name: str) -> None:
    with pytest.raises(AssertionError, match="is not known"), started(f"--{name}", "hermez"):
        pass
