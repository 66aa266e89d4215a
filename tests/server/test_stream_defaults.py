"""What an operator says of all streams: tokens of a piece, and usage without a request."""

from collections.abc import Iterator
from typing import Any

import pytest

from http_server import Running, started

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BODY = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 11, "ignore_eos": True}
TALK = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 11, "ignore_eos": True}


@pytest.fixture(scope="module")
def sparing() -> Iterator[Running]:
    # Steps of 40 ms: the front end sees tokens one at a time, on a busy machine too.
    slow = {"FLYWEIGHT_TESTING": "1", "FLYWEIGHT_FAULT": "slow:ms=40"}
    with started("--stream-interval", "4", "--enable-force-include-usage", **slow) as server:
        yield server


def parts(server: Running, **fields: Any) -> list[dict[str, Any]]:
    body = {**BODY, "stream": True, "return_token_ids": True, **fields}
    return [choice for event in server.post(TEXT, body).events for choice in event["choices"]]


def test_a_piece_has_so_many_tokens_but_the_first_and_the_last(sparing: Running) -> None:
    found = parts(sparing)
    sizes = [len(part["token_ids"]) for part in found]
    assert sum(sizes) == 11 and len(sizes) <= 4
    assert all(size >= 4 for size in sizes[1:-1]) and found[-1]["finish_reason"] == "length"
    whole = sparing.post(TEXT, BODY).json["choices"][0]["text"]
    assert "".join(part["text"] for part in found) == whole


def test_a_request_may_say_otherwise(sparing: Running) -> None:
    assert len(parts(sparing, stream_interval=8)) <= 3
    # An interval of 4 gives at most 11 pieces of 40 tokens.  A front end that gets no processor for
    # 40 ms joins two tokens to a piece; it would have to wait three times as long at each of them.
    assert len(parts(sparing, stream_interval=1, max_tokens=40)) > 11


def test_every_api_has_fewer_pieces(sparing: Running) -> None:
    options = {"num_predict": 24, "temperature": 0}
    body = {"model": "stories", "prompt": "Once upon a time", "options": options}
    lines = sparing.post("/api/generate", body).body.splitlines()
    assert len(lines) <= 1 + 24 // 4 + 1 + 1  # the first and the last are shorter; then the end


def test_usage_can_be_forced(sparing: Running, server: Running) -> None:
    for path, body in ((TEXT, BODY), (CHAT, TALK)):
        for fields in ({}, {"stream_options": {"include_usage": False}}):
            events = sparing.post(path, {**body, "stream": True, **fields}).events
            assert events[-1]["choices"] == []
            assert events[-1]["usage"]["completion_tokens"] == 11
            assert not any("usage" in event for event in events[:-1])
        events = server.post(path, {**body, "stream": True}).events
        assert not any(event.get("usage") for event in events)


def test_the_effective_configuration_has_both(sparing: Running) -> None:
    rows = {r["feature"]: r for r in sparing.get("/v1/engine/effective").json["features"]}
    assert rows["--stream-interval"]["effective"] == "4"
    assert rows["--enable-force-include-usage"]["effective"] == "on"
