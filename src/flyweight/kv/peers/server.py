"""Serves blocks of a store to peers, on threads of its own.

Invariant: only the store's file is read, never the K/V memory, so no step waits for a peer and no
peer sees a block that is being written.  The number of connections, every length and every wait is
bounded; an error of one connection ends that connection.
"""

import socket
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from select import POLLIN, poll
from threading import BoundedSemaphore, Event, Lock, Thread
from time import monotonic
from typing import Protocol

import numpy as np

from flyweight.errors import ConfigError
from flyweight.kv.peers import messages
from flyweight.kv.peers.channel import PeerChannel, SocketStream, TransferError, accept_channel
from flyweight.kv.peers.log import PeerLog
from flyweight.kv.peers.messages import BlockKind
from flyweight.kv.peers.rate import RateLimit
from flyweight.validation.peers import MOST_PEERS, PeerAddress
from flyweight.wire import U8

OPTION = "prefix_cache_listen"
MOST_UNPROVED = 16  # connections that have not proved the secret yet
SHAKE = 5.0  # seconds of a handshake
IDLE = 60.0  # seconds between two requests of a peer
SEND = 10.0  # seconds of sending a frame, beyond what the rate allows
ROOM = 32 << 20  # bytes of blocks that are being sent
JOIN = 1.0  # seconds that threads have to end


class SharedStore(Protocol):
    """What is read of a store; safe next to the thread that writes it."""

    def count_stored(self, keys: Sequence[bytes]) -> int: ...

    def read_shared(self, key: bytes, out: U8) -> bool: ...


class BlockServer:
    """Listens at `address`; the port is taken at once, and served from `start` on: until then peers
    wait for a handshake.  Raises `ConfigError` where it cannot be.
    """

    def __init__(
        self, address: PeerAddress, key: bytes, rate: int = 0, log: PeerLog | None = None
    ) -> None:
        self.key, self.rate, self.log = key, RateLimit(rate), log or PeerLog()
        self.sent = self.refused = 0  # bytes of blocks; connections
        self._line = _bind(address)
        self.address = address._replace(port=self._line.getsockname()[1])
        self.stopped, self._lock = Event(), Lock()
        self._ours, self._theirs = socket.socketpair()  # wakes the thread that accepts
        self._open: set[socket.socket] = set()  # connections
        self._proved: set[socket.socket] = set()  # those of peers that have the secret
        self._threads: list[Thread] = []

    def start(self, store: SharedStore, kind: BlockKind) -> None:
        """From now on peers get the blocks of a store."""
        room = BoundedSemaphore(max(2, ROOM // kind.size))
        service = BlockService(store, kind, room, self)
        self._run("accept", partial(self._accept, service.run))

    def close(self) -> None:
        """Ends all connections; a second call does nothing."""
        self.stopped.set()
        with suppress(OSError):
            self._ours.send(b"!")
        with self._lock:
            for line in self._open:
                with suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)
            threads = list(self._threads)
        for thread in threads:
            thread.join(JOIN)
        for line in (self._line, self._ours, self._theirs):
            line.close()

    def _accept(self, serve: Callable[[PeerChannel], None]) -> None:
        waiting = poll()  # no limit of descriptors, as `select` has
        waiting.register(self._line, POLLIN)
        waiting.register(self._theirs, POLLIN)
        while not self.stopped.is_set():
            waiting.poll()
            if self.stopped.is_set():
                return
            try:
                line, address = self._line.accept()
            except OSError:  # the client is gone, or too many files are open
                self.stopped.wait(0.01)
                continue
            if self._take(line):
                self._run(f"to {address[0]}", partial(self._serve, line, address[0], serve))
                continue
            line.close()
            if not self.stopped.is_set():
                self._refuse(address[0], TransferError("full", "too many connections"))

    def _take(self, line: socket.socket) -> bool:
        """Whether there is room for a connection."""
        with self._lock:
            unproved = len(self._open) - len(self._proved)
            taken = unproved < MOST_UNPROVED and not self.stopped.is_set()
            if taken:
                self._open.add(line)
        return taken

    def _admit(self, line: socket.socket) -> None:
        """A peer has proved the secret.  Raises `TransferError` where there is no room for it."""
        with self._lock:
            if len(self._proved) >= MOST_PEERS:
                raise TransferError("full", "too many peers")
            self._proved.add(line)

    def _run(self, name: str, work: Callable[[], None]) -> None:
        thread = Thread(target=work, name=f"blocks {name}", daemon=True)
        with self._lock:
            self._threads = [one for one in self._threads if one.is_alive()]
            self._threads.append(thread)
            thread.start()  # within the lock: one that has not begun counts as ended

    def _serve(self, line: socket.socket, name: str, serve: Callable[[PeerChannel], None]) -> None:
        """One connection, from the handshake to its end."""
        known = False
        try:
            with closing(line):
                line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                channel = accept_channel(SocketStream(line), self.key, monotonic() + SHAKE)
                known = True
                self._admit(line)
                serve(channel)
        except TransferError as error:
            if error.cause != "lost" and not (known and error.cause == "slow"):  # it may leave
                self._refuse(name, error)
        except OSError:
            pass  # it left before the handshake
        finally:
            with self._lock:
                self._open.discard(line)
                self._proved.discard(line)

    def _refuse(self, name: str, error: TransferError) -> None:
        with self._lock:
            self.refused += 1
        self.log.note(f"at {name}", error)

    def count_sent(self, size: int) -> None:
        with self._lock:
            self.sent += size


class BlockService:
    """Answers the requests of connections from one store; `room` bounds the blocks in memory."""

    def __init__(
        self, store: SharedStore, kind: BlockKind, room: BoundedSemaphore, server: BlockServer
    ) -> None:
        self.store, self.kind, self.room, self.server = store, kind, room, server

    def run(self, channel: PeerChannel) -> None:
        """Until the peer leaves, which is a `TransferError` too."""
        messages.send_hello(channel, self.kind, monotonic() + SHAKE)
        messages.check_hello(channel, self.kind, monotonic() + SHAKE)
        while True:
            kind, body = channel.receive(messages.MOST_REQUEST, monotonic() + IDLE)
            keys = messages.read_keys(body)
            if kind == messages.FIND:
                count = self.store.count_stored(keys)
                messages.send_count(channel, count, monotonic() + SEND)
            elif kind == messages.GET:
                self._send(channel, keys)
            else:
                raise TransferError("garbage", f"a request of kind {kind}")

    def _send(self, channel: PeerChannel, keys: Sequence[bytes]) -> None:
        for key in keys:
            if not self.server.rate.wait(self.kind.size, self.server.stopped):
                raise TransferError("lost", "the server ends")
            with self.room:
                out = np.empty(self.kind.size, np.uint8)
                if not self.store.read_shared(key, out):
                    channel.send(messages.END, end=monotonic() + SEND)
                    return
                messages.send_block(channel, key, out.data, monotonic() + SEND)
            self.server.count_sent(self.kind.size)


def _bind(address: PeerAddress) -> socket.socket:
    """A bound socket.  Raises `ConfigError`."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        line = socket.socket(family, kind, protocol)
        try:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            line.bind(where)
            line.listen(MOST_UNPROVED)  # else another may bind too, and learn of it later
        except OSError:
            line.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"cannot be listened on: {error.strerror or error}", OPTION, value=str(address),
            hint="choose another address or port",
        ) from None  # fmt: skip
    return line
