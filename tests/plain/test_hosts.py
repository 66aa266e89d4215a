"""The hosts of the tests: each with its own address and ports, and links that fail as told."""

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hosts import Host, make_hosts

PORT = 4000  # the same on every host
SOON, LATE = 0.3, 30.0  # seconds
ECHO = """
import socket
line = socket.create_server(("", 4000))
print(flush=True)
while True:
    one, _ = line.accept()
    while part := one.recv(65536):
        one.sendall(part)
"""


@contextmanager
def serve_echo(host: Host) -> Iterator["subprocess.Popen[bytes]"]:
    """A server on a host that sends back what it gets."""
    with host.run([sys.executable, "-c", ECHO], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None and server.stdout.readline()
        yield server
        server.kill()


def is_answered(line: socket.socket, seconds: float) -> bool:
    line.send(b"?")
    return bool(select.select([line], [], [], seconds)[0]) and line.recv(1) == b"?"


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    with make_hosts(2) as made:
        yield made


def call(source: Host, target: Host) -> socket.socket:
    with source.entered():
        return socket.create_connection((target.address, PORT), LATE)


def test_hosts_have_ports_of_their_own(hosts: list[Host]) -> None:
    first, second = hosts
    with serve_echo(first), serve_echo(second), call(first, second) as line:
        assert line.getpeername() == (second.address, PORT)
        assert line.getsockname()[0] == first.address
        assert is_answered(line, LATE)
    spaces = [os.stat(path).st_ino for path in (first.path, second.path, Path("/proc/self/ns/net"))]
    assert len(set(spaces)) == 3


def test_a_cut_link_is_silent_until_it_is_restored(hosts: list[Host]) -> None:
    first, second = hosts
    with serve_echo(second), call(first, second) as line:
        assert is_answered(line, LATE)
        second.cut()
        assert not is_answered(line, SOON)
        second.restore()
        assert is_answered(line, LATE)


def test_a_slow_link_lets_through_what_its_rate_allows(hosts: list[Host]) -> None:
    first, second = hosts
    with serve_echo(second), call(first, second) as line:
        second.slow("80kbit")  # 10 kB a second
        line.setblocking(False)
        sent = line.send(bytes(1 << 18))
        assert sent > 1 << 15
        select.select([], [], [], SOON)
        line.setblocking(True)
        line.settimeout(SOON)
        assert len(line.recv(sent)) < sent // 2
        second.restore()
        line.settimeout(LATE)
        assert line.recv(1)


def test_a_host_that_is_ended_leaves_no_process(hosts: list[Host]) -> None:
    _, second = hosts
    with serve_echo(second) as server:
        assert server.pid in second.pids
        second.kill_all()
        assert server.wait(LATE) and second.pids == []


def test_nothing_is_left_of_hosts() -> None:
    with make_hosts(1) as (one,):
        command = [sys.executable, "-c", "input()"]
        child = one.run(command, stdin=subprocess.PIPE)
        holder = one.pid
    assert child.wait(LATE) and child.stdin is not None
    child.stdin.close()
    with pytest.raises(ProcessLookupError):
        os.kill(holder, 0)
