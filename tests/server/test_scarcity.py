"""Too little of what a server lives on: room on disk, shared memory, memory, open files."""

import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from json import dumps
from pathlib import Path

import pytest

from http_server import SERVE, WAIT, Running, served
from memory_group import MemoryGroup

GOOD = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "logprobs": 3}
FAULT = {"FLYWEIGHT_TESTING": "1", "FLYWEIGHT_FAULT": "raise:step=0,request=1"}
SCHEMA = {"type": "object", "properties": {"cat": {"type": "boolean"}}, "required": ["cat"]}
BOUND = {**GOOD, "structured_outputs": {"json": SCHEMA}, "max_tokens": 40}


# --- room on disk ---

TINY = 'mount -t tmpfs -o size=64k none "$0" && mount -t tmpfs -o size=4k none /dev/shm && '
FILL = "cat /dev/zero > {}/fill; "


@contextmanager
def logging_to(
    folder: Path, words: list[str], port: int, **variables: str
) -> Iterator[tuple[Running, Path]]:
    """A server whose log and cache are in a folder, and the folder as the server sees it."""
    environment = {**os.environ, **FAULT, "FLYWEIGHT_CACHE": str(folder), **variables}
    environment.pop("FLYWEIGHT_CACHE_SIZE", None)
    command = [sys.executable, *SERVE, "--port", str(port)]
    process = subprocess.Popen(
        [*words, *command], stdin=subprocess.DEVNULL, text=True, env=environment
    )
    server = Running(process, port)
    try:
        server.until(lambda: answers(server))
        yield server, Path(f"/proc/{process.pid}/root{folder}")
    finally:
        process.kill()
        process.wait(WAIT)


def answers(server: Running) -> bool:
    assert server.process.poll() is None
    with suppress(OSError):
        return server.get("/ready").status == 200
    return False


def a_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def in_a_namespace(script: str, folder: Path) -> list[str]:
    """The words before a command that has a small disk at `folder`, after a script."""
    unshare = shutil.which("unshare")
    own = [unshare or "unshare", "-Urm", "sh", "-c"]
    if unshare is None or subprocess.run([*own, f"{TINY} true", str(folder)]).returncode:
        pytest.skip("this user may mount nothing")
    return [*own, TINY + script + 'exec "$@" 2>> "$0/log"', str(folder)]


def unharmed(server: Running, expected: object) -> None:
    """One request after another, while nothing can be written."""
    worker = server.worker
    for _ in range(3):
        assert server.post("/v1/completions", GOOD).json["choices"] == expected
        assert server.get(f"/{'x' * 500}").status == 404  # long lines: what is held back is full
    assert server.post("/v1/completions", BOUND).status == 200
    assert server.post("/v1/completions", {**GOOD, "temperature": -1}).status == 400
    assert server.get("/health").status == 200 and server.worker == worker


def logged(log: Path) -> int:
    """Lines of good requests."""
    return len(re.findall(r"path=/v1/completions status=200", log.read_text(errors="replace")))


def test_a_disk_that_fills_up_is_no_reason_to_stop(server: Running, tmp_path: Path) -> None:
    """Log and cache on it; a step fails meanwhile.  What cannot be logged is counted."""
    expected = server.post("/v1/completions", GOOD).json["choices"]
    words = in_a_namespace(FILL.format("/dev/shm"), tmp_path)
    with logging_to(tmp_path, words, a_port(), TMPDIR="/dev/shm") as (own, folder):
        assert own.post("/v1/completions", GOOD).json["choices"] == expected
        own.until(lambda: logged(folder / "log") == 1)
        with suppress(OSError), (folder / "fill").open("wb", buffering=0) as fill:
            while True:
                fill.write(b"x")
        worker = own.worker
        assert own.post("/v1/completions", GOOD).status == 500  # the step that was to fail
        assert own.worker == worker, "the engine ended because it could not log"
        for _ in range(6):
            unharmed(own, expected)
        (folder / "fill").unlink()
        before = logged(folder / "log")
        own.post("/v1/completions", GOOD)
        own.until(lambda: logged(folder / "log") > before)
        own.post("/v1/completions", GOOD)
        own.until(lambda: "log_lost lines=" in (folder / "log").read_text(errors="replace"))
        assert own.stop() == 0


def test_a_disk_that_is_full_is_no_reason_not_to_start(server: Running, tmp_path: Path) -> None:
    expected = server.post("/v1/completions", GOOD).json["choices"]
    words = in_a_namespace((FILL * 2).format("/dev/shm", '"$0"'), tmp_path)
    with logging_to(tmp_path, words, a_port(), TMPDIR="/dev/shm") as (own, _):
        assert own.post("/v1/completions", GOOD).json["choices"] == expected
        assert own.post("/v1/completions", GOOD).status == 500
        unharmed(own, expected)
        assert own.stop() == 0


# --- memory ---


def refused(before: Callable[[], None] | None = None, **engine: object) -> str:
    """What a server says that does not start."""
    script = Path(__file__).parents[1] / "serve_settings.py"
    given = dumps({"settings": engine, "server": {"port": 0}})
    ended = subprocess.run(
        [sys.executable, str(script), given],
        capture_output=True, text=True, timeout=WAIT, preexec_fn=before,
    )  # fmt: skip
    assert ended.returncode > 0, ended  # and no signal
    assert "Traceback" not in ended.stderr
    return ended.stderr


@pytest.mark.parametrize("room", [40, 90])  # a process takes 39 MiB before it looks
def test_a_start_in_too_little_memory_is_refused(room: int) -> None:
    """The system ends no process for it; the refusal says how much is needed."""
    with MemoryGroup(room << 20) as group:
        said = refused(group.enter)
        assert re.search(r"error: .*memory.* MiB", said), said
        assert group.killed() == 0


def test_a_limit_that_is_too_low_is_refused() -> None:
    assert "memory" in refused(memory_limit="60MiB")


def test_memory_has_a_ceiling_under_load() -> None:
    """Every block in use, and requests that wait for blocks: still nobody is killed.  For a
    constraint, another process starts: it may have to go, the engine may not.
    """
    with MemoryGroup(320 << 20) as group, served(before=group.enter) as server:
        worker = server.worker
        body = {**GOOD, "prompt": "a cat sat " * 160, "max_tokens": 4, "ignore_eos": True}

        def ask(number: int) -> int:
            return server.post("/v1/completions", {**body, "cache_salt": str(number)}).status

        with ThreadPoolExecutor(12) as pool:
            assert set(pool.map(ask, range(40))) <= {200, 429, 503}
        assert group.killed() == 0
        kv = server.get("/debug/kv").json
        assert kv["cached_blocks"] > 0.8 * kv["blocks"], "there was room"
        assert server.post("/v1/completions", BOUND).status in (200, 503)
        assert server.post("/v1/completions", GOOD).status == 200
        assert server.get("/health").status == 200 and server.worker == worker


# --- open files ---


def limited(files: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))


def another(server: Running, worker: int) -> bool:
    """Whether an engine has taken the place of one that is gone."""
    with suppress(ValueError):
        return server.worker != worker and server.get("/health").status == 200
    return False


def test_few_files_are_enough() -> None:
    """With 64 open files at most, a hundred clients come and go, and the server stays; it can
    start what it must next to them.
    """
    with served(before=limited(64)) as server:
        lines = []
        for _ in range(100):
            line = server.connection()
            line.connect()
            lines.append(line)
        assert server.get("/health").status == 200
        assert server.post("/v1/completions", BOUND).status == 200  # in a process of its own
        worker = server.worker
        os.kill(worker, signal.SIGKILL)
        server.until(lambda: another(server, worker))
        for line in lines:
            line.close()
        assert server.post("/v1/completions", GOOD).status == 200


def test_too_few_files_are_refused() -> None:
    assert "ulimit -n" in refused(limited(30))
