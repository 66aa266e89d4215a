"""Thousands of requests gone wrong: answered or refused by name, without a trace in the others."""

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pytest

import chat_model
from flyweight.server.apis.routes import ROUTES
from flyweight.validation.untrusted import printable
from http_server import Reply, Running, started
from mutations import SEEDS, Mutator

COUNT, LONG, EVERY, CLIENTS = 300, 10_000, 50, 8
ACCEPTED, REFUSED, UNREAD = 0.1, 0.3, 0.25  # shares of the mutants
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


@dataclass
class Flood:
    """What came of many requests: how many had which status, and what should not have been."""

    statuses: Counter[int] = field(default_factory=Counter)
    unread: int = 0  # refused before a field was looked at: no JSON object, or too much of it
    known: int = 0  # good requests between them that were answered as ever
    wrong: list[tuple[str, bytes, int, bytes]] = field(default_factory=list)


def flood(server: Running, requests: Iterator[tuple[str, bytes]], expected: Any) -> Flood:
    """Sends them all from several clients."""
    work: SimpleQueue[tuple[int, tuple[str, bytes]]] = SimpleQueue()
    for item in enumerate(requests):
        work.put(item)
    found, one_at_a_time = Flood(), threading.Lock()

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
                    found.wrong.append((path, body[:2000], 0, repr(error).encode()))
                continue
            with one_at_a_time:
                found.statuses[got.status] += 1
                found.unread += got.status == 400 and b"the body " in got.body
            if misbehaved(path, body, got):
                found.wrong.append((path, body[:2000], got.status, got.body[:500]))
            if number % EVERY == EVERY - 1:
                good = server.post("/v1/completions", GOOD)
                with one_at_a_time:
                    found.known += good.status == 200
                if wronged(good, expected):
                    found.wrong.append(("a good request", b"", good.status, good.body))

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def misbehaved(path: str, body: bytes, got: Reply) -> bool:
    """Whether a reply is of a status that no request may cause, reveals the server's insides, or
    is a refusal that does not say of what.
    """
    if got.status >= 500 and got.status != 503:
        return True
    return blabs(got.status, got.body) or (got.status == 400 and not names(path, body, got.json))


def names(path: str, body: bytes, reported: Any) -> bool:
    """Whether a refusal names the body as a whole, or a field that the route or the body has."""
    error = reported["error"]
    message = error if isinstance(error, str) else error["message"]
    if message.startswith("the body "):
        return True
    try:
        given = json.loads(body)
    except ValueError:  # nor is a number of a million digits any to Python
        given = re.findall(r'"(\w+)" ?:', body.decode("utf-8", "replace"))
    # what messages are written out to is the prompt, in every dialect
    known = {name for name in (*fields()[path], *given, "prompt", "body") if name}
    if isinstance(error, dict) and error.get("param"):
        written = {"".join(c if c.isprintable() else ascii(c)[1:-1] for c in n) for n in known}
        return any(str(error["param"]).startswith(name[:50]) for name in written)
    reported_of = [spelled for name in known for spelled in (name, printable(name)[:50])]
    return any(re.search(rf"(^|\W){re.escape(spelled)}", message) for spelled in reported_of)


def wronged(good: Reply, expected: Any) -> bool:
    """Whether a good request got another answer, or anything but "too much now"."""
    if good.status == 200:
        return bool(good.json["choices"] != expected)
    return good.status not in (429, 503)


def blabs(status: int, body: bytes) -> bool:
    """Whether a refusal says something of the server's insides."""
    return status >= 400 and any(word.encode() in body for word in WORDS)


@pytest.mark.parametrize("seed", [20_261_122])
def test_mutated_requests_break_nothing(at_length: bool, tmp_path: Path, seed: int) -> None:
    count = LONG if at_length else COUNT
    print(f"seed {seed}, {count} requests")
    assert {path for path, names in fields().items() if names} <= set(SEEDS)
    (tmp_path / FOLDER).mkdir()
    model = chat_model.write(tmp_path / FOLDER / "talker.gguf")
    with started(str(model), "--max-model-len", "512") as server:
        warm = list(islice(Mutator(seed + 1, fields()).requests(), COUNT // 6))
        expected = server.post("/v1/completions", GOOD).json["choices"]
        assert flood(server, iter(warm), expected).wrong == []
        pids = [server.process.pid, server.worker]
        before = [resident(pid) for pid in pids]
        found = flood(server, islice(Mutator(seed, fields()).requests(), count), expected)
        assert found.wrong == []
        assert found.statuses[200] > ACCEPTED * count, "hardly a mutant was taken"
        assert found.statuses[400] > REFUSED * count, "hardly a mutant was refused"
        assert found.unread < UNREAD * count, "most mutants ended in the JSON reader"
        assert found.known > 0, "no good request between them was answered"
        assert [server.process.pid, server.worker] == pids, "the engine was started again"
        growth = [resident(pid) - old for pid, old in zip(pids, before, strict=True)]
        assert max(growth) < MOST_GROWTH, growth
        assert server.post("/v1/completions", GOOD).json["choices"] == expected
        server.until(server.empty)
        assert not any("failed:" in line for line in server.said)
