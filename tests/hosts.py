"""Hosts for the tests: network namespaces with addresses of their own, joined by a bridge.

A host has its own interfaces, addresses and ports; files and processes are those of this machine.
The bridge is in a namespace too, so the machine's own network is not touched.  Links can be cut,
slowed and restored.

Invariant: a namespace lives as long as its process, which ends when this one does.  So nothing is
left behind, however a test ends.
"""

import ctypes
import os
import select
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

NEW_NET = 0x40000000  # CLONE_NEWNET
NETWORK = "10.77.0"
SWITCH = "switch"
HELD = "echo; read line"  # a shell that waits for the end of its standard input
BURST, LATENCY = "16kb", "100ms"  # of a slow link: bytes sent at once, and the longest queue
LIBC = ctypes.CDLL(None, use_errno=True)


class Namespace:
    """A network namespace, and the process that holds it."""

    def __init__(self) -> None:
        self._holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", HELD],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self._holder.stdout is not None and self._holder.stderr is not None
        if not self._holder.stdout.readline():
            raise PermissionError(self._holder.stderr.read().decode().strip())
        self.path = Path(f"/proc/{self._holder.pid}/ns/net")
        self.pid = self._holder.pid

    @contextmanager
    def entered(self) -> Iterator[None]:
        """What this thread starts meanwhile, and sockets that it makes, are in the namespace.  A
        child process enters so, and not before its program begins: a fork while gRPC has threads
        can end the child.
        """
        own = Path(f"/proc/self/task/{threading.get_native_id()}/ns/net")
        with own.open() as before:
            _enter(self.path)
            try:
                yield
            finally:
                _set(before.fileno())

    def call(self, *words: str) -> str:
        """What a command in the namespace writes.  Raises `PermissionError` where it fails."""
        with self.entered():
            done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            raise PermissionError(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    @property
    def pids(self) -> list[int]:
        """The processes in the namespace, without the one that holds it."""
        own, found = os.stat(self.path).st_ino, []
        for one in Path("/proc").iterdir():
            with suppress(OSError):
                if one.name.isdigit() and os.stat(one / "ns/net").st_ino == own:
                    found.append(int(one.name))
        return [pid for pid in found if pid not in (self.pid, os.getpid())]

    def kill_all(self) -> None:
        """Ends all processes of the namespace at once, as a loss of power does."""
        while pids := self.pids:  # those may have started more
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in pids:
                _wait_for(pid)

    def close(self) -> None:
        self.kill_all()
        self._holder.communicate()


class Host(Namespace):
    """A namespace with an `address`, connected to the bridge in `switch`."""

    def __init__(self, switch: Namespace, number: int) -> None:
        super().__init__()
        self.switch, self.address, self._port = switch, f"{NETWORK}.{number}", f"port{number}"

    def connect_link(self) -> None:
        """Gives the host its address and its link, once."""
        pair = ("ip", "link", "add", self._port, "type", "veth", "peer", "name", "eth0")
        self.switch.call(*pair, "netns", str(self.pid))
        self.switch.call("ip", "link", "set", self._port, "master", SWITCH, "up")
        self.call("ip", "link", "set", "lo", "up")
        self.call("ip", "addr", "add", f"{self.address}/24", "dev", "eth0")
        self.call("ip", "link", "set", "eth0", "up")

    def run(self, words: Sequence[str], **more: Any) -> "subprocess.Popen[Any]":
        """Starts a command on the host."""
        with self.entered():
            return subprocess.Popen(words, **more)

    def connect(self, port: int, timeout: float) -> socket.socket:
        """A connection from the host to a server on it."""
        with self.entered():
            return socket.create_connection((self.address, port), timeout)

    # --- its link ---

    def cut(self) -> None:
        """Drops all that is sent to and from the host.  Neither side is told."""
        self.switch.call("ip", "link", "set", self._port, "nomaster")

    def slow(self, rate: str) -> None:
        """Bounds the link to a rate in each direction, as `tc` writes it: 1mbit.  Skips the test
        where this kernel cannot.
        """
        shape = ("root", "tbf", "rate", rate, "burst", BURST, "latency", LATENCY)
        try:
            self.switch.call("tc", "qdisc", "replace", "dev", self._port, *shape)
            self.call("tc", "qdisc", "replace", "dev", "eth0", *shape)
        except PermissionError as refused:
            pytest.skip(f"this kernel cannot slow a link: {refused}")

    def restore(self) -> None:
        """Makes the link whole and fast again."""
        self.switch.call("ip", "link", "set", self._port, "master", SWITCH)
        for place, device in ((self.switch, self._port), (self, "eth0")):
            with suppress(PermissionError):  # it was not slow
                place.call("tc", "qdisc", "del", "dev", device, "root")


@contextmanager
def make_hosts(count: int) -> Iterator[list[Host]]:
    """Hosts on one network.  Skips the test where this process may not make them."""
    missing = [name for name in ("ip", "tc", "unshare") if not shutil.which(name)]
    if missing:
        pytest.skip(f"no hosts can be made: {', '.join(missing)} of iproute2 or util-linux missing")
    with ExitStack() as made:
        try:
            switch = made.enter_context(closing(Namespace()))
            switch.call("ip", "link", "add", SWITCH, "type", "bridge")
            switch.call("ip", "link", "set", SWITCH, "up")
            hosts = [made.enter_context(closing(Host(switch, n + 1))) for n in range(count)]
            for host in hosts:
                host.connect_link()
        except PermissionError as refused:
            pytest.skip(f"no hosts can be made: {refused}")
        yield hosts


def _wait_for(pid: int) -> None:
    """Waits until a process has ended, be it a child of this one or not."""
    with suppress(ProcessLookupError):
        file = os.pidfd_open(pid)
        select.select([file], [], [])
        os.close(file)


def _enter(path: Path) -> None:
    with path.open() as file:
        _set(file.fileno())


def _set(file: int) -> None:
    if LIBC.setns(file, NEW_NET):
        raise OSError(ctypes.get_errno(), "a network namespace cannot be entered")
