"""A server of a model on this machine, in a process of its own, while a block lasts.

Invariant: the process is gone when the block ends, however it ends; why it did not start is raised
in its own words.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO

from flyweight.bench.serving.connection import ServerAddress
from flyweight.config import Settings, extend_environment
from flyweight.errors import EngineError
from flyweight.server.lifecycle.running import list_family
from flyweight.server.pipe import to_portable
from flyweight.validation.untrusted import one_line

PATIENCE = 10  # seconds for a server to end by itself


@dataclass(frozen=True, slots=True)
class LocalServer:
    """Where it is, and its processes."""

    place: ServerAddress
    pids: tuple[int, ...] = ()


@contextmanager
def serve_locally(settings: Settings) -> Iterator[LocalServer]:
    """The server, once it takes requests.  Raises `EngineError` where it does not come up."""
    given = to_portable({name: getattr(settings, name) for name in settings.__slots__})
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "flyweight.planning.served_child", json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=extend_environment({}),
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                process.wait()
                raise EngineError(f"the server did not start: {read_last_line(log)}")
            pids = tuple(one.pid for one in list_family(process.pid))
            yield LocalServer(ServerAddress.of(f"http://127.0.0.1:{int(line)}"), pids)
        finally:
            end_process(process)


def end_process(process: "subprocess.Popen[bytes]") -> None:
    """A server ends when its stdin does, or is killed."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def read_last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode("utf-8", "replace").strip().splitlines() or ["it said nothing"]
    return one_line(lines[-1], 300)
