"""Crowds: clients that all leave at once, ten times what can be served, and many that are slow.

Steps take a while on order, so that what is compared is made of waiting, not of a busy machine's
time; what is asserted are counts of steps, or ratios of two times of one test.
"""

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from json import dumps
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from http_server import Running, served

RESET = b"\x01\0\0\0\0\0\0\0"  # SO_LINGER: on, of no seconds
STREAM = {"prompt": "Once", "max_tokens": 200, "ignore_eos": True}
SHORT = {**STREAM, "max_tokens": 4}


def slow(milliseconds: int) -> dict[str, str]:
    """Every step takes so much longer."""
    return {"FLYWEIGHT_TESTING": "1", "FLYWEIGHT_FAULT": f"slow:ms={milliseconds}"}


def seconds(work: Callable[[], object]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def resident(pid: int) -> int:
    """KiB."""
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    (row,) = [row for row in rows if row.startswith("VmRSS")]
    return int(row.split()[1])


def gauge(server: Running, name: str) -> int:
    rows = server.get("/metrics").body.decode().splitlines()
    (row,) = [row for row in rows if row.startswith(name + "{")]
    return int(float(row.rsplit(" ", 1)[1]))


def running(server: Running) -> int:
    return gauge(server, "vllm:num_requests_running")


def waiting(server: Running) -> int:
    return gauge(server, "vllm:num_requests_waiting")


def begun(server: Running, body: dict[str, Any]) -> socket.socket:
    """A request that has been sent, and whose answer nobody reads."""
    raw = dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n"
    line = socket.create_connection(("127.0.0.1", server.port), 60)
    line.sendall(head.encode() + b"\r\n" + raw)
    return line


def storm(server: Running, crowd: int, seats: int) -> None:
    """All begin, some of them wait, and all leave: streamed or not, by FIN or RST."""
    lines = [begun(server, {**STREAM, "stream": bool(i % 3)}) for i in range(crowd)]
    server.until(lambda: running(server) == seats and waiting(server) == crowd - seats)
    for i, line in enumerate(lines):
        if i % 2:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        line.close()


def test_a_storm_of_disconnects_leaves_nothing(at_length: bool) -> None:
    """Who comes after it waits for nobody who has left."""
    long, seats = at_length, 8
    crowd, storms, step = (200, 10, 50) if long else (24, 2, 15)  # nobody may end before all begin
    few = {"blocks": 128}  # memory of blocks is the system's until used
    with served({"max_num_seqs": seats, **few}, **slow(step)) as server:
        alone = seconds(lambda: server.post("/v1/completions", STREAM))
        pids = [server.process.pid, server.worker]
        for _ in range(storms):  # until every buffer is as large as it gets
            storm(server, crowd, seats)
            server.until(server.empty)
        before = [resident(pid) for pid in pids]
        for _ in range(storms):
            storm(server, crowd, seats)
            took = seconds(lambda: server.post("/v1/completions", SHORT))
            assert took < alone / 2, "those who left were waited for"
            took = seconds(lambda: server.until(lambda: running(server) == waiting(server) == 0))
            assert took < alone / 2
            server.until(server.empty)
        after = [resident(pid) for pid in pids]
        assert all(new < 1.05 * old for new, old in zip(after, before, strict=True)), (
            before,
            after,
        )
        assert [server.process.pid, server.worker] == pids


# --- more than can be served ---

TOKENS = 8
ANSWER = {**STREAM, "max_tokens": TOKENS}


def closed(server: Running, clients: int, span: float) -> float:
    """Answers a second with so many clients that ask one after the other."""
    start = time.monotonic()

    def client(number: int) -> int:
        for answered in count():
            if time.monotonic() > start + span:
                return answered
            assert server.post("/v1/completions", ANSWER).status == 200
        raise AssertionError

    with ThreadPoolExecutor(clients) as pool:
        answered = sum(pool.map(client, range(clients)))
    return answered / (time.monotonic() - start)


def flooded(server: Running, rate: float, span: float) -> list[tuple[int, float, float]]:
    """What came of `rate` requests a second: status, how long it took, when it was answered."""
    start, tickets = time.monotonic(), count()
    found: list[tuple[int, float, float]] = []

    def client(_: int) -> None:
        for ticket in tickets:
            begin = start + ticket / rate
            if begin > start + span:
                return
            time.sleep(max(0.0, begin - time.monotonic()))
            requested = time.monotonic()
            status = server.post("/v1/completions", ANSWER).status
            now = time.monotonic()
            found.append((status, now - requested, now - start))

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(client, range(32)))
    return found


def test_a_flood_leaves_no_seat_empty() -> None:
    """While those who are refused come back, and until enough are answered, every step is full."""
    seats = 4
    with served({"max_num_seqs": seats}, {"max_queued_requests": 2 * seats}, **slow(20)) as server:
        worker = server.worker
        before = gauge(server, "flyweight:steps_total")
        statuses: list[int] = []

        def client(_: int) -> None:
            while statuses.count(200) < 12 * seats:
                statuses.append(server.post("/v1/completions", ANSWER).status)
                time.sleep(0.05)

        with ThreadPoolExecutor(32) as pool:
            list(pool.map(client, range(32)))
        assert set(statuses) == {200, 429}
        steps = gauge(server, "flyweight:steps_total") - before
        assert statuses.count(200) * TOKENS >= 0.8 * seats * steps
        server.until(server.empty)
        assert server.post("/v1/completions", SHORT).status == 200 and server.worker == worker


@pytest.mark.long
def test_ten_times_what_can_be_served() -> None:
    """Answers go on at the pace of the best load; the rest is refused much sooner than answered."""
    seats, rounds, span = 4, 15, 20.0
    goodput: list[float] = []  # over that of the best load, measured just before
    patience: list[float] = []  # of the refused, over that of the answered
    with served({"max_num_seqs": seats}, {"max_queued_requests": 2 * seats}, **slow(40)) as server:
        worker = server.worker
        for _ in range(rounds):
            peak = closed(server, 2 * seats, span / 2)
            found = flooded(server, 10 * peak, span)
            assert {status for status, *_ in found} <= {200, 429, 503}
            answered = [took for status, took, _ in found if status == 200]
            refused = [took for status, took, _ in found if status != 200]
            assert len(refused) > len(answered), "it was not flooded"
            goodput.append(len(answered) / max(at for *_, at in found) / peak)
            patience.append(median(refused) / median(answered))
        assert median(goodput) >= 0.9, goodput
        assert median(patience) < 0.25, patience
        server.until(server.empty)
        assert server.post("/v1/completions", SHORT).status == 200 and server.worker == worker


# --- slow clients ---


@contextmanager
def crawlers(server: Running) -> Iterator[None]:
    """Some who never end their heads or bodies, and some who never read."""
    body = {**STREAM, "max_tokens": 400, "logprobs": 5, "stream": True}
    lines = [begun(server, body) for _ in range(4)]
    for i in range(64):
        line = socket.create_connection(("127.0.0.1", server.port), 60)
        line.sendall(b"GET /hea" if i % 2 else b"POST /v1/completions HTTP/1.1\r\nHost: localhost"
                     b"\r\nContent-Length: 999\r\n\r\n{")  # fmt: skip
        lines.append(line)
    yield
    for line in lines:
        line.close()


def test_the_slow_do_not_slow_the_others() -> None:
    """Among them an answer takes hardly more steps than it has tokens."""
    answers = 5
    with served(**slow(20)) as server, crawlers(server):
        server.until(lambda: running(server) == 4)
        before = gauge(server, "flyweight:steps_total")
        for _ in range(answers):
            assert server.post("/v1/completions", ANSWER).status == 200
        steps = gauge(server, "flyweight:steps_total") - before
        assert running(server) == 4, "the slow have gone"
        assert steps < 2 * answers * TOKENS
