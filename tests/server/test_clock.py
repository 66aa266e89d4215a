"""The system's clock jumps by an hour: nothing that waits takes notice."""

import json
import re
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import flyweight
from http_server import WAIT, Running, served

SOURCE = Path(__file__).parents[1] / "wrong_clock.c"
STREAM = {"prompt": "Once", "max_tokens": 15, "ignore_eos": True, "stream": True}
LATE = {**STREAM, "max_tokens": 490, "stream": False}
HOUR = 3600
PATIENCE = {"header_timeout": 2.0, "request_timeout": 2.0, "shutdown_timeout": 60.0}
SLOW = {"FLYWEIGHT_TESTING": "1", "FLYWEIGHT_FAULT": "slow:ms=20"}


class Clock:
    """How wrong the clock of a server is."""

    def __init__(self, place: Path) -> None:
        self.file, self.shim = place / "wrong", place / "clock.so"
        self.jump(0)
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            pytest.skip("there is no C compiler to make a wrong clock with")
        words = ("-shared", "-fPIC", "-O1", "-o", str(self.shim), str(SOURCE))
        subprocess.run([compiler, *words], check=True, timeout=WAIT)

    def jump(self, seconds: int) -> None:
        with self.file.open("r+b" if self.file.exists() else "wb") as file:
            file.write(struct.pack("=q", seconds))

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.shim), "WRONG_CLOCK": str(self.file)}


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Clock:
    return Clock(tmp_path_factory.mktemp("clock"))


def events(server: Running) -> Iterator[bytes]:
    """Of a stream, as they come."""
    line = server.connection()
    line.request("POST", "/v1/completions", json.dumps(STREAM))
    yield from line.getresponse()
    line.close()


def shut_out(line: socket.socket) -> bool:
    """Waits until the server closes the connection."""
    line.settimeout(WAIT)  # far from an hour
    try:
        return line.recv(1) == b""
    except ConnectionError:
        return True


def test_a_jump_of_an_hour_changes_no_waiting(clock: Clock) -> None:
    """An answer, a deadline, a head that never ends and a drain, each with jumps within."""
    with served({}, PATIENCE, **SLOW, **clock.environment) as server, ThreadPoolExecutor(1) as pool:
        for jump in (-HOUR, HOUR):
            clock.jump(0)
            late = pool.submit(server.post, "/v1/completions", LATE)
            silent = socket.create_connection(("127.0.0.1", server.port), WAIT)
            silent.sendall(b"GET /hea")
            stream = events(server)
            assert next(stream).startswith(b"data: ")
            clock.jump(jump)
            assert [line for line in stream if line.strip()][-1] == b"data: [DONE]\n"
            got = late.result()
            assert got.status == 504 and got.json["error"]["code"] == "deadline"
            assert shut_out(silent)
            silent.close()
            found = server.post("/v1/completions", {**STREAM, "stream": False}).json
            assert abs(found["created"] - time.time() - jump) < HOUR / 2, "the clock did not jump"
            assert server.get("/health").status == 200
        stream = events(server)
        assert next(stream).startswith(b"data: ")
        server.process.send_signal(signal.SIGTERM)
        server.until(lambda: server.get("/ready").status == 503)
        clock.jump(0)
        assert next(stream)
        clock.jump(HOUR)
        assert [line for line in stream if line.strip()][-1] == b"data: [DONE]\n"
        assert server.process.wait(WAIT) == 0


# --- and nothing else that waits asks that clock ---

SHOWN = {  # where it is printed for a person
    "cli/hub.py",
    "cli/serve/detach.py",
    "eval/passports.py",
    "server/apis/ollama/handlers.py",
    "server/apis/ollama/models.py",
    "server/model_entry.py",
    "server/request_model.py",
    "server/observability/log.py",
    "server/observability/metrics.py",
    "server/observability/spans.py",
    "server/replicas/clocks.py",  # what clocks of several machines differ by
    "server/worker/hosted.py",
    "text/sandbox.py",
}
ASKS = re.compile(
    r"\btime\.(time|time_ns|localtime|strftime)\b|\bdatetime\.(now|utcnow|today)\b"
    r"|\bfrom time import (?!monotonic(, sleep)?\n)|\bCLOCK_REALTIME\b"
)


def test_the_systems_clock_is_only_shown() -> None:
    root = Path(flyweight.__file__).parent
    sources = [path for path in root.rglob("*.py") if "bench" not in path.parts]
    found = {str(path.relative_to(root)) for path in sources if ASKS.search(path.read_text())}
    assert found <= SHOWN, found - SHOWN
