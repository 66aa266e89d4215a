"""A server whose model is on several processes: the same answers, and it outlives each of them."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra [distributed] is not installed")

from http_server import Running, started

BODY = {"model": "stories", "prompt": "Once upon a time", "temperature": 0, "max_tokens": 24}
LONG = {**BODY, "max_tokens": 400, "ignore_eos": True}
LIMITS = ("--memory-limit", "3GiB", "--max-model-len", "512", "--threads", "2")


def list_ranks(server: Running) -> list[int]:
    """Process ids of the ranks that the engine process has started."""
    worker = server.worker
    found = Path(f"/proc/{worker}/task/{worker}/children").read_text().split()
    return [int(p) for p in found if b"flyweight.rank" in Path(f"/proc/{p}/cmdline").read_bytes()]


def is_gone(pid: int) -> bool:
    try:
        return ") Z" in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True


@pytest.fixture(scope="module")
def pair() -> Iterator[Running]:
    with started("stories", "-tp", "2", *LIMITS) as server:
        yield server


def ask(server: Running, body: dict[str, Any] = BODY) -> str:
    reply = server.post("/v1/completions", body)
    assert reply.status == 200, reply.body
    return str(reply.json["choices"][0]["text"])


def count_starts(server: Running) -> int:
    """How often its engine has started again."""
    return sum("engine_ready" in line for line in server.said)


def test_the_answer_is_that_of_one_process(pair: Running) -> None:
    with started("stories", *LIMITS) as alone:
        assert ask(pair) == ask(alone)
    rows = pair.get("/v1/engine/effective").json["features"]
    (row,) = [row for row in rows if row["feature"] == "--tensor-parallel-size"]
    assert row["effective"].startswith("2")


def test_a_rank_that_is_killed_ends_its_requests_and_all_ranks_are_started_again(
    pair: Running,
) -> None:
    expected = ask(pair)
    (first,) = list_ranks(pair)
    line = pair.connection()
    line.request("POST", "/v1/completions", json.dumps({**LONG, "stream": True}))
    reply = line.getresponse()
    reply.readline()
    os.kill(first, signal.SIGKILL)
    assert b"engine_down" in reply.read()
    line.close()
    pair.until(lambda: pair.get("/health").status == 200)
    pair.until(lambda: pair.post("/v1/completions", BODY).status == 200)
    assert ask(pair) == expected
    assert first not in list_ranks(pair)


def test_a_rank_that_is_killed_while_nothing_runs_costs_no_request(pair: Running) -> None:
    expected, ready = ask(pair), count_starts(pair)
    (first,) = list_ranks(pair)
    os.kill(first, signal.SIGKILL)
    pair.until(lambda: count_starts(pair) > ready)
    assert ask(pair) == expected


def test_no_rank_outlives_the_engine_process_or_the_server() -> None:
    with started("stories", "-pp", "2", *LIMITS) as server:
        ask(server)
        (first,) = list_ranks(server)
        os.kill(server.worker, signal.SIGKILL)
        server.until(lambda: is_gone(first))
        server.until(lambda: server.post("/v1/completions", BODY).status == 200)
        (second,) = list_ranks(server)
        assert server.stop() == 0
        server.until(lambda: is_gone(second))
