"""Ends an engine process whose API server is gone, where its own loop does not: a step hangs.

The loop notices a closed pipe between two steps, and ends the process within moments.  A thread
waits for the same, and ends the process a while later.

Invariant: while the other end of the pipe is open, nothing happens: the thread sleeps, takes no
byte from the pipe and wakes for none.  Does not know what the process does, so it also ends one
that is only slow to leave.  Needs the interpreter's lock: it cannot end a process in which a call
that hangs holds it.
"""

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from threading import Thread
from typing import NoReturn

GRACE = 10.0  # seconds that the loop has to end the process: for a long step, and to close engines
WRITING = 5.0  # seconds that stderr has to take a line
GONE = select.POLLHUP | getattr(select, "POLLRDHUP", 0)  # macOS has only the first


def end_process(reason: str) -> NoReturn:
    """Writes one line and ends this process, whatever its other threads do."""
    # Kills the process if the write blocks: the reader of stderr, or its disk, may have stopped.
    signal.setitimer(signal.ITIMER_REAL, WRITING)
    try:  # past `sys.stderr`, whose lock may be held by a thread that hangs
        os.write(sys.stderr.fileno(), f"flyweight: {reason}\n".encode())
    finally:
        os._exit(1)


def start_watchdog(
    line: socket.socket, grace: float = GRACE, end: Callable[[str], object] = end_process
) -> Thread:
    """A thread that calls `end` with the reason, `grace` seconds after the other end of `line` is
    gone.  `line` must stay open: closing it does not wake the thread.
    """
    waiting = select.poll()  # no limit of descriptors, as `select` has
    waiting.register(line, GONE)

    def watch() -> None:
        while not waiting.poll():  # some systems wake for data too, and report no event
            pass
        time.sleep(grace)
        end(
            "the API server is gone, and the engine process has not ended by itself within "
            f"{grace:g} s; it is ended"
        )

    thread = Thread(target=watch, name="watchdog", daemon=True)
    thread.start()
    return thread
