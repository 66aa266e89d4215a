"""What the server reports to a service manager, and what SIGHUP does: key files are read again."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flyweight.server.lifecycle import notify
from flyweight.server.lifecycle.notify import ServiceNotifier
from flyweight.server.lifecycle.running import list_family
from http_server import SERVE, WAIT, Running, served, started

JSON = {"content-type": "application/json"}
SLOW = {"FLYWEIGHT_TESTING": "1", "FLYWEIGHT_FAULT": "slow:ms=20"}
PROMPT = "Once upon a time there was a little owl who lived in a tree. " * 4


class Receiver:
    """The service manager's end: a datagram socket."""

    def __init__(self, name: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + name[1:] if name.startswith("@") else name)
        self.socket.settimeout(WAIT)
        self.name = name

    def take(self) -> dict[str, str]:
        """The next message."""
        lines = self.socket.recv(4096).decode().split("\n")
        return dict(line.split("=", 1) for line in lines)


@pytest.fixture(params=["path", "abstract"])
def receiver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Receiver]:
    names = {"path": str(tmp_path / "notify"), "abstract": f"@flyweight-test-{os.getpid()}"}
    found = Receiver(names[request.param])
    yield found
    found.socket.close()


def read_clock() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


# --- messages ---


def test_messages_are_those_of_sd_notify(receiver: Receiver) -> None:
    notifier = ServiceNotifier(receiver.name)
    notifier.ready()
    assert receiver.take() == {"READY": "1"}
    before = read_clock()
    notifier.reloading()
    message = receiver.take()
    assert message.keys() == {"RELOADING", "MONOTONIC_USEC"} and message["RELOADING"] == "1"
    assert before <= int(message["MONOTONIC_USEC"]) <= read_clock()
    notifier.stopping()
    assert receiver.take() == {"STOPPING": "1"}


def test_without_an_address_no_socket_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(notify.socket, "socket", refuse)
    notifier = ServiceNotifier("")
    notifier.ready()
    notifier.reloading()
    notifier.stopping()
    with pytest.raises(AssertionError):
        ServiceNotifier("/x").ready()


@pytest.mark.parametrize("name", ["/nowhere/notify", "@flyweight-no-such", "vsock:2:1", "/" * 500])
def test_a_message_that_cannot_be_delivered_is_dropped(name: str) -> None:
    ServiceNotifier(name).ready()


@pytest.mark.parametrize("receiver", ["path"], indirect=True)
def test_a_watchdog_is_served_while_the_loop_runs(receiver: Receiver) -> None:
    async def receive_three() -> None:
        ServiceNotifier(receiver.name, watchdog=0.02).keep_alive(asyncio.get_running_loop())
        for _ in range(3):
            assert await asyncio.to_thread(receiver.take) == {"WATCHDOG": "1"}

    asyncio.run(receive_three())


@pytest.mark.parametrize(
    ("period", "pid", "seconds"),
    [
        ("1500000", None, 1.5), ("1500000", "own", 1.5), ("1500000", "1", 0.0),
        (None, None, 0.0), ("soon", None, 0.0), ("-5", None, 0.0), ("9" * 40, None, 0.0),
    ],
)  # fmt: skip
def test_a_watchdog_is_served_if_it_is_this_processs(
    period: str | None, pid: str | None, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flyweight.config import read_service_manager

    for name, value in (("WATCHDOG_USEC", period), ("WATCHDOG_PID", pid), ("NOTIFY_SOCKET", "@x")):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, str(os.getpid()) if value == "own" else value)
    assert read_service_manager() == ("@x", seconds)
    monkeypatch.delenv("NOTIFY_SOCKET")
    assert read_service_manager()[0] == ""


# --- a server ---


def test_a_server_reports_ready_reloading_and_stopping(receiver: Receiver) -> None:
    with started("--shutdown-timeout", "100", NOTIFY_SOCKET=receiver.name, **SLOW) as server:
        assert receiver.take() == {"READY": "1"}
        assert server.get("/ready").status == 200
        before = read_clock()
        server.process.send_signal(signal.SIGHUP)
        message = receiver.take()
        assert message.pop("RELOADING") == "1"
        assert before <= int(message.pop("MONOTONIC_USEC")) <= read_clock()
        assert message == {}
        assert receiver.take() == {"READY": "1"}
        line = server.connection()
        body = {"prompt": "Once", "max_tokens": 60, "ignore_eos": True, "stream": True}
        line.request("POST", "/v1/completions", json.dumps(body), JSON)
        answer = line.getresponse()
        assert answer.readline().startswith(b"data: ")
        server.process.terminate()
        assert receiver.take() == {"STOPPING": "1"}
        assert answer.read().endswith(b"data: [DONE]\n\n")
        line.close()
        assert server.process.wait(WAIT) == 0


class KeyFile:
    """A file of keys for a server that reads it again."""

    def __init__(self, path: Path, *keys: str) -> None:
        self.path = path
        self.write(*keys)

    def write(self, *keys: str) -> None:
        self.path.write_text("".join(f"{key}\n" for key in ("# keys", *keys)))

    def reload(self, server: Running, event: str) -> str:
        """Sends SIGHUP; the log's line, once it is there."""
        seen = len(server.said)
        server.process.send_signal(signal.SIGHUP)
        server.until(lambda: any(f" {event} " in line for line in server.said[seen:]))
        return next(line for line in server.said[seen:] if f" {event} " in line)


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys", "first")


def status(server: Running, key: str) -> int:
    return server.get("/v1/models", Authorization=f"Bearer {key}").status


def cached(server: Running, key: str) -> int:
    """Tokens of the prompt that a client with this key finds in the prefix cache."""
    body = {"prompt": PROMPT, "max_tokens": 1}
    got = server.post("/v1/completions", body, Authorization=f"Bearer {key}").json
    found: int = got["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def test_sighup_replaces_the_keys_of_files(keys: KeyFile) -> None:
    with started("--api-key-file", str(keys.path), "--api-key", "fixed") as server:
        assert cached(server, "first") == 0 < cached(server, "first")
        keys.write("second", "third")
        assert status(server, "second") == 401  # files are read when the signal comes
        assert keys.reload(server, "keys_reloaded").endswith(" accepted=3\n")
        found = {key: status(server, key) for key in ("first", "second", "third", "fixed", "")}
        assert found == {"first": 401, "second": 200, "third": 200, "fixed": 200, "": 401}
        assert cached(server, "second") == 0  # nothing of another key's, although it was one key
        rows = server.get("/v1/engine/effective", Authorization="Bearer fixed").json["features"]
        (row,) = [row for row in rows if row["feature"] == "API key"]
        assert row["reason"] == "1 accepted and those in --api-key-file, read again on SIGHUP"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, KeyFile]]:
    keys = KeyFile(tmp_path_factory.mktemp("locked") / "keys", "first")
    with started("--api-key-file", str(keys.path)) as server:
        yield server, keys


@pytest.mark.parametrize("content", [None, b"", b"# none\n", b"\xff\xfe", b"k\n" * (1 << 20)])
def test_a_key_file_that_cannot_be_used_changes_nothing(
    locked: tuple[Running, KeyFile], content: bytes | None
) -> None:
    server, keys = locked
    keys.path.unlink(missing_ok=True)
    if content is not None:
        keys.path.write_bytes(content)
    assert "--api-key-file" in keys.reload(server, "keys_unchanged")
    assert not any(" keys_reloaded " in line for line in server.said)
    assert status(server, "first") == 200 and status(server, "k") == 401


def test_a_request_whose_key_is_removed_is_finished(keys: KeyFile) -> None:
    with started("--api-key-file", str(keys.path), **SLOW) as server:
        line = server.connection()
        body = {"prompt": "Once", "max_tokens": 60, "ignore_eos": True, "stream": True}
        head = {**JSON, "authorization": "Bearer first"}
        line.request("POST", "/v1/completions", json.dumps(body), head)
        answer = line.getresponse()
        assert answer.status == 200 and answer.readline().startswith(b"data: ")
        keys.write("second")
        keys.reload(server, "keys_reloaded")
        assert status(server, "first") == 401
        assert answer.read().endswith(b"data: [DONE]\n\n")
        line.close()


def test_sighup_to_the_group_leaves_the_engine_running(keys: KeyFile) -> None:
    settings = {"key_files": [str(keys.path)]}
    with served(server=settings, before=os.setpgrp) as server:
        form = {"prompt": "Once", "max_tokens": 1, "structured_outputs": {"regex": "[a-z]{3}"}}
        ask = {"Authorization": "Bearer first"}
        assert server.post("/v1/completions", form, **ask).status == 200
        members = list_family(server.process.pid)
        assert len(members) == 3  # with the one that tries grammars
        seen = len(server.said)
        os.killpg(server.process.pid, signal.SIGHUP)
        server.until(lambda: any(" keys_reloaded " in line for line in server.said[seen:]))
        assert server.post("/v1/completions", form, **ask).status == 200
        assert all(one.alive for one in members)


def test_without_key_files_sighup_ends_the_server() -> None:
    """As where a terminal closes."""
    with started() as server:
        members = list_family(server.process.pid)
        assert server.stop(signal.SIGHUP) == -signal.SIGHUP
        server.until(lambda: not any(one.alive for one in members))


@pytest.mark.parametrize("receiver", ["path"], indirect=True)
def test_sighup_while_the_model_loads(receiver: Receiver, keys: KeyFile) -> None:
    """The engine's process is held still, so that there is such a while."""
    process = subprocess.Popen(
        [sys.executable, *SERVE, "--port", "0", "--api-key-file", str(keys.path)],
        stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
        env={**os.environ, "NOTIFY_SOCKET": receiver.name},
    )  # fmt: skip
    server = Running(process, 0)
    try:
        # held still before it runs what it is to be, it would hold its parent still as well
        server.until(lambda: any(is_engine(one.pid) for one in list_family(process.pid)))
        engine = server.worker
        os.kill(engine, signal.SIGSTOP)
        server.until(lambda: catches(process.pid, signal.SIGHUP))
        keys.write("second")
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None
        assert any(" keys_reloaded accepted=1" in line for line in process.stderr)
        os.kill(engine, signal.SIGCONT)
        assert receiver.take() == {"READY": "1"}  # and no RELOADING before it
        ready = next(line for line in process.stderr if " on http://" in line)
        server.port = int(ready.rpartition(":")[2])
        assert (status(server, "first"), status(server, "second")) == (401, 200)
    finally:
        process.kill()
        process.wait(WAIT)


def is_engine(pid: int) -> bool:
    return b"flyweight.server.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler of its own for a signal."""
    text = Path(f"/proc/{pid}/status").read_text()
    (mask,) = re.findall(r"^SigCgt:\s*([0-9a-f]+)$", text, re.M)
    return bool(int(mask, 16) >> (number - 1) & 1)
