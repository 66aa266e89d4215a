"""A chat template of the operator's: one that is broken is refused at the start, and what fails
later is the server's failure, not the client's.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import chat_model
from http_server import Running, started

CHAT = "/v1/chat/completions"
BROKEN = {
    "{% for m in messages %}\n{{ m.content }": ", line 2: ",
    "{{ messages[0].content | nosuch }}": "fails: No filter named 'nosuch'",
    "{{ messages[5].content.x }}": "--chat-template",
    "{{ raise_exception('never') }}": "--chat-template: the chat template fails: never",
}
CALLS = (
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name + ' ' + ((c.function.arguments or {}) | tojson) }}{% endfor %}{% endfor %}"
)
LATE = (
    "{% for m in messages %}{{ m.content }}{% endfor %}\n"
    "{% if messages | length > 2 %}{{ missing.field }}{% endif %}\n"
    "{% if messages[0].role == 'assistant' %}{{ raise_exception('no') }}{% endif %}"
)


@pytest.mark.parametrize("template", BROKEN)
def test_a_broken_template_is_refused_at_the_start(
    refusal: Callable[..., str], template: str, tmp_path: Path
) -> None:
    path = tmp_path / "broken.jinja"
    path.write_text(template)
    last = refusal("--port", "0", "--chat-template", str(path)).splitlines()[-1]
    assert last.startswith("error: --chat-template") and BROKEN[template] in last


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A template that fails on some conversations, and reads calls."""
    path = tmp_path_factory.mktemp("own") / "late.jinja"
    path.write_text(LATE + CALLS)
    with started("--chat-template", str(path)) as running:
        yield running


def test_what_fails_later_is_the_servers_failure(own: Running) -> None:
    user = {"role": "user", "content": "Hi"}
    assert own.post(CHAT, {"messages": [user], "max_tokens": 1}).status == 200
    got = own.post(CHAT, {"messages": [user] * 3, "max_tokens": 1})
    error = got.json["error"]
    assert got.status == 500 and "--chat-template" in error["message"], error
    assert error["type"] == "server_error"
    own.until(lambda: any("failed=UndefinedError line=2" in said for said in own.said))
    refused = own.post(CHAT, {"messages": [{"role": "assistant", "content": "Hi"}]})
    assert refused.status == 400 and refused.json["error"]["param"] == "messages"


def test_what_the_models_own_fails_on_is_named_by_its_kind(tmp_path: Path) -> None:
    """What it says itself is for the client; Python's words are not."""
    with started(str(chat_model.write(tmp_path / "late.gguf", LATE))) as running:
        user = {"role": "user", "content": "Hi"}
        got = running.post(CHAT, {"messages": [user] * 3, "max_tokens": 1})
        words = "messages: the chat template fails (UndefinedError in its line 2)"
        assert got.status == 400 and got.json["error"]["message"] == words
        running.until(lambda: any("failed=UndefinedError line=2" in said for said in running.said))
        got = running.post(CHAT, {"messages": [{"role": "assistant", "content": "Hi"}]})
        assert got.json["error"]["message"] == "messages: the chat template fails: no"


def test_calls_that_are_none_are_the_clients_mistake(own: Running) -> None:
    """No template is given them, so none fails on them."""
    place = "messages.1.tool_calls.0"
    wrong = {
        f"{place}.function": [{"function": 5}, {"function": [1]}],
        f"{place}.function.name": [
            {}, {"id": "x"}, {"function": {}}, {"function": {"name": 5}},
        ],
        f"{place}.function.arguments": [
            {"function": {"name": "f", "arguments": given}} for given in (5, True, [1])
        ],
    }  # fmt: skip
    user = {"role": "user", "content": "Hi"}
    for param, calls in wrong.items():
        for call in calls:
            said = {"role": "assistant", "content": "x", "tool_calls": [call]}
            got = own.post(CHAT, {"messages": [user, said], "max_tokens": 1})
            assert got.status == 400 and got.json["error"]["param"] == param, (call, got.body)
    for arguments in ({}, {"arguments": None}, {"arguments": "{bad"}, {"arguments": {"a": 1}}):
        said["tool_calls"] = [{"function": {"name": "f", **arguments}}]
        assert own.post("/apply-template", {"messages": [user, said]}).status == 200
