"""A process that has imported what a server needs and forks one for each request: a start of a
server then costs its model, not a second of imports.

It has one thread and reaps its children; their exit codes come through pipes.  What reads the
environment while it is imported has that of this process, so only variables that are read later may
differ (`fits`).  Starts of the real command are tested in server/test_starting.py.
"""

import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

READ_LATE = {
    "FLYWEIGHT_TESTING", "FLYWEIGHT_FAULT", "FLYWEIGHT_CACHE", "FLYWEIGHT_CACHE_SIZE",
    "FLYWEIGHT_DATA", "PYTEST_CURRENT_TEST",
}  # fmt: skip
MODULES = ("cli.main", "cli.serve.banner", "server.lifecycle.lifecycle", "server.lifecycle.start")
ASKED = 1 << 16  # bytes of a request, at most
Task = Callable[[], object]


class ForkedProcess:
    """What tests use of `subprocess.Popen`, of a grandchild."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], stderr: int) -> None:
        self.returncode: int | None = None
        self._end, code = os.pipe()
        request = json.dumps([list(words), {**environment}, os.getcwd()]).encode()
        line = forker().line
        socket.send_fds(line, [request], [stderr, code])
        os.close(code)
        self.pid = int(line.recv(20))

    def poll(self) -> int | None:
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return code

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._end], [], [], timeout)[0]:
            self.returncode = int(os.read(self._end, 20))
            os.close(self._end)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@dataclass(frozen=True)
class Forker:
    """This test process's forker, which ends when its line does."""

    process: "subprocess.Popen[bytes]"
    line: socket.socket
    environment: dict[str, str]


@cache
def forker() -> Forker:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        words = [sys.executable, "-P", __file__, str(theirs.fileno())]
        process = subprocess.Popen(words, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    return Forker(process, ours, dict(os.environ))


def fits(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a forked process would do what `python *words` does in this environment."""
    if words[:2] != ["-m", "flyweight.cli.main"] and Path(words[0]).name != "serve_settings.py":
        return False
    first = forker().environment
    return all(
        first.get(name) == environment.get(name)
        for name in (first.keys() | environment.keys()) - READ_LATE
    )


def run_forker(line: socket.socket) -> Task | None:
    """Forks until the line ends; in a child, what that is to do."""
    children: dict[int, tuple[int, int]] = {}  # id and pipe for the exit code, by pidfd
    while True:
        for ready in select.select([line, *children], [], [])[0]:
            if ready is line:
                request, fds, _, _ = socket.recv_fds(line, ASKED, 2)
                if not request:
                    return None
                stderr, code = fds
                pid = os.fork()
                if pid == 0:
                    line.close()
                    for pidfd, (_, pipe) in children.items():
                        os.close(pidfd)
                        os.close(pipe)
                    os.close(code)
                    return prepare(request, stderr)
                os.close(stderr)
                children[os.pidfd_open(pid)] = pid, code
                line.send(str(pid).encode())
            else:
                pid, code = children.pop(ready)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with suppress(BrokenPipeError):
                    os.write(code, str(status).encode())
                os.close(code)
                os.close(ready)


def prepare(request: bytes, stderr: int) -> Task:
    """Gives a child its words, environment, folder and stderr."""
    words, environment, folder = json.loads(request)
    os.dup2(stderr, 2)
    os.close(stderr)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if words[0] == "-m":
        sys.argv = [words[1], *words[2:]]
        return lambda: sys.exit(sys.modules[words[1]].main())
    sys.argv = list(words)
    return lambda: runpy.run_path(words[0], run_name="__main__")


def main() -> None:
    for name in MODULES:
        __import__(f"flyweight.{name}")
    task = run_forker(socket.socket(fileno=int(sys.argv[1])))
    if task is not None:
        task()


if __name__ == "__main__":
    main()
