"""The engine process: loads the engines that messages describe, and runs their steps.

Its arguments are the descriptor of the pipe and, in tests, the grace of the watchdog.

Invariant: an error while loading is sent over the pipe.  Knows no HTTP and no text.
"""

import os
import signal
import socket
import sys
from contextlib import suppress

from flyweight.server.worker.loading import ApiServerGone
from flyweight.server.worker.loop import Worker
from flyweight.server.worker.watchdog import GRACE, start_watchdog


def serve(line: socket.socket) -> None:
    """Runs until the API server is gone."""
    with suppress(ApiServerGone, OSError):
        Worker(line).run()


if __name__ == "__main__":
    # Ctrl-C, `timeout` and systemd reach the whole group; when the engine ends is the front end's
    # to say, by closing the pipe.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    line = socket.socket(fileno=int(sys.argv[1]))
    start_watchdog(line, float(sys.argv[2]) if len(sys.argv) > 2 else GRACE)
    serve(line)
    sys.stderr.flush()
    os._exit(0)  # a loader may be at work, which the interpreter would wait for
