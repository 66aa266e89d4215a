"""Servers on hosts of the tests (`hosts`): reached over HTTP from within their host, and nodes that
serve no HTTP.
"""

import http.client
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hosts import Host
from http_server import SEED, SERVE, WAIT, Running, running


@dataclass
class HostServer(Running):
    """A server that listens on the loopback of its host."""

    host: Host | None = None

    def connection(self) -> http.client.HTTPConnection:
        assert self.host is not None
        line = super().connection()
        with self.host.entered():
            line.connect()
        return line


@contextmanager
def serving(
    host: Host, *words: str, command: Sequence[str] = SERVE, **environment: str
) -> Iterator[HostServer]:
    """`flyweight serve` on a host, once it takes requests."""
    whole = [*command, "--port", "0", *SEED, *words]
    with ExitStack() as stack:
        with host.entered():
            server = stack.enter_context(running(whole, environment, fresh=True))
        yield HostServer(server.process, server.port, server.said, host=host)


@dataclass
class Node:
    """A process on a host that serves no HTTP, and what it says."""

    process: "subprocess.Popen[str]"
    said: list[str] = field(default_factory=list)

    def wait(self) -> tuple[int, str]:
        """Its exit code, and its last line."""
        code = self.process.wait(WAIT)
        self.reader.join(WAIT)
        return code, self.said[-1].rstrip("\n") if self.said else ""

    def read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            self.said.extend(lines)

    def __post_init__(self) -> None:
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()


@contextmanager
def computing(
    host: Host, *words: str, command: Sequence[str] = SERVE, **environment: str
) -> Iterator[Node]:
    """A command on a host; it is ended with the block."""
    process = host.run(
        [sys.executable, *command, *words], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        text=True, env={**os.environ, **environment},
    )  # fmt: skip
    node = Node(process)
    try:
        yield node
    finally:
        process.kill()
        node.wait()


def write_secret(path: Path, secret: bytes = b"s" * 32) -> Path:
    """A file that only this user may read."""
    path.write_bytes(secret)
    path.chmod(0o600)
    return path
