"""What one request, or the engine's end, does to the others."""

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from json import dumps
from pathlib import Path
from typing import Any

import pytest

from flyweight.server.lifecycle.running import list_family
from http_server import Reply, Running, served

PROMPTS = [f"Once there was a {what} who" for what in ("cat", "dog", "girl", "bird", "fish")]
DETERMINISTIC = {"max_tokens": 40, "temperature": 0, "logprobs": 2, "ignore_eos": True}
LONG = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True}


def all_at_once(server: Running, bodies: list[dict[str, Any]]) -> list[Reply]:
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: server.post("/v1/completions", body), bodies))


def bodies() -> list[dict[str, Any]]:
    return [{"prompt": prompt, **DETERMINISTIC} for prompt in PROMPTS]


def alone(server: Running) -> list[Any]:
    return [server.post("/v1/completions", body).json["choices"] for body in bodies()]


@pytest.mark.parametrize("step", [pytest.param(0, marks=pytest.mark.long), 7])
def test_a_step_that_raises_ends_its_request_alone(server: Running, step: int) -> None:
    expected = alone(server)
    fault = f"raise:step={step},request=2"
    with served(FLYWEIGHT_TESTING="1", FLYWEIGHT_FAULT=fault) as faulty:
        got = all_at_once(faulty, bodies())
        failed = [i for i, reply in enumerate(got) if reply.status != 200]
        assert len(failed) == 1
        (i,) = failed
        assert got[i].status == 500 and got[i].json["error"]["code"] == "engine_error"
        assert got[i].headers["x-request-id"]
        for j, reply in enumerate(got):
            assert j == i or reply.json["choices"] == expected[j]
        assert faulty.post("/v1/completions", bodies()[i]).json["choices"] == expected[i]
        assert faulty.empty()


def test_a_failed_step_ends_only_the_request_that_caused_it(server: Running) -> None:
    expected = alone(server)
    with served(FLYWEIGHT_TESTING="1", FLYWEIGHT_FAULT="poison:request=1") as faulty:
        got = all_at_once(faulty, bodies())
        assert sorted(reply.status for reply in got) == [200] * 4 + [500]
        for reply, choices in zip(got, expected, strict=True):
            assert reply.status == 500 or reply.json["choices"] == choices
        assert faulty.post("/v1/completions", bodies()[0]).json["choices"] == expected[0]
        assert faulty.empty()


@pytest.fixture(scope="module")
def own() -> Iterator[Running]:
    """One whose processes may be killed.  No step fails: it is not under test."""
    fault = "raise:step=0,request=0"
    with served(FLYWEIGHT_FAULT=fault, FLYWEIGHT_TESTING="") as running:
        yield running


def test_a_fault_is_not_supported_outside_tests(own: Running) -> None:
    assert own.post("/v1/completions", bodies()[0]).status == 200


def back(server: Running) -> None:
    """Waits until the engine was started again; 503 until then, and never stuck at 200."""
    server.until(lambda: server.get("/health").status == 200)
    got = server.post("/v1/completions", bodies()[0])
    assert got.status == 200, got.body


def ended(server: Running, body: dict[str, Any]) -> list[Any]:
    """A stream read to its end."""
    return server.post("/v1/completions", body).events


@pytest.mark.long  # as where it is killed
def test_an_engine_that_dies_ends_its_requests_and_is_started_again() -> None:
    with served(FLYWEIGHT_TESTING="1", FLYWEIGHT_FAULT="die:step=3") as server:
        first = server.worker
        last = ended(server, LONG)[-1]
        assert last["error"]["code"] == "engine_down"
        back(server)
        assert server.worker != first


def test_an_engine_that_is_killed_is_started_again(server: Running, own: Running) -> None:
    expected = alone(server)[0]
    first = own.worker
    with ThreadPoolExecutor(4) as pool:
        streams = [pool.submit(ended, own, LONG) for _ in range(3)]
        plain = pool.submit(own.post, "/v1/completions", {**LONG, "stream": False})
        own.until(lambda: len(own.get("/debug/kv").json["sequences"]) == 4)
        os.kill(first, signal.SIGKILL)
        assert [stream.result()[-1]["error"]["code"] for stream in streams] == ["engine_down"] * 3
        assert plain.result().status == 503 and plain.result().headers["retry-after"]
        own.until(lambda: own.get("/health").status == 200)
        page = own.get("/metrics").body.decode()
        gauges = re.findall(r"^vllm:(?:num_requests_running|kv_cache_usage).* (.+)$", page, re.M)
        assert gauges == ["0.0"] * 2, "what the process that is gone said last"
        back(own)
        assert own.post("/v1/completions", bodies()[0]).json["choices"] == expected
        assert own.worker != first


SCHEMA = {f"p{i}": {"type": "string", "format": "date-time"} for i in range(60)}  # for a while


def bound(number: int) -> dict[str, Any]:
    """A request for JSON of a schema that no other request has."""
    schema = {"type": "object", "properties": SCHEMA, "title": str(number)}
    return {"prompt": "Once", "max_tokens": 4, "structured_outputs": {"json": schema}}


def judges(server: Running) -> list[int]:
    """Processes that try grammars."""
    return [
        one.pid
        for one in list_family(server.process.pid)
        if b"server.constraints" in words_of(one.pid)
    ]


def words_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_process_that_tries_grammars_and_is_killed_is_replaced(own: Running) -> None:
    """Idle or busy: the next question, and the current one, are answered."""
    with ThreadPoolExecutor(1) as pool:
        assert own.post("/v1/completions", bound(0)).status == 200
        (first,) = judges(own)
        os.kill(first, signal.SIGKILL)
        assert own.post("/v1/completions", bound(1)).status == 200
        (second,) = judges(own)
        assert second != first
        os.kill(second, signal.SIGSTOP)
        requested = pool.submit(own.post, "/v1/completions", bound(2))
        time.sleep(0.2)  # it may have begun by now, or not: both are fine
        os.kill(second, signal.SIGKILL)
        assert requested.result().status == 200
        assert own.get("/health").status == 200


def gone(pid: int) -> bool:
    try:
        return ") Z" in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True


@pytest.fixture(scope="module")
def impatient() -> Iterator[Running]:
    with served(server={"engine_timeout": 0.5}) as running:
        yield running


@pytest.mark.parametrize("busy", [True, False])
def test_health_is_not_good_while_the_engine_stands_still(impatient: Running, busy: bool) -> None:
    impatient.until(lambda: impatient.get("/health").status == 200)
    pid = impatient.worker
    os.kill(pid, signal.SIGSTOP)
    reader = None
    if busy:
        reader = threading.Thread(target=ended, args=(impatient, LONG))
        reader.start()
    impatient.until(lambda: impatient.get("/health").status == 503)
    impatient.until(lambda: gone(pid))
    if reader is not None:
        reader.join()
    back(impatient)


def left(server: Running, stream: bool, reset: bool, wait: Callable[[], bool]) -> None:
    """Begins a long request, and goes once `wait` holds."""
    body = dumps({**LONG, "stream": stream}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    line = socket.create_connection(("127.0.0.1", server.port))
    line.sendall(head.encode() + b"\r\n" + body)
    server.until(wait)
    if reset:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    line.close()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("reset", [True, False])
def test_a_client_that_leaves_frees_its_blocks(server: Running, stream: bool, reset: bool) -> None:
    left(server, stream, reset, lambda: not server.empty())
    server.until(server.empty)


@pytest.fixture(scope="module")
def narrow() -> Iterator[Running]:
    """One token a step, which takes its time."""
    slow = {"FLYWEIGHT_TESTING": "1", "FLYWEIGHT_FAULT": "slow:ms=10"}
    with served({"max_num_batched_tokens": 1, "max_num_seqs": 1}, **slow) as running:
        yield running


def computed(server: Running) -> set[int]:
    """Sequences of the last steps."""
    steps = server.get("/debug/steps").json["steps"]
    return {chunk[0] for step in steps for chunk in step["chunks"]}


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_the_queue_is_never_computed(narrow: Running, stream: bool) -> None:
    before = computed(narrow)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ended, narrow, {**LONG, "max_tokens": 150})
        narrow.until(lambda: not narrow.empty())
        left(narrow, stream, True, lambda: sequences(narrow) == 2)
        narrow.until(lambda: sequences(narrow) < 2)
        assert first.result()[-1]["choices"][0]["finish_reason"] == "length"
    assert len(computed(narrow) - before) == 1
    assert narrow.empty()


def sequences(server: Running) -> int:
    return len(server.get("/debug/kv").json["sequences"])


def test_a_client_that_leaves_during_prefill_frees_its_blocks(narrow: Running) -> None:
    """A prompt that takes hundreds of steps, left at one of the first."""
    prompt = "One day a cat sat on the mat and looked at the dog. " * 25
    tokens = len(narrow.post("/tokenize", {"prompt": prompt}).json["tokens"])
    raw = dumps({"prompt": prompt, "max_tokens": 1})
    line = narrow.connection()
    line.request("POST", "/v1/completions", raw)
    narrow.until(lambda: not narrow.empty())
    line.close()
    narrow.until(narrow.empty)
    chunks = narrow.get("/debug/steps").json["steps"][-1]["chunks"]
    (_, _, start, count) = chunks[0]
    assert 0 < start + count < tokens, "it was answered"
