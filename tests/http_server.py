"""Servers for the tests: real processes on free ports, used over HTTP."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from server_forker import ForkedProcess, fits

WAIT = 120.0  # seconds for anything that should take one
TAIL = 40  # lines of a log that a report shows
SERVE = ("-m", "flyweight.cli.main", "serve")
SEED = ("--seed", "7")
KEYLESS: dict[str, str] = {}
NOTHING: dict[str, Any] = {}
AnyProcess = subprocess.Popen[bytes] | ForkedProcess


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The data of server-sent events, `[DONE]` left out."""
        lines = [x for x in self.body.split(b"\n") if x.startswith(b"data: ")]
        found = [line.removeprefix(b"data: ") for line in lines]
        return [json.loads(one) for one in found if one != b"[DONE]"]


@dataclass
class Running:
    """A server under test."""

    process: AnyProcess
    port: int
    said: list[str] = field(default_factory=list)
    left: bool = False  # it ran until its test was over, which ended it

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] = KEYLESS
    ) -> Reply:
        line = self.connection()
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        line.request(method, path, raw, {"content-type": "application/json", **headers})
        got = line.getresponse()
        found = Reply(got.status, {k.lower(): v for k, v in got.getheaders()}, got.read())
        line.close()
        return found

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, headers=headers)

    def post(self, path: str, body: Any, **headers: str) -> Reply:
        return self.ask("POST", path, body, headers)

    @property
    def worker(self) -> int:
        """The process of the engine."""
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        named = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in found.split()}
        (worker,) = [pid for pid, words in named.items() if b"flyweight.server.worker" in words]
        return worker

    def raw(self, data: bytes, wait: float = WAIT) -> bytes:
        """What comes back for bytes until the server closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), wait) as line:
            with suppress(ConnectionError):
                line.sendall(data)
            found = b""
            with suppress(ConnectionError):
                while part := line.recv(1 << 16):
                    found += part
        return found

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The engine's process is stopped: what it computes cannot end before a test is done."""
        worker = self.worker
        os.kill(worker, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(worker, signal.SIGCONT)

    def until(self, holds: Callable[[], bool]) -> None:
        """Waits until something holds."""
        end = time.monotonic() + WAIT
        while not holds():
            assert time.monotonic() < end, "it never came true"
            time.sleep(0.02)

    def empty(self) -> bool:
        """Whether nobody holds a block."""
        return self.get("/debug/kv").json["sequences"] == []

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(WAIT)


def last_words(values: Iterable[object]) -> Iterator[tuple[str, str]]:
    """A headline and the end of the log of each server among some values, for a test's report."""
    servers = {id(value): value for value in values if isinstance(value, Running)}
    for server in servers.values():
        code = server.process.poll()
        lived = code is None or server.left
        state = "has not ended by itself" if lived else f"has ended with {code}"
        yield f"the server on port {server.port} {state}", "".join(server.said[-TAIL:])


def started(
    *words: str, command: Sequence[str] = SERVE, **environment: str
) -> AbstractContextManager[Running]:
    """`flyweight serve` with these words, once it takes requests: a test's draws are the same each
    time.  Another command has all its words.
    """
    seeded = SEED if command == SERVE else ()
    return running([*command, "--port", "0", *seeded, *words], environment)


def served(
    engine: Mapping[str, Any] = NOTHING,
    server: Mapping[str, Any] = NOTHING,
    before: Callable[[], None] | None = None,
    **environment: str,
) -> AbstractContextManager[Running]:
    """The server with these `Settings` and `ServerSettings`; `before` is called in its process."""
    given = json.dumps({"settings": {"seed": 7, **engine}, "server": {"port": 0, **server}})
    script = str(Path(__file__).parent / "serve_settings.py")
    return running([script, given], environment, before)


def start(
    command: Sequence[str], variables: Mapping[str, str], before: Callable[[], None] | None,
    *, fresh: bool = False,
) -> tuple[AnyProcess, TextIO]:  # fmt: skip
    """A process and what it says on stderr; a fork where that does the same, unless it has to be
    `fresh`: a child of this thread.
    """
    end, stderr = os.pipe()
    process: AnyProcess
    if before is None and not fresh and fits(command, variables):
        process = ForkedProcess(command, variables, stderr)
    else:
        process = subprocess.Popen(
            [sys.executable, *command],
            stderr=stderr,
            stdin=subprocess.DEVNULL,
            env=variables,
            preexec_fn=before,
        )
    os.close(stderr)
    return process, open(end, encoding="utf-8")


@contextmanager
def running(
    command: Sequence[str],
    environment: Mapping[str, str],
    before: Callable[[], None] | None = None,
    *,
    fresh: bool = False,
) -> Iterator[Running]:
    """A server that a script starts, once it has said where it is."""
    process, rest = start(command, {**os.environ, **environment}, before, fresh=fresh)
    said: list[str] = []
    port = None
    for line in rest:
        said.append(line)
        found = re.search(r"(?:^| on )(?:https?://\S+:(\d+)|unix:\S+)\s*$", line)
        if found:
            port = int(found[1] or 0)
            break
    if port is None:
        code = process.wait(WAIT)
        raise AssertionError(f"no server: it ended with {code} and said:\n{''.join(said)}")
    reader = threading.Thread(target=lambda: said.extend(rest), daemon=True)
    reader.start()
    server = Running(process, port, said)
    try:
        yield server
    finally:
        if process.poll() is None:
            server.left = True
            process.kill()
        process.wait(WAIT)
        reader.join(WAIT)
        rest.close()
