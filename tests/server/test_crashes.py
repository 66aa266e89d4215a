"""What one request, or the engine's end, does to the others."""

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from json import dumps
from pathlib import Path
from typing import Any

import pytest

from flyweight.server.running.processes import family
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


@pytest.mark.parametrize("step", [0, 7])
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


def test_a_step_that_names_nobody_ends_who_fails_alone(server: Running) -> None:
    expected = alone(server)
    with served(FLYWEIGHT_TESTING="1", FLYWEIGHT_FAULT="poison:request=1") as faulty:
        got = all_at_once(faulty, bodies())
        assert sorted(reply.status for reply in got) == [200] * 4 + [500]
        for reply, choices in zip(got, expected, strict=True):
            assert reply.status == 500 or reply.json["choices"] == choices
        assert faulty.post("/v1/completions", bodies()[0]).json["choices"] == expected[0]
        assert faulty.empty()


def test_a_fault_is_not_honoured_outside_tests() -> None:
    with served(FLYWEIGHT_FAULT="raise:step=0,request=0", FLYWEIGHT_TESTING="") as server:
        assert server.post("/v1/completions", bodies()[0]).status == 200


def back(server: Running) -> None:
    """Waits until the engine was started again; 503 until then, and never stuck at 200."""
    server.until(lambda: server.get("/health").status == 200)
    got = server.post("/v1/completions", bodies()[0])
    assert got.status == 200, got.body


def ended(server: Running, body: dict[str, Any]) -> list[Any]:
    """A stream read to its end."""
    return server.post("/v1/completions", body).events


def test_an_engine_that_dies_ends_its_requests_and_is_started_again() -> None:
    with served(FLYWEIGHT_TESTING="1", FLYWEIGHT_FAULT="die:step=3") as server:
        first = server.worker
        last = ended(server, LONG)[-1]
        assert last["error"]["code"] == "engine_down"
        back(server)
        assert server.worker != first


def test_an_engine_that_is_killed_is_started_again(server: Running) -> None:
    expected = alone(server)[0]
    with served() as own, ThreadPoolExecutor(4) as pool:
        streams = [pool.submit(ended, own, LONG) for _ in range(3)]
        plain = pool.submit(own.post, "/v1/completions", {**LONG, "stream": False})
        own.until(lambda: len(own.get("/debug/kv").json["sequences"]) == 4)
        os.kill(own.worker, signal.SIGKILL)
        assert [stream.result()[-1]["error"]["code"] for stream in streams] == ["engine_down"] * 3
        assert plain.result().status == 503 and plain.result().headers["retry-after"]
        own.until(lambda: own.get("/health").status == 200)
        page = own.get("/metrics").body.decode()
        gauges = re.findall(r"^vllm:(?:num_requests_running|kv_cache_usage).* (.+)$", page, re.M)
        assert gauges == ["0.0"] * 2, "what the process that is gone said last"
        back(own)
        assert own.post("/v1/completions", bodies()[0]).json["choices"] == expected


SCHEMA = {f"p{i}": {"type": "string", "format": "date-time"} for i in range(60)}  # for a while


def bound(number: int) -> dict[str, Any]:
    """A request for JSON of a schema that no other request has."""
    schema = {"type": "object", "properties": SCHEMA, "title": str(number)}
    return {"prompt": "Once", "max_tokens": 4, "structured_outputs": {"json": schema}}


def judges(server: Running) -> list[int]:
    """Processes that try grammars."""
    return [one.pid for one in family(server.process.pid) if b"judg" in words_of(one.pid)]


def words_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_process_that_tries_grammars_and_is_killed_is_replaced() -> None:
    """Idle or asked: the next question, and the one that was asked, are answered."""
    with served() as server, ThreadPoolExecutor(1) as pool:
        assert server.post("/v1/completions", bound(0)).status == 200
        (first,) = judges(server)
        os.kill(first, signal.SIGKILL)
        assert server.post("/v1/completions", bound(1)).status == 200
        (second,) = judges(server)
        assert second != first
        os.kill(second, signal.SIGSTOP)
        asked = pool.submit(server.post, "/v1/completions", bound(2))
        time.sleep(0.2)  # it may be asked by now, or not: either will do
        os.kill(second, signal.SIGKILL)
        assert asked.result().status == 200
        assert server.get("/health").status == 200


def gone(pid: int) -> bool:
    try:
        return ") Z" in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("busy", [True, False])
def test_health_is_not_good_while_the_engine_stands_still(busy: bool) -> None:
    with served(server={"stuck_seconds": 0.5}) as server:
        pid = server.worker
        os.kill(pid, signal.SIGSTOP)
        reader = None
        if busy:
            reader = threading.Thread(target=ended, args=(server, LONG))
            reader.start()
        server.until(lambda: server.get("/health").status == 503)
        server.until(lambda: gone(pid))
        if reader is not None:
            reader.join()
        back(server)


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
def test_who_leaves_frees_his_blocks(server: Running, stream: bool, reset: bool) -> None:
    left(server, stream, reset, lambda: not server.empty())
    server.until(server.empty)


@pytest.mark.parametrize("stream", [True, False])
def test_who_leaves_the_queue_is_never_computed(stream: bool) -> None:
    with served({"max_num_seqs": 1}) as server:
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(ended, server, {**LONG, "stream": True})
            server.until(lambda: not server.empty())
            left(server, stream, True, lambda: sequences(server) == 2)
            server.until(lambda: sequences(server) < 2)
            assert first.result()[-1]["choices"][0]["finish_reason"] == "length"
        steps = server.get("/debug/steps").json["steps"]
        assert len({chunk[0] for step in steps for chunk in step["chunks"]}) == 1
        assert server.empty()


def sequences(server: Running) -> int:
    return len(server.get("/debug/kv").json["sequences"])


def test_who_leaves_at_the_prompt_frees_his_blocks() -> None:
    """A prompt that takes hundreds of steps, left after a moment, until that falls within them."""
    with served({"max_num_batched_tokens": 1, "max_num_seqs": 1}) as server:
        prompt = "One day a cat sat on the mat and looked at the dog. " * 25
        raw = dumps({"prompt": prompt, "max_tokens": 1})
        got = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1})
        tokens = got.json["usage"]["prompt_tokens"]
        for moment in range(200):
            server.post("/reset_prefix_cache", {})
            line = server.connection()
            line.request("POST", "/v1/completions", raw)
            time.sleep(moment / 1000)
            line.close()
            server.until(server.empty)
            chunks = server.get("/debug/steps").json["steps"][-1]["chunks"]
            (_, _, start, count) = chunks[0]
            if moment and start + count < tokens:
                return
        raise AssertionError("every one was answered")
