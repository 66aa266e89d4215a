"""Starts the engine process, and ends it.

Invariant: the process ends by itself when its pipe is closed, and is killed if it does not.
Standard library only: it is started before anything heavy is imported.
"""

import socket
import subprocess
import sys
from dataclasses import dataclass

LEAVING = 2.0  # seconds a process has to end by itself


@dataclass(slots=True)
class EngineProcess:
    """A process that waits for its first message."""

    process: "subprocess.Popen[bytes]"
    line: socket.socket

    @classmethod
    def spawn(cls) -> "EngineProcess":
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "flyweight.server.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        return cls(process, ours)

    def end(self) -> None:
        """Closes the pipe, and waits."""
        self.line.close()
        wait_or_kill(self.process)


def wait_or_kill(process: "subprocess.Popen[bytes]") -> None:
    """Waits for a process to end, and kills it after a while."""
    try:
        process.wait(LEAVING)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
