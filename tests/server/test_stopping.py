"""How a server ends: signals, draining, `flyweight stop`, and what is left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPResponse, IncompleteRead
from pathlib import Path
from types import SimpleNamespace

import pytest

from flyweight.cli.main import main
from flyweight.server.lifecycle.running import (
    ProcessInfo,
    ServerRecord,
    get_start,
    list_family,
    list_running,
    write_record,
)
from http_server import WAIT, Running, served, started

# Steps that take 20 ms, and an answer of ten seconds.
SLOW = {"FLYWEIGHT_TESTING": "1", "FLYWEIGHT_FAULT": "slow:ms=20"}
LASTING = {"prompt": "Once", "max_tokens": 480, "ignore_eos": True, "stream": True}
WAITS = ("--shutdown-timeout", "100")
JSON = {"content-type": "application/json"}
Command = Callable[..., SimpleNamespace]


@contextmanager
def stream(server: Running, **more: object) -> Iterator[HTTPResponse]:
    """A stream that has begun."""
    line = server.connection()
    body = json.dumps({**LASTING, **more})
    line.request("POST", "/v1/completions", body, JSON)
    answer = line.getresponse()
    assert answer.status == 200 and answer.readline().startswith(b"data: ")
    yield answer
    line.close()


def eventually(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


def draining(server: Running) -> bool:
    return server.get("/ready").status == 503


def test_what_is_being_answered_or_waits_is_finished() -> None:
    words = (*WAITS, "--max-num-seqs", "1")
    short = {"prompt": "x", "max_tokens": 2, "ignore_eos": True}
    with (
        ThreadPoolExecutor(1) as pool,
        started(*words, **SLOW) as server,
        stream(server, max_tokens=200) as answer,
    ):
        members = list_family(server.process.pid)
        assert len(members) == 2
        waits = pool.submit(server.post, "/v1/completions", short)
        eventually(lambda: len(server.get("/debug/kv").json["sequences"]) == 2)
        with server.paused():
            server.process.terminate()
            eventually(lambda: draining(server))
            refused = server.post("/v1/completions", short)
            assert refused.status == 503 and refused.json["error"]["code"] == "draining"
            for reply in (refused, server.get("/ready")):
                assert 1 <= int(reply.headers["retry-after"]) <= 60
            assert server.get("/health").status == 200
        assert answer.read().endswith(b"data: [DONE]\n\n")
        assert waits.result().json["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(WAIT) == 0
        assert not any(one.alive for one in members)


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGINT]
)
def test_a_signal_to_the_whole_group_drains_too(number: signal.Signals) -> None:
    """As Ctrl-C, `timeout` and systemd send it: to the engine and who tries grammars as well."""
    limits = {"shutdown_timeout": 100}
    with served(server=limits, before=os.setpgrp, **SLOW) as server:
        form = {"structured_outputs": {"regex": "[a-z]{3}"}}
        assert server.post("/v1/completions", {"prompt": "Once", **form}).status == 200
        with stream(server, max_tokens=50) as answer:
            members = list_family(server.process.pid)
            assert len(members) == 3
            os.killpg(server.process.pid, number)
            eventually(lambda: draining(server))
            assert all(one.alive for one in members)
            assert answer.read().endswith(b"data: [DONE]\n\n")
            assert server.process.wait(WAIT) == 0
            assert not any(one.alive for one in members)


def test_an_answer_that_is_being_read_is_sent() -> None:
    """Whole, and much larger than what the system keeps of a connection."""
    body = {"prompt": [300] * 400, "n": 60, "max_tokens": 1, "echo": True, "logprobs": 20}
    with started(*WAITS) as server:
        line = server.connection()
        line.request("POST", "/v1/completions", json.dumps(body), JSON)
        answer = line.getresponse()  # its head alone is read
        server.process.terminate()
        eventually(lambda: draining(server))
        time.sleep(0.5)
        assert server.process.poll() is None
        assert len(json.loads(answer.read())["choices"]) == 60
        line.close()
        assert server.process.wait(WAIT) == 0


def test_a_second_signal_does_not_wait() -> None:
    with started(*WAITS, **SLOW) as server, stream(server) as answer:
        members = list_family(server.process.pid)
        server.process.terminate()
        eventually(lambda: draining(server))
        server.process.terminate()
        assert server.process.wait(WAIT) == 0
        assert b"[DONE]" not in rest(answer)
        assert not any(one.alive for one in members)


def test_draining_has_an_end() -> None:
    """For who reads and for who does not."""
    with (
        started("--shutdown-timeout", "0.2", **SLOW) as server,
        stream(server, echo=True),
        stream(server) as answer,
    ):
        server.process.terminate()
        assert server.process.wait(WAIT) == 0
        *_, last, done = rest(answer).split(b"\n\n")[:-1]
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "draining"
        assert done == b"data: [DONE]"


def rest(answer: HTTPResponse) -> bytes:
    """What still comes of an answer that may be cut off."""
    try:
        return answer.read()
    except IncompleteRead as error:
        return error.partial
    except OSError:
        return b""


def test_a_signal_while_the_model_loads() -> None:
    """The engine's process is held still, so that there is such a while."""
    process = subprocess.Popen(
        [sys.executable, "-m", "flyweight.cli.main", "serve", "--port", "0"],
        stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    # held still before it runs what it is to be, it would hold its parent still as well
    eventually(lambda: any(is_engine(one.pid) for one in list_family(process.pid)))
    members = list_family(process.pid)
    engine = next(one.pid for one in members if one.pid != process.pid)
    os.kill(engine, signal.SIGSTOP)
    eventually(lambda: caught(process.pid, signal.SIGTERM))
    process.terminate()
    assert process.wait(WAIT) == 130
    assert not any(one.alive for one in members)


def is_engine(pid: int) -> bool:
    return b"flyweight.server.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()


def caught(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a way of its own with a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    (mask,) = re.findall(r"^SigCgt:\s*([0-9a-f]+)$", status, re.M)
    return bool(int(mask, 16) >> (number - 1) & 1)


# --- flyweight stop, and servers without a terminal ---


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Records of these tests' servers alone."""
    monkeypatch.setenv("FLYWEIGHT_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def flyweight(capsys: pytest.CaptureFixture[str]) -> Command:
    """A command line, in this process."""

    def call(*words: object) -> SimpleNamespace:
        code = main([str(word) for word in words])
        shown = capsys.readouterr()
        return SimpleNamespace(code=code, out=shown.out, err=shown.err)

    return call


def test_detached_and_stopped(cache: Path, flyweight: Command) -> None:
    got = flyweight("serve", "--port", "0", "--detach")
    assert got.code == 0, got.err
    (record,) = list_running()
    assert got.out.startswith(f"{record.url} pid {record.pid}, log {record.log}\n")
    server = Running(None, record.port)  # type: ignore[arg-type]
    assert server.get("/ready").status == 200
    members = list_family(record.pid)
    log = Path(record.log)
    assert record.url in log.read_text() and log.stat().st_mode & 0o077 == 0
    got = flyweight("stop")
    assert got.code == 0
    assert got.out.startswith(f"stopped {record.url} (pid {record.pid}) after ")
    assert "MiB given back" in got.out
    assert not any(one.alive for one in members) and list_running() == []
    got = flyweight("stop")
    assert got.code == 2 and "no flyweight server is running" in got.err


def test_a_detached_start_that_fails_says_why(cache: Path, flyweight: Command) -> None:
    got = flyweight("serve", "--detach", "--port", "0", "--memory-limit", "1MiB")
    assert got.code == 2
    assert "error: memory_limit" in got.err and "nearest settings" in got.err
    assert got.out == "" and list_running() == []


def test_one_of_several_is_named_and_answers_are_waited_for_unless_not(
    cache: Path, flyweight: Command
) -> None:
    with started(*WAITS, **SLOW) as one, started(*WAITS, **SLOW) as other:
        got = flyweight("stop")
        assert got.code == 2 and "2 servers run" in got.err
        assert str(one.port) in got.err and str(other.port) in got.err
        with stream(one) as answer:
            assert flyweight("stop", "--now", "--port", one.port).code == 0
            assert b"[DONE]" not in rest(answer)
        assert one.process.wait(WAIT) == 0 and other.process.poll() is None
        got = flyweight("stop", "--port", one.port)
        assert got.code == 2 and f"servers: {other.port}" in got.err
        with stream(other, max_tokens=40) as answer:
            assert flyweight("stop", "--all").code == 0
            assert answer.read().endswith(b"data: [DONE]\n\n")
        assert other.process.wait(WAIT) == 0


def test_stale_records_are_not_believed(cache: Path, flyweight: Command) -> None:
    """An id that was given again is somebody else's: nothing is sent to it."""
    own = os.getpid()
    began = get_start(own)
    assert began is not None
    write_record(ServerRecord(own, began - 1, "127.0.0.1", 1, "stories", "", 1.0, "http://x"))
    place = cache / "servers"
    (place / "7.json").write_text("{")
    (place / "8.json").write_text('{"pid": "8"}')
    (place / "9.json").write_text('{"pid": [], "begun": 1, "host": 1, "port": 1, "model": 1, '
                                  '"log": 1, "drain": 1, "url": 1}')  # fmt: skip
    assert flyweight("stop").code == 2
    assert not list(place.glob("*.json"))
    assert ProcessInfo(own, began).alive and not ProcessInfo(own, began - 1).alive
