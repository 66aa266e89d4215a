"""A connection between two peers: a handshake in which both prove that they have the secret, then
frames with a code of authenticity.

A frame is its length (4 bytes), its kind (1 byte), its body and 16 bytes of HMAC-SHA-256 over the
frame's number and all of that.  Each direction of each connection has a key of its own, made of the
peers' key and a nonce of either side.

Invariant: no byte beyond the handshake's fixed messages is read from a peer without the secret.  A
frame that was changed, repeated, left out or sent back ends the connection.  Nothing is encrypted.
"""

import socket
import struct
import time
from collections.abc import Callable
from hashlib import sha256
from hmac import compare_digest, digest, new
from secrets import token_bytes
from typing import Protocol

MAGIC = b"flyweight peer 1"
NONCE = PROOF = 32
CODE = 16
HEAD = struct.Struct("<IB")
NUMBER = struct.Struct("<Q")
Part = bytes | bytearray | memoryview


class TransferError(Exception):
    """A peer that cannot be used; `cause` is a short name of the reason."""

    def __init__(self, cause: str, problem: str) -> None:
        super().__init__(problem)
        self.cause = cause


class PeerStream(Protocol):
    """Bytes to and from a peer; both methods raise `TransferError`, at the time `end` at last."""

    def read(self, count: int, end: float) -> bytearray: ...

    def write(self, data: Part, end: float) -> None: ...


class SocketStream:
    """A socket as a stream."""

    def __init__(self, line: socket.socket, clock: Callable[[], float] = time.monotonic) -> None:
        self.line, self.clock = line, clock

    def read(self, count: int, end: float) -> bytearray:
        found = bytearray(count)
        view = memoryview(found)
        while view:
            try:
                self.line.settimeout(self._find_wait(end))
                got = self.line.recv_into(view)
            except OSError as error:
                raise describe_failure(error) from None
            if not got:
                raise TransferError("lost", "it closed the connection")
            view = view[got:]
        return found

    def write(self, data: Part, end: float) -> None:
        try:
            self.line.settimeout(self._find_wait(end))
            self.line.sendall(data)
        except OSError as error:
            raise describe_failure(error) from None

    def _find_wait(self, end: float) -> float:
        left = end - self.clock()
        if left <= 0:
            raise TimeoutError
        return left


def describe_failure(error: OSError) -> TransferError:
    """What an error of a socket means."""
    if isinstance(error, TimeoutError):
        return TransferError("slow", "it did not answer in time")
    return TransferError("lost", f"the connection failed: {error.strerror or error}")


class PeerChannel:
    """Frames over a stream, after the handshake.  Used by one thread."""

    def __init__(self, stream: PeerStream, sending: bytes, receiving: bytes) -> None:
        self.stream = stream
        self._keys = sending, receiving
        self._sent = self._received = 0  # frames

    def send(self, kind: int, *parts: Part, end: float) -> None:
        """Sends a frame whose body is `parts`."""
        head = HEAD.pack(sum(len(part) for part in parts), kind)
        code = _make_code(self._keys[0], self._sent, head, *parts)
        self._sent += 1
        small = len(parts) < 2 and sum(map(len, parts)) < 4096
        if small:
            self.stream.write(b"".join([head, *parts, code]), end)
            return
        for part in (head, *parts, code):
            self.stream.write(part, end)

    def receive(self, most: int, end: float) -> tuple[int, memoryview]:
        """The kind and the body of the next frame, whose body may have at most `most` bytes."""
        head = self.stream.read(HEAD.size, end)
        length, kind = HEAD.unpack(head)
        if length > most:
            raise TransferError("garbage", f"a frame of {length} bytes, at most {most} are allowed")
        rest = memoryview(self.stream.read(length + CODE, end))
        body, code = rest[:length], rest[length:]
        if not compare_digest(_make_code(self._keys[1], self._received, head, body), code):
            raise TransferError("garbage", "a frame is not authentic")
        self._received += 1
        return kind, body


def open_channel(stream: PeerStream, key: bytes, end: float) -> PeerChannel:
    """The handshake of the side that connects."""
    ours = token_bytes(NONCE)
    stream.write(MAGIC + ours, end)
    theirs = _read_nonce(stream, end)
    stream.write(_prove(key, b"client", ours, theirs), end)
    try:
        proof = stream.read(PROOF, end)
    except TransferError as error:
        if error.cause == "slow":
            raise
        raise TransferError("secret", "it refused our secret") from None
    if not compare_digest(proof, _prove(key, b"server", ours, theirs)):
        raise TransferError("secret", "it has another secret")
    return _make_channel(stream, key, (ours, theirs), (b"up", b"down"))


def accept_channel(stream: PeerStream, key: bytes, end: float) -> PeerChannel:
    """The handshake of the side that listens; it proves nothing to a client that did not."""
    theirs = _read_nonce(stream, end)
    ours = token_bytes(NONCE)
    stream.write(MAGIC + ours, end)
    proof = stream.read(PROOF, end)
    if not compare_digest(proof, _prove(key, b"client", theirs, ours)):
        raise TransferError("secret", "it has another secret")
    stream.write(_prove(key, b"server", theirs, ours), end)
    return _make_channel(stream, key, (theirs, ours), (b"down", b"up"))


def _read_nonce(stream: PeerStream, end: float) -> bytes:
    hello = bytes(stream.read(len(MAGIC) + NONCE, end))
    if not hello.startswith(MAGIC):
        raise TransferError("garbage", "it is no peer of this version")
    return hello[len(MAGIC) :]


def _prove(key: bytes, side: bytes, client: bytes, server: bytes) -> bytes:
    return digest(key, b"proof of " + side + client + server, "sha256")


def _make_channel(
    stream: PeerStream, key: bytes, nonces: tuple[bytes, bytes], ways: tuple[bytes, bytes]
) -> PeerChannel:
    sending, receiving = (
        digest(key, b"frames " + way.ljust(4) + b"".join(nonces), "sha256") for way in ways
    )
    return PeerChannel(stream, sending, receiving)


def _make_code(key: bytes, number: int, *parts: Part) -> bytes:
    code = new(key, NUMBER.pack(number), sha256)
    for part in parts:
        code.update(part)
    return code.digest()[:CODE]
