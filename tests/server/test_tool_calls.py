"""Tools over HTTP: refusals, the model's prompt, and calls in OpenAI's format, also streamed."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

import chat_model
from flyweight.errors import ConfigError
from flyweight.server.settings import ServerSettings
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
ENDLESS = {"0": -100}  # the end of sequence is never drawn
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, NOW]
TEMPLATE = (
    "{% if tools %}Tools as <tool_call></tool_call>: {{ tools | tojson }}\n{% endif %}"
    "{% if reasoning_effort %}effort {{ reasoning_effort }} {{ enable_thinking }}\n{% endif %}"
    "{% for m in messages %}<{{ m.role }}> {{ m.content }}"
    "{% for c in m.tool_calls %}{{ c.function.name }}({{ c.function.arguments.city }})"
    "{% endfor %}; {% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The model inside with a template in Hermes's form."""
    path = chat_model.write(tmp_path_factory.mktemp("caller") / "caller.gguf", TEMPLATE)
    with started(str(path), "--max-model-len", "512") as running:
        yield running


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The same, and its template has marks of reasoning."""
    template = TEMPLATE + "{# </think> #}"
    path = chat_model.write(tmp_path_factory.mktemp("thinker") / "thinker.gguf", template)
    with started(str(path), "--max-model-len", "512") as running:
        yield running


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The same in Llama's form."""
    path = chat_model.write(tmp_path_factory.mktemp("bare") / "bare.gguf", TEMPLATE)
    with started(str(path), "--max-model-len", "512", "--tool-call-parser", "llama3_json") as one:
        yield one


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [named(name) for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize(
    ("more", "param", "words"),
    [
        ({"tools": [NOW] * 129}, "tools", "128"),
        ({"tools": [NOW, NOW]}, "tools", "'now' is used twice"),
        ({"tools": [{"type": "web"}]}, "tools.0.type", "'function'"),
        ({"tools": [named("a b")]}, "tools.0.function.name", "pattern"),
        ({"tools": [named("x" * 129)]}, "tools.0.function.name", "128"),
        ({"tools": [named("é")]}, "tools.0.function.name", "pattern"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice", "'required'"),
        ({"tools": TOOLS, "tool_choice": named("get_wether")}, "tool_choice", "'get_weather'"),
        (
            {"tools": TOOLS, "tool_choice": allowed("auto", "get_wether")},
            "tool_choice",
            "'get_weather'",
        ),
        ({"tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools", "1 entry or more"),
        ({"tool_choice": allowed("maybe", "now")}, "tool_choice.allowed_tools.mode", "'required'"),
        ({"reasoning_effort": "huge"}, "reasoning_effort", "'high'"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls", "true or false"),
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


def test_tools_are_counted_where_messages_are(caller: Running) -> None:
    body = {"messages": TALK, "tools": TOOLS}
    text = prompt(caller, tools=TOOLS)
    ids = caller.post("/tokenize", body).json["tokens"]
    assert ids == caller.post("/tokenize", {"prompt": text, "add_special": False}).json["tokens"]
    deep = {"messages": TALK, "chat_template_kwargs": {"x": {"y": 1}}}
    assert caller.post("/tokenize", deep).status == 400


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


@pytest.mark.parametrize("name", ["tool_call_parser", "reasoning_parser"])
def test_parsers_are_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} = 'hermez' is not known"):
        ServerSettings(**{name: "hermez"})
    for harmony in ("openai", "openai_gptoss"):
        with pytest.raises(ConfigError, match=f"{name} = '{harmony}' .*harmony.* valid: none;"):
            ServerSettings(**{name: harmony})


def test_echo_begins_with_what_is_continued(caller: Running) -> None:
    talk = [*TALK, {"role": "assistant", "content": "It is"}]
    body = {"messages": talk, "continue_final_message": True, "max_tokens": 8, "temperature": 0}
    plain = caller.post("/v1/chat/completions", body).json["choices"][0]["message"]["content"]
    body["echo"] = True
    whole = caller.post("/v1/chat/completions", body).json["choices"][0]["message"]["content"]
    assert whole == "It is" + plain
    events = caller.post("/v1/chat/completions", {**body, "stream": True}).events
    assert joined(events)[0]["content"] == whole


# --- calls that are demanded, held to their schemas ---


def requested(caller: Running, **more: Any) -> dict[str, Any]:
    body = {"messages": TALK, "tools": TOOLS, "max_tokens": 200, "temperature": 1, "seed": 7}
    got = caller.post("/v1/chat/completions", {**body, **more})
    assert got.status == 200, got.body
    (choice,) = got.json["choices"]
    found: dict[str, Any] = choice
    return found


def joined(events: list[Any]) -> tuple[dict[str, Any], str]:
    """The message that a stream's deltas make, as a client puts them together; why it ended."""
    message: dict[str, Any] = {}
    finish = ""
    for delta, end in ((c["delta"], c["finish_reason"]) for e in events for c in e["choices"]):
        finish = end or finish
        for name in ("content", "reasoning", "reasoning_content"):
            if delta.get(name):
                message[name] = message.get(name, "") + delta[name]
        for call in delta.get("tool_calls") or ():
            calls = message.setdefault("tool_calls", [])
            if call["index"] == len(calls):
                assert call["id"] and call["function"]["name"] and call["type"] == "function"
                calls.append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
            else:
                assert "id" not in call and "name" not in call["function"]
            calls[call["index"]]["arguments"] += call["function"]["arguments"]
    return message, finish


@pytest.mark.parametrize("seed", range(4))
def test_a_demanded_call_comes(caller: Running, seed: int) -> None:
    choice = requested(caller, tool_choice="required", seed=seed, parallel_tool_calls=False)
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function" and call["id"].startswith("call_")
    check(call["function"])


def check(function: dict[str, str]) -> None:
    arguments = json.loads(function["arguments"])
    if function["name"] == "now":
        assert arguments == {}
    else:
        assert arguments["city"] in ("Paris", "Rome") and arguments["days"] in (1, 2, 3)
        assert function["name"] == "get_weather" and len(arguments) == 2


def test_calls_may_follow_each_other(caller: Running) -> None:
    """A model that cannot end its answer goes on calling, until it is cut off."""
    choice = requested(caller, tool_choice="required", logit_bias=ENDLESS)
    calls = choice["message"]["tool_calls"]
    assert len({call["id"] for call in calls}) == len(calls) > 1
    for call in calls[:-1]:
        check(call["function"])


@pytest.mark.parametrize("name", ["get_weather", "now"])
def test_a_named_call_comes_once(caller: Running, name: str) -> None:
    choice = requested(caller, tool_choice=named(name))
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == name and choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("seed", range(4))
def test_only_allowed_tools_are_called(caller: Running, seed: int) -> None:
    more = {"tool_choice": allowed("required", "now"), "parallel_tool_calls": False}
    (call,) = requested(caller, seed=seed, **more)["message"]["tool_calls"]
    assert call["function"] == {"name": "now", "arguments": "{}"}


def test_a_call_of_a_tool_that_is_not_allowed_cannot_be_begun(bare: Running) -> None:
    """All tools are shown; a call that the model begins is of one that may be called."""
    shown = prompt(bare, tools=TOOLS)
    assert prompt(bare, tools=TOOLS, tool_choice=allowed("auto", "now")) == shown
    brace = bare.post("/tokenize", {"prompt": "{", "add_special_tokens": False}).json["tokens"]
    more = {"tool_choice": allowed("auto", "now"), "logit_bias": {str(brace[-1]): 100}}
    for seed in range(3):
        (call,) = requested(bare, **more, seed=seed, parallel_tool_calls=False)["message"][
            "tool_calls"
        ]
        assert call["function"]["name"] == "now"
    assert requested(bare, tool_choice=allowed("auto", "now"), temperature=0)["message"]["content"]


def test_responses_have_allowed_tools_too(caller: Running) -> None:
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    choice = {"type": "allowed_tools", "mode": "required", "tools": [
        {"type": "function", "name": "now"}]}  # fmt: skip
    body = {"input": "Hi", "tools": tools, "tool_choice": choice, "parallel_tool_calls": False}
    got = caller.post("/v1/responses", body)
    assert got.status == 200, got.body
    assert [item["name"] for item in got.json["output"]] == ["now"]
    assert got.json["tool_choice"] == choice


def test_a_streamed_call_is_the_whole_one(caller: Running) -> None:
    more: dict[str, Any] = {"tool_choice": "required", "seed": 2, "parallel_tool_calls": False}
    whole = requested(caller, **more)["message"]["tool_calls"]
    body = {"messages": TALK, "tools": TOOLS, "max_tokens": 200, "temperature": 1, **more}
    events = caller.post("/v1/chat/completions", {**body, "stream": True}).events
    message, finish = joined(events)
    assert finish == "tool_calls" and "content" not in message
    theirs = [(call["function"]["name"], call["function"]["arguments"]) for call in whole]
    assert [(call["name"], call["arguments"]) for call in message["tool_calls"]] == theirs
    pieces = [c["delta"].get("tool_calls") for e in events for c in e["choices"]]
    assert sum(bool(piece) for piece in pieces) > len(theirs), "arguments come in pieces"


def scripted(text: str, **more: Any) -> dict[str, Any]:
    """A request whose answer is this text, as a model would write it."""
    return {"structured_outputs": {"choice": [text]}, "tool_choice": "auto", **more}


CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
ROME = ("get_weather", '{"city": "Rome"}')


@pytest.mark.parametrize(
    ("text", "content", "reasoning", "calls"),
    [
        (f"I look.\n{CALL}\n{CALL}", "I look.", None, [ROME, ROME]),
        (f"<think>\nhm\n</think>\n\n{CALL}", None, "hm", [ROME]),
        ("<think>hm</think>It rains.", "It rains.", "hm", []),
        ("<tool_call>no</tool_call>", "<tool_call>no</tool_call>", None, []),
        (CALL.replace("Rome", "\\x"), CALL.replace("Rome", "\\x"), None, []),
        (CALL.replace("weather", "wether"), CALL.replace("weather", "wether"), None, []),
    ],
)
def test_answers_are_distinguished(
    thinker: Running, text: str, content: Any, reasoning: Any, calls: Any
) -> None:
    choice = requested(thinker, **scripted(text))
    message = choice["message"]
    assert message["content"] == content
    assert message.get("reasoning") == reasoning == message.get("reasoning_content")
    found = [c["function"] for c in message.get("tool_calls", ())]
    assert [(f["name"], f["arguments"]) for f in found] == calls
    assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
    body = {"messages": TALK, "tools": TOOLS, "max_tokens": 200, "stream": True, **scripted(text)}
    streamed, finish = joined(thinker.post("/v1/chat/completions", body).events)
    assert streamed.get("content") == content and streamed.get("reasoning") == reasoning
    assert finish == choice["finish_reason"]
    if calls or not streamed.get("tool_calls"):  # one that went wrong cannot be taken back
        made = [(c["name"], c["arguments"]) for c in streamed.get("tool_calls", ())]
        assert made == calls


def test_reasoning_can_be_left_out(thinker: Running) -> None:
    message = requested(thinker, **scripted("<think>hm</think>It rains.", include_reasoning=False))
    assert message["message"] == {"role": "assistant", "content": "It rains.", "refusal": None}


def test_a_call_cut_off_ends_with_length(caller: Running) -> None:
    choice = requested(caller, tool_choice=named("get_weather"), max_tokens=24)
    assert choice["finish_reason"] == "length"


def test_where_no_call_is_wanted_none_is_read(caller: Running) -> None:
    message = requested(caller, **scripted(CALL, tool_choice="none"))["message"]
    assert message["content"] == CALL and "tool_calls" not in message


def test_each_choice_is_read_by_itself(caller: Running) -> None:
    body = {"messages": TALK, "tools": TOOLS, "tool_choice": "required", "n": 3, "seed": 5,
            "parallel_tool_calls": False}  # fmt: skip
    got = caller.post("/v1/chat/completions", {**body, "max_tokens": 300}).json["choices"]
    assert [c["index"] for c in got] == [0, 1, 2]
    assert all(c["message"]["tool_calls"] for c in got)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"type": "array"}, "'array'"),
        ({"properties": {"x": {"format": "hostnam"}}}, "hostname"),
        ({"properties": {"x": {"not": {"pattern": "a"}}}}, "not"),
        ({"properties": {"x": {"pattern": "(?=a)b"}}}, "(?="),
    ],
)
def test_schemas_that_cannot_be_kept_are_named(
    caller: Running, parameters: dict[str, Any], words: str
) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    body = {"messages": TALK, "tools": [NOW, tool], "tool_choice": "required"}
    error = caller.post("/v1/chat/completions", body).json["error"]
    assert error["param"].startswith("tools.1.function.parameters")
    assert error["message"].startswith(error["param"])
    assert words in error["message"]


def test_two_demands_exclude_each_other(caller: Running) -> None:
    body = {"messages": TALK, "tools": TOOLS, **scripted("x", tool_choice="required")}
    error = caller.post("/v1/chat/completions", body).json["error"]
    assert error["param"] == "tool_choice" and "structured_outputs" in error["message"]


def test_strict_tools_hold_a_call_that_the_model_begins(bare: Running) -> None:
    """A model that writes a brace begins a call, and ends it as the schema says; one that writes
    anything else is free.
    """
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    brace = bare.post("/tokenize", {"prompt": "{", "add_special_tokens": False}).json["tokens"]
    more = {"tools": [strict], "logit_bias": {str(brace[-1]): 100}}
    for seed in range(3):
        (call,) = requested(bare, **more, seed=seed, parallel_tool_calls=False)["message"][
            "tool_calls"
        ]
        arguments = json.loads(call["function"]["arguments"])
        assert arguments["city"] in ("Paris", "Rome") and arguments["days"] in (1, 2, 3)
    assert requested(bare, tools=[strict], temperature=0)["message"]["content"]
