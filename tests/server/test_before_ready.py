"""What a server says before it has its model."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from flyweight.server import pipe
from flyweight.server.apis.routes import find_error_format
from flyweight.server.lifecycle.start import listen
from flyweight.server.transport.http_server import LOADING, answer_while_loading, parse_path
from flyweight.server.worker import __main__ as worker
from http_server import WAIT, Running

SCRIPT = """
import json, sys, time
sys.path.insert(0, {tests!r})
from flyweight.server.lifecycle import loading as life
from serve_settings import ModelOptions, Quiet, Settings, ServerSettings, SettingRequests, serve
loaded = life.describe
def slowly(*given):
    sys.stdin.readline()
    return loaded(*given)
life.describe = slowly
models = [ModelOptions(Settings.of())]
sys.exit(serve(models, ServerSettings(port={port}), Quiet(), SettingRequests()))
"""

POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{}"


def free() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_everything_is_a_503_until_it_is_ready() -> None:
    port = free()
    script = SCRIPT.format(tests=str(Path(__file__).parents[1]), port=port)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, env=dict(os.environ),
    )  # fmt: skip
    server = Running(process, port)
    assert process.stdin is not None
    try:

        def there() -> bool:
            try:
                return server.get("/health").status == 503
            except OSError:
                return False

        server.until(there)
        for path in ("/health", "/ready", "/v1/models", "/nowhere"):
            got = server.get(path)
            assert got.status == 503 and got.json["error"]["code"] == "loading"
            assert int(got.headers["retry-after"]) >= 1
        assert server.get("/api/tags?x=1").json == {"error": LOADING.message}
        said = server.post("/v1/messages", {}).json["error"]
        assert said == {"type": "overloaded_error", "message": LOADING.message}
        assert server.post("/v1/completions", {"prompt": "x" * 200_000}).status == 503
        process.stdin.write("\n")
        process.stdin.flush()
        server.until(lambda: server.get("/ready").status == 200)
        assert server.post("/v1/completions", {"prompt": "Once", "max_tokens": 1}).status == 200
        assert server.stop() == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(WAIT)
        process.stdin.close()


@pytest.mark.parametrize(
    ("head", "path"),
    [
        (b"GET /api/tags HTTP/1.1\r\nHost: x\r\n\r\n", "/api/tags"),
        (b"POST /api/chat?a=/b HTTP/1.1\r\n\r\n", "/api/chat"),
        (b"GET /\xff HTTP/1.1\r\n", "/\xff"), (b"\r\n\r\n", ""), (b"GET\r\n\r\n", ""),
        (b" " * 70_000, ""),
    ],
)  # fmt: skip
def test_a_path_is_read_out_of_any_head(head: bytes, path: str) -> None:
    assert parse_path(head) == path


def test_the_port_stays_open_for_the_next_server() -> None:
    sock = listen("127.0.0.1", 0)

    async def work() -> None:
        early = await answer_while_loading(sock, find_error_format)
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        writer.write(POST)  # its body is not whole: answered all the same
        assert (await reader.readline()).startswith(b"HTTP/1.1 503 ")
        writer.close()
        early.close()
        later = asyncio.open_connection(*sock.getsockname())
        _, writer = await later  # it waits to be accepted
        sock.setblocking(True)
        sock.accept()[0].close()
        writer.close()

    try:
        asyncio.run(work())
    finally:
        sock.close()


def test_an_engine_that_refuses_its_model_after_the_front_end_has_gone_says_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Both read the model; the front end may refuse it first, print its line and close the pipe."""
    ours, theirs = socket.socketpair()
    given = {"model": str(tmp_path / "nothing.gguf")}
    ours.sendall(pipe.encode_frame(pipe.EngineSetup(given, 0.2)))
    ours.close()
    with theirs:
        worker.serve(theirs)
    assert capfd.readouterr() == ("", "")


def test_a_refused_model_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    words = [sys.executable, "-m", "flyweight.cli.main", "serve", str(tmp_path), "--port", "0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
