"""Notifies the service manager of the server's state, with systemd's protocol (sd_notify).

Invariant: nothing is sent without an address.  A message that cannot be delivered does not stop the
server.  Standard library only.
"""

import asyncio
import socket
import time
from contextlib import suppress

PATIENCE = 1.0  # seconds to wait for room in the socket: the event loop waits as well


class ServiceNotifier:
    """`address` is a path, or the name of an abstract socket after `@`; empty: no service manager.
    `watchdog` are the seconds after which the manager restarts a silent server; 0: it does not.
    """

    def __init__(self, address: str, watchdog: float = 0.0) -> None:
        self.address, self.watchdog = address, watchdog

    def ready(self) -> None:
        """The server accepts requests; also ends `reloading`."""
        self._send("READY=1")

    def reloading(self) -> None:
        clock = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send(f"RELOADING=1\nMONOTONIC_USEC={clock}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def keep_alive(self, loop: asyncio.AbstractEventLoop) -> None:
        """Reports, twice per period of the watchdog, that the event loop runs."""
        if self.watchdog:
            self._send("WATCHDOG=1")
            loop.call_later(self.watchdog / 2, self.keep_alive, loop)

    def _send(self, message: str) -> None:
        if not self.address:
            return
        abstract = self.address.startswith("@")
        path = "\0" + self.address[1:] if abstract else self.address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.settimeout(PATIENCE)
            line.sendto(message.encode(), path)
