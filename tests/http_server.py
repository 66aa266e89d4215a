"""Servers for the tests: real processes on free ports, asked over HTTP."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

WAIT = 120.0  # seconds for anything that should take one
SERVE = ("-m", "flyweight.cli.main", "serve")
KEYLESS: dict[str, str] = {}


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

    process: subprocess.Popen[str]
    port: int
    said: list[str] = field(default_factory=list)

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

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(WAIT)


@contextmanager
def started(*words: str, command: Sequence[str] = SERVE, **environment: str) -> Iterator[Running]:
    """`flyweight serve` with these words, once it takes requests."""
    process = subprocess.Popen(
        [sys.executable, *command, "--port", "0", *words],
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **environment},
    )
    assert process.stderr is not None
    said: list[str] = []
    port = None
    for line in process.stderr:
        said.append(line)
        found = re.search(r"http://\S+:(\d+)", line)
        if found:
            port = int(found[1])
            break
    if port is None:
        process.wait(WAIT)
        raise AssertionError("".join(said))
    rest = process.stderr
    reader = threading.Thread(target=lambda: said.extend(rest), daemon=True)
    reader.start()
    try:
        yield Running(process, port, said)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(WAIT)
        reader.join(WAIT)
        rest.close()
