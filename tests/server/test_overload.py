"""More than can be served: refused at once, by count, by tokens and at the end of the server."""

import signal
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from http_server import Reply, Running, served

SLOW = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True}
NARROW = {"max_num_seqs": 1}
# 400 tokens take two seconds at least: an answer lasts until the next request is made.
STEPS = {"FLYWEIGHT_TESTING": "1", "FLYWEIGHT_FAULT": "slow:ms=5"}


def many(server: Running, bodies: list[dict[str, Any]]) -> list[Reply]:
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: server.post("/v1/completions", body), bodies))


def test_sixty_at_a_queue_of_four() -> None:
    with served(NARROW, {"queue_requests": 4}) as server:
        got = many(server, [{**SLOW, "max_tokens": 60}] * 60)
        statuses = [reply.status for reply in got]
        assert set(statuses) == {200, 429}
        assert 5 <= statuses.count(200) < 60
        for reply in got:
            if reply.status == 429:
                assert 1 <= int(reply.headers["retry-after"]) <= 60
                assert reply.json["error"]["code"] == "queue_full"
                assert reply.json["error"]["type"] == "rate_limit_error"
        assert server.post("/v1/completions", {**SLOW, "max_tokens": 1}).status == 200
        assert server.empty()


def occupied(server: Running, work: Callable[[], None]) -> list[Reply]:
    """What becomes of one that runs and one that waits while `work` is done and the engine is
    stopped: else it might finish before.
    """
    found: list[Reply] = []

    def ask() -> None:
        found.append(server.post("/v1/completions", SLOW))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    threads[0].start()
    server.until(lambda: not server.empty())
    threads[1].start()
    server.until(lambda: len(server.get("/debug/kv").json["sequences"]) == 2)
    with server.paused():
        work()
    for thread in threads:
        thread.join()
    return found


def test_a_queue_is_bounded_by_tokens() -> None:
    with served(NARROW, {"queue_tokens": 50}, **STEPS) as server:

        def work() -> None:
            got = server.post("/v1/completions", {"prompt": "a cat sat " * 20, "max_tokens": 1})
            assert got.status == 429 and "tokens" in got.json["error"]["message"]

        assert [reply.status for reply in occupied(server, work)] == [200, 200]


def test_refusals_are_quicker_than_answers() -> None:
    with served(NARROW, {"queue_requests": 1}, **STEPS) as server:
        took: list[float] = []

        def work() -> None:
            for _ in range(20):
                start = time.monotonic()
                assert server.post("/v1/completions", SLOW).status == 429
                took.append(time.monotonic() - start)

        start = time.monotonic()
        assert server.post("/v1/completions", SLOW).status == 200
        alone = time.monotonic() - start
        occupied(server, work)
        assert statistics.median(took) < alone / 3


def test_a_server_that_ends_finishes_what_runs_and_takes_nothing_new() -> None:
    with served(NARROW, **STEPS) as server:

        def work() -> None:
            server.process.send_signal(signal.SIGTERM)
            server.until(lambda: server.get("/ready").status == 503)
            got = server.post("/v1/completions", SLOW)
            assert got.status == 503 and got.json["error"]["code"] == "draining"
            for refused in (got, server.get("/ready")):
                assert 1 <= int(refused.headers["retry-after"]) <= 60

        got = occupied(server, work)
        assert [reply.status for reply in got] == [200, 200]
        assert {reply.json["choices"][0]["finish_reason"] for reply in got} == {"length"}
        assert server.process.wait(60) == 0


def test_a_second_signal_does_not_wait() -> None:
    with served(NARROW, {"drain_seconds": 600.0}) as server:
        body = {**SLOW, "n": 8, "stream": True}
        threads = [
            threading.Thread(target=quietly, args=(server.post, "/v1/completions", body))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        server.until(lambda: not server.empty())
        server.process.send_signal(signal.SIGTERM)
        server.until(lambda: server.get("/ready").status == 503)
        assert server.stop() == 0
        for thread in threads:
            thread.join()


def quietly(ask: Callable[..., object], *args: object) -> None:
    try:
        ask(*args)
    except OSError:
        pass
    except Exception as error:  # an answer that broke off
        assert type(error).__module__ == "http.client"


def test_one_whose_turn_does_not_come_is_told_to_come_back() -> None:
    """Whole or streamed; what runs is not touched, and nothing of those who waited is left."""
    slow = {"FLYWEIGHT_TESTING": "1", "FLYWEIGHT_FAULT": "slow:ms=20"}
    with served(NARROW, {"queue_seconds": 0.3}, **slow) as server, ThreadPoolExecutor(1) as pool:
        first = pool.submit(server.post, "/v1/completions", {**SLOW, "max_tokens": 100})
        server.until(lambda: not server.empty())
        whole = server.post("/v1/completions", SLOW)
        assert whole.status == 429 and int(whole.headers["retry-after"]) >= 1
        assert whole.json["error"]["code"] == "queue_timeout"
        last = server.post("/v1/completions", {**SLOW, "stream": True}).events[-1]
        assert last["error"]["code"] == "queue_timeout"
        assert not first.done() and first.result().status == 200
        server.until(server.empty)


def test_a_request_that_takes_too_long_is_ended() -> None:
    with served(NARROW, {"request_seconds": 0.3}) as server:
        got = server.post("/v1/completions", {**SLOW, "n": 16})
        assert got.status == 504 and got.json["error"]["code"] == "deadline"
        last = server.post("/v1/completions", {**SLOW, "n": 16, "stream": True}).events[-1]
        assert last["error"]["code"] == "deadline"
        server.until(server.empty)
