"""Answers that are held to a form from their first token, of a model whose template has it think:
what does not name the marks of reasoning has none, and all of it is content.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

import chat_model
from http_server import Running, started

TALK = [{"role": "user", "content": "A cat sat."}]
CHAT = "/v1/chat/completions"
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }}\n{% endfor %}<assistant><think>"
    "{# </think> #}"
)
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "legs": {"enum": [2, 4]}},
    "required": ["kind", "legs"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA}}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = chat_model.write(tmp_path_factory.mktemp("held") / "opened.gguf", TEMPLATE)
    with started(str(path), "--max-model-len", "512", "--served-model-name", "m") as running:
        yield running


def ok(server: Running, path: str, **body: Any) -> dict[str, Any]:
    got = server.post(path, {"max_tokens": 100, "temperature": 0.5, **body})
    assert got.status == 200, got.body
    found: dict[str, Any] = got.json
    return found


def pet(text: str) -> None:
    assert json.loads(text).keys() == {"kind", "legs"}, text


def test_chat(opened: Running) -> None:
    free = ok(opened, CHAT, messages=TALK, max_tokens=5)["choices"][0]["message"]
    assert free["reasoning"] and not free["content"], "the template begins reasoning"
    message = ok(opened, CHAT, messages=TALK, response_format=FORM)["choices"][0]["message"]
    pet(message["content"])
    assert not message.get("reasoning")


def test_chat_in_a_stream(opened: Running) -> None:
    body = {"messages": TALK, "response_format": FORM, "max_tokens": 100, "stream": True}
    deltas = [c["delta"] for e in opened.post(CHAT, body).events for c in e["choices"]]
    pet("".join(delta.get("content") or "" for delta in deltas))
    assert not any(delta.get("reasoning") for delta in deltas)


def test_messages(opened: Running) -> None:
    config = {"format": {"type": "json_schema", "schema": SCHEMA}}
    blocks = ok(opened, "/v1/messages", model="m", messages=TALK, output_config=config)["content"]
    assert [block["type"] for block in blocks] == ["text"]
    pet(blocks[0]["text"])


def test_responses(opened: Running) -> None:
    form = {"format": {"type": "json_schema", "name": "pet", "schema": SCHEMA}}
    body = {"input": "A cat", "max_output_tokens": 100, "text": form}
    got = opened.post("/v1/responses", body).json
    assert [item["type"] for item in got["output"]] == ["message"]
    pet(got["output"][0]["content"][0]["text"])


@pytest.mark.parametrize(
    "form", [{"json_object": True}, {"regex": "[a-z]{4}"}, {"choice": ["yes", "no"]},
             {"grammar": 'start: "a" | "b"'}]
)  # fmt: skip
def test_other_forms(opened: Running, form: dict[str, Any]) -> None:
    requested = {"messages": TALK, "structured_outputs": form, "max_tokens": 8}
    message = ok(opened, CHAT, **requested)["choices"][0]["message"]
    assert message["content"] and not message.get("reasoning")


@pytest.mark.parametrize(
    "form", [{"regex": r"[a-z]{3}<\/think>yes"}, {"choice": ["abc</think>yes"]},
             {"grammar": 'start: /[a-z]{3}/ "</think>" "yes"'}]
)  # fmt: skip
def test_a_form_that_names_the_mark_has_reasoning_before_it(
    opened: Running, form: dict[str, Any]
) -> None:
    found = ok(opened, CHAT, messages=TALK, structured_outputs=form)["choices"][0]["message"]
    assert re.fullmatch("[a-z]{3}", found["reasoning"]) and found["content"] == "yes"
