"""Tool calls with drafts: the same calls, texts and finish reasons as without, and accepted drafts.

A grammar holds the calls that are demanded to their schemas, and cuts drafts to what it allows.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_tool_calls import CALL, TALK, TEMPLATE, TOOLS, allowed, joined, named, scripted

import chat_model
from http_server import Running, started

CHAT = "/v1/chat/completions"
DRAFTS = {"num_speculative_tokens": 4, "prompt_lookup_min": 1, "adaptive": False}
REQUESTS: dict[str, dict[str, Any]] = {
    "required": {"tool_choice": "required"},
    "required, greedy": {"tool_choice": "required", "temperature": 0},
    "named": {"tool_choice": named("get_weather")},
    "allowed": {"tool_choice": allowed("required", "get_weather")},
    "one call": {"tool_choice": "required", "parallel_tool_calls": False},
    "cut off": {"tool_choice": "required", "max_tokens": 12},
    "choices": {"tool_choice": "required", "n": 3},
    "scripted": scripted(f"I look.\n{CALL}\n{CALL}"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model.write(tmp_path_factory.mktemp("calls") / "caller.gguf", TEMPLATE)


@pytest.fixture(scope="module")
def plain(model: Path) -> Iterator[Running]:
    with started(str(model), "--max-model-len", "512") as running:
        yield running


@pytest.fixture(scope="module")
def drafting(model: Path) -> Iterator[Running]:
    """Prompt lookup copies from the tools in the prompt, and from earlier calls of an answer."""
    words = ("--max-model-len", "512", "--speculative-config", json.dumps(DRAFTS))
    with started(str(model), *words) as running:
        yield running


def make_body(name: str) -> dict[str, Any]:
    body = {"messages": TALK, "tools": TOOLS, "max_tokens": 120, "temperature": 1, "seed": 7}
    return {**body, **REQUESTS[name]}


def ask(server: Running, name: str) -> tuple[list[Any], int]:
    """Each choice, without the random ids of its calls, and how many tokens were written."""
    got = server.post(CHAT, make_body(name))
    assert got.status == 200, got.body
    choices = got.json["choices"]
    for choice in choices:
        for call in choice["message"].get("tool_calls") or ():
            assert call.pop("id")
    return choices, got.json["usage"]["completion_tokens"]


def count_accepted(server: Running) -> int:
    return int(server.get("/v1/engine/effective").json["speculation"]["accepted_tokens"])


@pytest.mark.parametrize("name", REQUESTS)
def test_calls_are_those_without_drafts(plain: Running, drafting: Running, name: str) -> None:
    wanted, before = ask(plain, name), count_accepted(drafting)
    assert ask(drafting, name) == wanted
    assert count_accepted(drafting) > before


@pytest.mark.parametrize("name", ["required", "scripted"])
def test_streamed_calls_are_those_without_drafts(
    plain: Running, drafting: Running, name: str
) -> None:
    found = []
    for server in (plain, drafting):
        message, finish = joined(server.post(CHAT, {**make_body(name), "stream": True}).events)
        calls = [(call["name"], call["arguments"]) for call in message["tool_calls"]]
        found.append((calls, message.get("content"), finish))
    assert found[0] == found[1] and found[0][0]
