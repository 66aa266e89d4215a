"""One peer as its client has it: finds and gets blocks over one connection.

Invariant: every block that is returned has passed its checksum, and is of the key that was
requested.  A connection is used by one thread; another may only stop it.
"""

import socket
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress

from flyweight.kv.peers import messages
from flyweight.kv.peers.channel import (
    PeerChannel,
    SocketStream,
    TransferError,
    describe_failure,
    open_channel,
)
from flyweight.kv.peers.messages import MOST_KEYS, BlockKind
from flyweight.kv.peers.rate import TransferSpeed
from flyweight.validation.peers import PeerAddress

CONNECT = 2.0  # seconds until a connection is made, and again for its handshake
ANSWER = 2.0  # seconds of an answer without blocks
READ = 10.0  # seconds without a whole block
AT_ONCE = 4 << 20  # bytes of blocks in one request


class PeerClient:
    """Raises `TransferError` where the peer cannot be used; the connection is closed then."""

    def __init__(
        self,
        address: PeerAddress,
        key: bytes,
        kind: BlockKind,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address, self.key, self.kind, self.clock = address, key, kind, clock
        self.speed = TransferSpeed(clock)
        self._line: socket.socket | None = None
        self._channel: PeerChannel | None = None

    def find(self, keys: Sequence[bytes]) -> int:
        """How many of these keys the peer has, from the first on."""
        reused = self._channel is not None
        try:
            return self._find(keys[:MOST_KEYS])
        except TransferError:
            self.close()
            if not reused:  # else it may have been closed while nothing was requested
                raise
        try:
            return self._find(keys[:MOST_KEYS])
        except TransferError:
            self.close()
            raise

    def get(self, keys: Sequence[bytes]) -> Generator[tuple[bytes, memoryview], None, None]:
        """The blocks of these keys in turn, as far as the peer has them.  A caller that stops
        early closes the connection.
        """
        many, whole = min(MOST_KEYS, max(1, AT_ONCE // self.kind.size)), False
        try:
            for first in range(0, len(keys), many):
                part, got = keys[first : first + many], 0
                for one in self._get(part):
                    yield one
                    got += 1
                if got < len(part):
                    break
            whole = True
        finally:
            if not whole:
                self.close()

    def stop(self) -> None:
        """Ends what another thread does with the connection."""
        line = self._line
        if line is not None:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        line, self._line, self._channel = self._line, None, None
        if line is not None:
            line.close()

    def _find(self, keys: Sequence[bytes]) -> int:
        channel = self._connect()
        began = self.clock()
        messages.send_keys(channel, messages.FIND, keys, began + ANSWER)
        count = messages.read_count(channel, len(keys), began + ANSWER)
        self.speed.record_answer(self.clock() - began)
        return count

    def _get(self, keys: Sequence[bytes]) -> Generator[tuple[bytes, memoryview], None, None]:
        """The blocks of one request.  Its speed is measured without the time that the caller takes
        for each, and also if it ends early.
        """
        channel, size = self._connect(), self.kind.size
        seconds, count, began = 0.0, 0, self.clock()
        try:
            messages.send_keys(channel, messages.GET, keys, began + READ)
            for key in keys:
                data = messages.read_block(channel, key, size, self.clock() + READ)
                seconds, began = seconds + self.clock() - began, self.clock()
                if data is None:
                    return
                count += 1
                yield key, data
                began = self.clock()
        except TransferError:
            if not count:  # at most one block in that time
                self.speed.record(size, self.clock() - began)
            raise
        finally:
            self.speed.record(count * size, seconds)

    def _connect(self) -> PeerChannel:
        if self._channel is not None:
            return self._channel
        try:
            line = socket.create_connection(self.address, CONNECT)
        except OSError as error:
            reason = error.strerror or error
            raise TransferError("unreachable", f"cannot be reached: {reason}") from None
        self._line = line
        try:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise describe_failure(error) from None
        end = self.clock() + CONNECT
        channel = open_channel(SocketStream(line, self.clock), self.key, end)
        messages.send_hello(channel, self.kind, end)
        messages.check_hello(channel, self.kind, end)
        self._channel = channel
        return channel
