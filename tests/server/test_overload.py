"""More than can be served: refused at once, by count and by tokens, and after a while by time.

The engine is paused meanwhile, so that what runs and what waits does so until a test is done.
"""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from http_server import Running, served

SHORT = {"prompt": "Once", "max_tokens": 4, "ignore_eos": True}
LONG = {**SHORT, "max_tokens": 400}
NARROW = {"max_num_seqs": 1}
QUEUE, TOKENS = 4, 50
STEPS = {"FLYWEIGHT_TESTING": "1", "FLYWEIGHT_FAULT": "slow:ms=20"}


@pytest.fixture(scope="module")
def narrow() -> Iterator[Running]:
    with served(NARROW, {"max_queued_requests": QUEUE, "max_queued_tokens": TOKENS}) as running:
        yield running


def rejections(server: Running) -> dict[str, int]:
    """What was refused, by what was full."""
    page = server.get("/metrics").body.decode()
    found = re.findall(r'^vllm:admission_rejections_total{.*reason="(\w+)".*} (\d+)', page, re.M)
    return {reason: int(count) for reason, count in found}


def grown(server: Running, before: dict[str, int]) -> dict[str, int]:
    now = rejections(server)
    return {reason: now[reason] - before[reason] for reason in now}


def test_sixty_at_a_queue_of_four(narrow: Running) -> None:
    """A refusal waits for no answer: nothing is computed meanwhile."""
    before = rejections(narrow)
    with ThreadPoolExecutor(60) as pool:
        with narrow.paused():
            requested = [pool.submit(narrow.post, "/v1/completions", SHORT) for _ in range(60)]
            narrow.until(lambda: sum(one.done() for one in requested) == 60 - QUEUE)
            assert {one.result().status for one in requested if one.done()} == {429}
        got = [one.result() for one in requested]
    assert [reply.status for reply in got].count(200) == QUEUE
    for reply in got:
        if reply.status == 429:
            assert 1 <= int(reply.headers["retry-after"]) <= 60
            assert reply.json["error"]["code"] == "queue_full"
            assert reply.json["error"]["type"] == "rate_limit_error"
    full = {"max_num_queued_reqs": 60 - QUEUE, "max_num_queued_tokens": 0}
    assert grown(narrow, before) == full
    assert narrow.post("/v1/completions", {**SHORT, "max_tokens": 1}).status == 200
    narrow.until(narrow.empty)


def test_a_queue_is_bounded_by_tokens(narrow: Running) -> None:
    before = rejections(narrow)
    body = {**SHORT, "prompt": "a cat sat " * 4}
    each = len(narrow.post("/tokenize", {"prompt": body["prompt"]}).json["tokens"])
    fit = TOKENS // each
    assert 0 < fit < QUEUE
    with ThreadPoolExecutor(QUEUE) as pool:
        with narrow.paused():
            requested = [pool.submit(narrow.post, "/v1/completions", body) for _ in range(QUEUE)]
            narrow.until(lambda: sum(one.done() for one in requested) == QUEUE - fit)
            refused = [one.result() for one in requested if one.done()]
        assert sorted(one.result().status for one in requested) == [200] * fit + [429] * (
            QUEUE - fit
        )
    assert all("tokens" in reply.json["error"]["message"] for reply in refused)
    full = {"max_num_queued_reqs": 0, "max_num_queued_tokens": QUEUE - fit}
    assert grown(narrow, before) == full


def test_a_request_that_waits_too_long_gets_retry_after() -> None:
    """Whole or streamed; what runs is not touched, and nothing of those who waited is left."""
    with (
        served(NARROW, {"queue_timeout": 1.0}, **STEPS) as server,
        closing(server.connection()) as line,
    ):
        line.request(
            "POST",
            "/v1/completions",
            json.dumps({**LONG, "max_tokens": 100, "stream": True}),
            {"content-type": "application/json"},
        )
        first = line.getresponse()
        assert first.status == 200 and b"text" in first.readline()  # it runs: a token has come
        with server.paused():
            whole = server.post("/v1/completions", LONG)
            assert whole.status == 429 and int(whole.headers["retry-after"]) >= 1
            assert whole.json["error"]["code"] == "queue_timeout"
            last = server.post("/v1/completions", {**LONG, "stream": True}).events[-1]
            assert last["error"]["code"] == "queue_timeout"
        rest = first.read()
        assert b"data: [DONE]" in rest and b"error" not in rest
        server.until(server.empty)


def test_a_request_that_takes_too_long_is_ended() -> None:
    with served(NARROW, {"request_timeout": 0.3}, **STEPS) as server:
        got = server.post("/v1/completions", {**LONG, "n": 16})
        assert got.status == 504 and got.json["error"]["code"] == "deadline"
        last = server.post("/v1/completions", {**LONG, "n": 16, "stream": True}).events[-1]
        assert last["error"]["code"] == "deadline"
        server.until(server.empty)
