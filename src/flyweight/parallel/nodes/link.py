"""The connection of two nodes: messages over an authenticated channel.

The kernel notices a host that is cut off or has no power: it probes a silent connection each
second.  So a node whose processor is busy does not count as lost.

Invariant: a message is what `NodeMessage` allows, or the connection ends.  Knows no ranks.
"""

import socket
from contextlib import suppress
from select import POLLIN, poll
from threading import Lock
from time import monotonic

import msgspec

from flyweight.kv.peers.channel import PeerChannel, SocketStream, TransferError, describe_failure
from flyweight.parallel.nodes.messages import NodeMessage

MESSAGE = 1  # the one kind of frames
MOST = 1 << 20  # bytes of a message
FRAME = 10.0  # seconds in which a message that has begun arrives
SILENT = 5  # seconds without an answer of the other host after which it is lost
PROBES = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": SILENT,
          "TCP_USER_TIMEOUT": 1000 * SILENT}  # fmt: skip


class NodeLink:
    """Sends for any thread, receives for one.  Raises `TransferError` where the other is gone."""

    def __init__(self, line: socket.socket, channel: PeerChannel) -> None:
        self._line, self._channel, self._lock = line, channel, Lock()

    @property
    def address(self) -> str:
        """Ours, as the other host knows it."""
        return str(self._line.getsockname()[0])

    @property
    def is_open(self) -> bool:
        """Whether the other has neither closed it nor sent more."""
        waiting = poll()
        waiting.register(self._line, POLLIN)
        return not waiting.poll(0)

    def send(self, message: NodeMessage) -> None:
        """Its loss is noticed by who receives."""
        with self._lock, suppress(TransferError):
            body = msgspec.json.encode(message)
            self._channel.send(MESSAGE, body, end=monotonic() + FRAME)

    def receive(self) -> NodeMessage:
        """The next message, whenever it comes."""
        waiting = poll()
        try:
            waiting.register(self._line, POLLIN)
            waiting.poll()
        except (OSError, ValueError):
            raise TransferError("lost", "the connection was closed") from None
        _, body = self._channel.receive(MOST, monotonic() + FRAME)
        try:
            message: NodeMessage = msgspec.json.decode(body, type=NodeMessage)
        except msgspec.DecodeError as error:
            raise TransferError("garbage", f"a message that is not valid: {error}") from None
        return message

    def close(self) -> None:
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)
        self._line.close()


def open_stream(line: socket.socket) -> SocketStream:
    """A socket as a stream, on which a host that is gone is noticed.  Raises `TransferError`."""
    try:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in PROBES.items():
            if hasattr(socket, name):  # not on every system
                line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    except OSError as error:
        raise describe_failure(error) from None
    return SocketStream(line)
