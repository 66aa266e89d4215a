"""What a chat template does not read has no effect: it is refused by name, or listed as ignored."""

from collections.abc import Iterator
from typing import Any

import pytest

import chat_model
from flyweight.text.template_reads import list_variables
from http_server import Running, started

CHAT, APPLY = "/v1/chat/completions", "/apply-template"
TALK = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "look"}}
SWITCHED = (
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if enable_thinking is defined %}|{{ enable_thinking }}{% endif %}"
)
UNREAD: list[tuple[dict[str, Any], str]] = [
    ({"tools": [TOOL]}, "tools"),
    ({"documents": [{"text": "x"}]}, "documents"),
    ({"reasoning_effort": "low"}, "reasoning_effort"),
    ({"verbosity": "low"}, "verbosity"),
    ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs.enable_thinking"),
    ({"chat_template_kwargs": {"raise_exception": 1}}, "chat_template_kwargs.raise_exception"),
]


@pytest.fixture(scope="module")
def switched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A template that knows whether to think, and no efforts."""
    path = chat_model.write(tmp_path_factory.mktemp("switched") / "switched.gguf", SWITCHED)
    with started(str(path), "--max-model-len", "256") as running:
        yield running


@pytest.mark.parametrize(("fields", "param"), UNREAD)
def test_a_model_without_a_template_refuses_what_it_cannot_read(
    server: Running, fields: dict[str, Any], param: str
) -> None:
    for path in (CHAT, APPLY):
        got = server.post(path, {"messages": TALK, "max_tokens": 1, **fields})
        error = got.json["error"]
        assert (got.status, error["param"]) == (400, param), error
        assert "has no effect: the model's chat template does not read it" in error["message"]


@pytest.mark.parametrize(("fields", "param"), UNREAD)
def test_a_lenient_server_lists_it(lenient: Running, fields: dict[str, Any], param: str) -> None:
    plain = lenient.post(APPLY, {"messages": TALK}).json
    got = lenient.post(APPLY, {"messages": TALK, "more": 1, **fields})
    names = got.headers["x-ignored-params"].split(", ")
    assert got.json == plain and names[0] == "more"
    assert names[1] == param and len(names) == 2


def test_what_is_so_anyway_is_taken(server: Running) -> None:
    for fields in (
        {"reasoning_effort": "none"},
        {"tools": [TOOL], "tool_choice": "none"},
        {"documents": [], "tools": [], "chat_template_kwargs": {}},
    ):
        assert server.post(APPLY, {"messages": TALK, **fields}).status == 200, fields


def test_a_call_that_is_demanded_has_an_effect(server: Running) -> None:
    body = {"messages": TALK, "tools": [TOOL], "tool_choice": "required", "max_tokens": 40}
    assert server.post(CHAT, body).status == 200


def test_the_ledger_and_the_capabilities_say_what_is_so(server: Running) -> None:
    rows = {r["feature"]: r for r in server.get("/v1/engine/effective").json["features"]}
    assert rows["chat template"]["effective"] == "none"
    assert rows["tool calls"]["effective"] == "JSON, where required"
    model = server.get("/v1/models").json["data"][0]["id"]
    shown = server.post("/api/show", {"model": model}).json["capabilities"]
    assert shown == ["completion", "embedding"]


def test_an_effort_is_to_think_where_there_is_but_a_switch(switched: Running) -> None:
    def prompt(**fields: Any) -> str:
        text: str = switched.post(APPLY, {"messages": TALK, **fields}).json["prompt"]
        return text

    assert prompt() == "Hi"
    assert prompt(reasoning_effort="high") == "Hi|True"
    assert prompt(reasoning_effort="none") == "Hi|False"
    assert prompt(chat_template_kwargs={"enable_thinking": True}) == "Hi|True"
    got = switched.post(APPLY, {"messages": TALK, "chat_template_kwargs": {"enable_thinkin": 1}})
    message = got.json["error"]["message"]
    assert "chat_template_kwargs.enable_thinkin has no effect" in message
    assert "did you mean 'enable_thinking'?" in message


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/api/chat", {"messages": TALK, "think": True}, "think has no effect"),
        ("/api/chat", {"messages": TALK, "think": "low"}, "think has no effect"),
        ("/v1/responses", {"input": "a", "reasoning": {"effort": "low"}}, "reasoning.effort has"),
        ("/v1/responses", {"input": "a", "text": {"verbosity": "low"}}, "text.verbosity has no"),
        ("/v1/messages", {"messages": TALK, "max_tokens": 1, "output_config": {"effort": "low"}},
         "output_config.effort has no effect"),
    ],
)  # fmt: skip
def test_apis_have_names_of_their_own(
    server: Running, path: str, body: dict[str, Any], words: str
) -> None:
    model = server.get("/v1/models").json["data"][0]["id"]
    got = server.post(path, {"model": model, **body})
    assert got.status == 400 and words in got.body.decode(), got.body


def test_thinking_options_of_every_api(server: Running) -> None:
    model = server.get("/v1/models").json["data"][0]["id"]
    said = {"model": model, "messages": TALK}
    for kind in ("disabled", "adaptive"):
        body = {**said, "max_tokens": 1, "thinking": {"type": kind}}
        assert server.post("/v1/messages", body).status == 200
    body = {**said, "think": False, "stream": False, "options": {"num_predict": 1}}
    assert server.post("/api/chat", body).status == 200


def test_what_a_template_reads() -> None:
    template = (
        "{% set ns = namespace(x=1) %}{% macro f(a) %}{{ a ~ hint }}{% endmacro %}{{ bos_token }}"
        "{% for m in messages %}{{ f(m) }}{% endfor %}{% if not tools %}{% endif %}"
    )
    assert list_variables(template) == {"hint", "tools"}
    assert list_variables("{% if %}") is None
