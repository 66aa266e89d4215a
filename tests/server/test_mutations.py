"""Thousands of requests gone wrong: answered or refused by name, without a trace in the others."""

import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pytest

import chat_model
from flyweight.server.routes import ROUTES
from http_server import Reply, Running, started
from mutations import Mutator

COUNT, LONG, EVERY, CLIENTS = 600, 10_000, 250, 8
GOOD = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "logprobs": 3}
MOST_GROWTH = 200  # MiB
BODY = 8 << 20  # bytes; more is refused
FOLDER = "frobozzmagic"  # where the model lies, which is nobody's business
WORDS = ("Traceback", "0x7f", "/site-packages", ".py", "pydantic", "msgspec", "object at", FOLDER)


def fields() -> dict[str, list[str]]:
    """What the bodies of all routes are called."""
    found = {}
    for entry in ROUTES:
        if entry.method == "POST":
            found[entry.path] = sorted(entry.body.model_fields) if entry.body else []
    return found


def resident(pid: int) -> int:
    """MiB of a process's memory."""
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    (row,) = [row for row in rows if row.startswith("VmRSS")]
    return int(row.split()[1]) >> 10


def flood(
    server: Running, requests: Iterator[tuple[str, bytes]], expected: Any
) -> list[tuple[str, bytes, int, bytes]]:
    """Sends them all from several clients; what was answered as it should not be."""
    work: SimpleQueue[tuple[int, tuple[str, bytes]]] = SimpleQueue()
    for item in enumerate(requests):
        work.put(item)
    wrong: list[tuple[str, bytes, int, bytes]] = []

    def client() -> None:
        while True:
            try:
                number, (path, body) = work.get_nowait()
            except Empty:
                return
            try:
                got = server.ask("POST", path, body)
            except OSError as error:  # a body that is refused unread may not be sent to its end
                if len(body) < BODY:
                    wrong.append((path, body[:2000], 0, repr(error).encode()))
                continue
            if (got.status >= 500 and got.status != 503) or blabs(got.status, got.body):
                wrong.append((path, body[:2000], got.status, got.body[:500]))
            if number % EVERY == EVERY - 1:
                good = server.post("/v1/completions", GOOD)
                if wronged(good, expected):
                    wrong.append(("a good request", b"", good.status, good.body))

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def wronged(good: Reply, expected: Any) -> bool:
    """Whether a good request got another answer, or anything but "too much now"."""
    if good.status == 200:
        return bool(good.json["choices"] != expected)
    return good.status not in (429, 503)


def blabs(status: int, body: bytes) -> bool:
    """Whether a refusal says something of the server's insides."""
    return status >= 400 and any(word.encode() in body for word in WORDS)


@pytest.mark.parametrize("seed", [20_261_122])
def test_mutated_requests_break_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, seed: int
) -> None:
    count = LONG if request.config.getoption("--long") else COUNT
    print(f"seed {seed}, {count} requests")
    (tmp_path / FOLDER).mkdir()
    model = chat_model.write(tmp_path / FOLDER / "talker.gguf")
    with started(str(model), "--max-model-len", "512") as server:
        warm = list(islice(Mutator(seed + 1, fields()).requests(), COUNT // 6))
        expected = server.post("/v1/completions", GOOD).json["choices"]
        assert flood(server, iter(warm), expected) == []
        pids = [server.process.pid, server.worker]
        before = [resident(pid) for pid in pids]
        assert flood(server, islice(Mutator(seed, fields()).requests(), count), expected) == []
        assert [server.process.pid, server.worker] == pids, "the engine was started again"
        growth = [resident(pid) - old for pid, old in zip(pids, before, strict=True)]
        assert max(growth) < MOST_GROWTH, growth
        assert server.post("/v1/completions", GOOD).json["choices"] == expected
        server.until(server.empty)
        assert not any("failed:" in line for line in server.said)
