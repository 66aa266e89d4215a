"""Reports the progress of loading to the API server.

Invariant: a few messages a second at most, whatever is loaded.  Knows no terminal.
"""

import socket
import time

from flyweight.describe import ModelDescription
from flyweight.plan.memory import MemoryPlan, summarize
from flyweight.server import pipe

EVERY = 0.25  # seconds between two messages of progress


class ClientGoneWhileLoading(Exception):
    """The front end closed the pipe."""


class LoadingReporter:
    """A `LoadListener` over the pipe."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._last = 0.0

    def planned(self, plan: MemoryPlan, found: ModelDescription) -> None:
        self._say(pipe.LoadingProgress("plan", summarize(plan)))

    def progress(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done < total and now - self._last < EVERY:
            return
        self._last = now
        self._say(pipe.LoadingProgress("progress", "loading", done, total))

    def warn(self, message: str) -> None:
        self._say(pipe.LoadingProgress("warning", message))

    def note(self, message: str) -> None:
        self._say(pipe.LoadingProgress("note", message))

    def fetching(self, file: str, done: int, total: int) -> None:
        """The front end has fetched what is needed."""

    def _say(self, message: pipe.LoadingProgress) -> None:
        try:
            self._line.sendall(pipe.encode_frame(message))
        except OSError:
            raise ClientGoneWhileLoading from None
