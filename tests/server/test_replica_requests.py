"""Requests of every kind through replicas give what they give on one engine.

All of a request and of an answer passes as frames, which a field that is missing would not survive.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_drafted_calls import DRAFTS, count_accepted
from test_structured_outputs import FORMAT
from test_tool_calls import CALL, TALK, TEMPLATE, TOOLS, joined, named, scripted

import chat_model
from http_server import Running, running, started

SCRIPT = str(Path(__file__).with_name("local_replicas.py"))
LIMITS = ("--max-model-len", "512", "--memory-limit", "2GiB", "--no-coalesce-requests")
COMPLETIONS, CHAT, VECTORS = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
STORY = "Once upon a time there was"
TEXT: dict[str, Any] = {"prompt": STORY, "max_tokens": 24, "temperature": 0}
SAID: dict[str, Any] = {"messages": TALK, "max_tokens": 120, "temperature": 1, "seed": 7}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": (COMPLETIONS, TEXT),
    "drawn": (COMPLETIONS, {**TEXT, "temperature": 1, "seed": 3, "n": 3}),
    "penalties": (COMPLETIONS, {**TEXT, "repetition_penalty": 1.3, "bad_words": ["little"]}),
    "stop strings": (COMPLETIONS, {**TEXT, "temperature": 1, "seed": 1, "n": 3, "stop": ["a"]}),
    "stop ids": (COMPLETIONS, {**TEXT, "stop_token_ids": [*range(100, 400)]}),
    "vectors": (VECTORS, {"input": ["A cat", "A dog sat on a mat"]}),
    "mean vectors": (VECTORS, {"input": STORY, "pooling": "mean", "dimensions": 8}),
    "beams": (COMPLETIONS, {**TEXT, "use_beam_search": True, "n": 3, "length_penalty": 0.5}),
    "beams said": (CHAT, {"messages": TALK, "max_tokens": 8, "use_beam_search": True, "n": 4}),
    "schema": (CHAT, {**SAID, "response_format": FORMAT}),
    "schema, greedy": (CHAT, {**SAID, "temperature": 0, "response_format": FORMAT, "n": 2}),
    "regex": (COMPLETIONS, {**TEXT, "structured_outputs": {"regex": "[0-9]{3}-[a-f]{1,9}x"}}),
    "choice": (COMPLETIONS, {**TEXT, "structured_outputs": {"choice": ["a cat", "a dog"]}}),
    "calls": (CHAT, {**SAID, "tools": TOOLS, "tool_choice": "required"}),
    "named call": (CHAT, {**SAID, "tools": TOOLS, "tool_choice": named("get_weather"), "n": 2}),
    "two calls": (CHAT, {**SAID, "tools": TOOLS, **scripted(f"I look.\n{CALL}\n{CALL}")}),
    "logprobs": (COMPLETIONS, {**TEXT, "logprobs": 3, "n": 2, "temperature": 1, "seed": 5}),
    "logprobs said": (CHAT, {**SAID, "max_tokens": 16, "logprobs": True, "top_logprobs": 4}),
    "scored prompt": (COMPLETIONS, {**TEXT, "prompt_logprobs": 2, "return_token_ids": True}),
    "echo": (COMPLETIONS, {**TEXT, "echo": True, "logprobs": 2, "max_tokens": 0}),
}
MADE_ANEW = {"id", "created", "metrics", "prompt_tokens_details", "system_fingerprint"}
Servers = tuple[Running, Running]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model.write(tmp_path_factory.mktemp("calls") / "caller.gguf", TEMPLATE)


def start_pair(model: Path, *words: str) -> Iterator[Servers]:
    """One engine, and two replicas that get requests in turn."""
    given = (str(model), *LIMITS, *words)
    several = ("--replicas", "2", "--threads", "2", "--routing", "round-robin")
    with (
        started(*given, "--threads", "1") as one,
        running([SCRIPT, "--port", "0", "--seed", "7", *given, *several], {}) as two,
    ):
        yield one, two


@pytest.fixture(scope="module")
def servers(model: Path) -> Iterator[Servers]:
    yield from start_pair(model)


@pytest.fixture(scope="module")
def drafting(model: Path) -> Iterator[Servers]:
    yield from start_pair(model, "--speculative-config", json.dumps(DRAFTS))


def strip(value: Any) -> Any:
    """An answer without what is another in each."""
    if isinstance(value, dict):
        return {name: strip(one) for name, one in value.items() if name not in MADE_ANEW}
    return [strip(one) for one in value] if isinstance(value, list) else value


def ask(server: Running, name: str) -> Any:
    path, body = REQUESTS[name]
    got = server.post(path, body)
    assert got.status == 200, got.body
    return strip(got.json)


def count_requests(server: Running) -> list[float]:
    """Of each replica."""
    lines = server.get("/metrics").body.decode().splitlines()
    name = "flyweight:replica_requests_total"
    return [float(line.split()[-1]) for line in lines if line.startswith(name)]


@pytest.mark.parametrize("name", REQUESTS)
def test_each_replica_gives_what_one_engine_does(servers: Servers, name: str) -> None:
    one, two = servers
    wanted, before = ask(one, name), count_requests(two)
    assert ask(two, name) == wanted and ask(two, name) == wanted
    each = len(wanted["data"]) if "data" in wanted and REQUESTS[name][0] == VECTORS else 1
    assert count_requests(two) == [(before or [0, 0])[i] + each for i in range(2)]


def read_stream(server: Running, name: str) -> dict[int, dict[str, Any]]:
    """Each choice of a streamed answer: steps that a busy server sends as one part are several of
    another.
    """
    path, body = REQUESTS[name]
    found: dict[int, dict[str, Any]] = {}
    for event in server.post(path, {**body, "stream": True}).events:
        for part in event["choices"]:
            choice = found.setdefault(part["index"], {"text": "", "finish_reason": None})
            choice["text"] += part["text"]
            choice["finish_reason"] = part["finish_reason"] or choice["finish_reason"]
            for what, values in (part["logprobs"] or {}).items():
                choice[what] = choice.get(what, []) + values
    return found


@pytest.mark.parametrize("name", ["drawn", "logprobs", "echo", "stop strings"])
def test_streams_are_those_of_one_engine(servers: Servers, name: str) -> None:
    one, two = (read_stream(server, name) for server in servers)
    assert one == two
    choices = ask(servers[0], name)["choices"]
    assert [found["text"] for _, found in sorted(two.items())] == [c["text"] for c in choices]


def test_streamed_calls_are_those_of_one_engine(servers: Servers) -> None:
    path, body = REQUESTS["two calls"]
    found = []
    for server in servers:
        message, finish = joined(server.post(path, {**body, "stream": True}).events)
        calls = [(call["name"], call["arguments"]) for call in message["tool_calls"]]
        found.append((calls, message.get("content"), finish))
    assert found[0] == found[1] and len(found[0][0]) == 2


@pytest.mark.parametrize("name", ["greedy", "drawn", "schema", "calls", "logprobs"])
def test_drafts_of_replicas_come_true(servers: Servers, drafting: Servers, name: str) -> None:
    """The answers are those without drafts, and those of one engine with them."""
    wanted = ask(servers[0], name)
    assert ask(drafting[0], name) == wanted
    assert [ask(drafting[1], name) for _ in range(2)] == [wanted] * 2


def test_replicas_count_their_drafts(drafting: Servers) -> None:
    before = [count_accepted(server) for server in drafting]
    for _ in range(2):
        for server in drafting:
            ask(server, "two calls")
    one, two = (count_accepted(one) - old for one, old in zip(drafting, before, strict=True))
    assert one == two > 0
