"""An engine process that hangs ends when its API server is gone, and only then."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue

import pytest

from flyweight.server import pipe
from flyweight.server.lifecycle.running import ProcessInfo, get_start
from flyweight.server.worker.loop import READ
from flyweight.server.worker.watchdog import start_watchdog
from flyweight.types import Request, SamplingParams
from http_server import WAIT

# Stands in for an API server: starts an engine process, and holds the server's end of its pipe.
PARENT = """
import subprocess, sys, time
line, grace = sys.argv[1:]
words = [sys.executable, "-P", "-m", "flyweight.server.worker", line, grace]
print(subprocess.Popen(words, pass_fds=[int(line)]).pid, flush=True)
time.sleep(3600)
"""
SAY = """
import sys
from flyweight.server.worker import watchdog
watchdog.WRITING = float(sys.argv[1])
watchdog.end_process("it hangs")
"""
HANG = "slow:ms=999999"  # the first step takes longer than any test
SMALL = {"max_num_seqs": 1, "threads": 1, "max_model_len": 64}
ASKED = Request("it", tuple(range(20, 40)), SamplingParams(temperature=0), max_tokens=2)
GRACE = 0.5


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The ends of the server and of the engine."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_nothing_happens_while_the_other_end_is_open(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    ended = SimpleQueue[str]()
    ours.sendall(b"unread")
    thread = start_watchdog(theirs, 0.01, ended.put)
    ours.sendall(b" data")
    with pytest.raises(Empty):
        ended.get(timeout=0.5)
    assert thread.is_alive() and theirs.recv(READ) == b"unread data"
    ours.close()
    assert "is gone" in ended.get(timeout=WAIT)


@pytest.mark.parametrize("how", ["closed", "shut by the server", "shut by the engine"])
def test_the_end_comes_after_the_grace(pair: tuple[socket.socket, socket.socket], how: str) -> None:
    """Also where bytes are left unread."""
    ours, theirs = pair
    ended = SimpleQueue[str]()
    start_watchdog(theirs, GRACE, ended.put)
    ours.sendall(b"unread")
    began = time.monotonic()
    if how == "closed":
        ours.close()
    elif how == "shut by the server":
        ours.shutdown(socket.SHUT_WR)
    else:
        theirs.shutdown(socket.SHUT_RDWR)
    assert "within 0.5 s" in ended.get(timeout=WAIT)
    assert time.monotonic() - began >= GRACE


@pytest.mark.parametrize("read", [True, False])
def test_the_process_ends_with_and_without_a_reader_of_its_line(read: bool) -> None:
    end, stderr = os.pipe()
    if not read:
        os.set_blocking(stderr, False)
        with suppress(BlockingIOError):
            while True:
                os.write(stderr, bytes(4096))
        os.set_blocking(stderr, True)
    words = [sys.executable, "-c", SAY, str(WAIT if read else GRACE)]
    process = subprocess.Popen(words, stderr=stderr)
    os.close(stderr)
    try:
        assert process.wait(WAIT) == (1 if read else -signal.SIGALRM)
        assert not read or os.read(end, READ) == b"flyweight: it hangs\n"
    finally:
        process.kill()
        os.close(end)


def begin_step(ours: socket.socket, fault: str) -> None:
    """Lets an engine process load a model, and begin a step."""
    ours.settimeout(WAIT)
    ours.sendall(pipe.encode_frame(pipe.EngineSetup(SMALL, 0.2, fault=fault)))
    frames, found = pipe.PipeFrames(pipe.ToFront), list[object]()
    while not any(isinstance(one, pipe.Ready) for one in found):
        found += [message for _, message in frames.push(ours.recv(READ))]
    # Read together, so that the step follows the answer: nothing looks at the pipe in between.
    question = pipe.EngineQuestion(1, "ping")
    ours.sendall(pipe.encode_frame(pipe.Submit.of(ASKED)) + pipe.encode_frame(question))
    while not any(isinstance(one, pipe.EngineAnswer) for one in found):
        found += [message for _, message in frames.push(ours.recv(READ))]


@pytest.mark.parametrize("hangs", [True, False])
def test_an_engine_process_ends_after_its_server_was_killed(
    pair: tuple[socket.socket, socket.socket], hangs: bool
) -> None:
    """One whose step hangs, by the watchdog; another by itself, long before the grace is over."""
    ours, theirs = pair
    ends = [one.fileno() for one in pair]
    words = [sys.executable, "-c", PARENT, str(ends[1]), str(GRACE if hangs else 10 * WAIT)]
    out = subprocess.PIPE
    server = subprocess.Popen(words, pass_fds=ends, stdout=out, stderr=out, text=True)
    assert server.stdout is not None
    pid = int(server.stdout.readline())
    engine = ProcessInfo(pid, get_start(pid) or 0)
    try:
        theirs.close()
        begin_step(ours, HANG if hangs else "")
        ours.close()
        server.kill()
        _, said = server.communicate(timeout=WAIT)  # it holds stderr until it ends
        end = time.monotonic() + WAIT
        while engine.alive and time.monotonic() < end:
            time.sleep(0.02)
        assert not engine.alive
        assert said.startswith("flyweight: the API server is gone") if hangs else said == ""
    finally:
        server.kill()
        if engine.alive:
            os.kill(pid, signal.SIGKILL)
