"""What the frames of a connection between peers say.

The client says hello with its fingerprint and block size, and the server answers with its own.
Then the client requests: `FIND` has the keys of a chain, and `FOUND` says how many of them, from
the first on, are stored; `GET` has keys, each answered by a `BLOCK` in turn, or by one `END` where
a block is gone.

Invariant: every body is checked before it is used; no length of a peer's is believed.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from flyweight.kv.blocks import DIGEST
from flyweight.kv.peers.channel import Part, PeerChannel, TransferError

HELLO, FIND, FOUND, GET, BLOCK, END = range(1, 7)
MOST_KEYS = 4096  # of one frame
MOST_REQUEST = MOST_KEYS * DIGEST
ABOUT = struct.Struct("<32sQ")  # fingerprint, bytes of a block
COUNT = struct.Struct("<I")
BLOCK_HEAD = struct.Struct("<32sI")  # key, checksum


@dataclass(frozen=True, slots=True)
class BlockKind:
    """What two peers must have in common: whose K/V their blocks are, and `size` bytes of each."""

    fingerprint: bytes
    size: int

    @property
    def short(self) -> str:
        """The fingerprint as logs have it."""
        return self.fingerprint[:6].hex()


def send_hello(channel: PeerChannel, kind: BlockKind, end: float) -> None:
    channel.send(HELLO, ABOUT.pack(kind.fingerprint, kind.size), end=end)


def check_hello(channel: PeerChannel, kind: BlockKind, end: float) -> None:
    """Reads the other's hello.  Raises `TransferError` where its blocks are of another kind."""
    body = expect(channel, HELLO, ABOUT.size, end)
    if len(body) != ABOUT.size:
        raise TransferError("garbage", "a hello of another size")
    theirs = BlockKind(*ABOUT.unpack(body))
    if theirs.fingerprint != kind.fingerprint:
        raise TransferError(
            "fingerprint",
            f"its model, settings or version differ: fingerprint {theirs.short}, here {kind.short}",
        )
    if theirs.size != kind.size:
        raise TransferError("fingerprint", f"its blocks have {theirs.size} bytes, here {kind.size}")


def expect(channel: PeerChannel, kind: int, most: int, end: float) -> memoryview:
    """The body of a frame that must be of this kind."""
    found, body = channel.receive(most, end)
    if found != kind:
        raise TransferError("garbage", f"a frame of kind {found}, not {kind}")
    return body


def send_keys(channel: PeerChannel, kind: int, keys: Sequence[bytes], end: float) -> None:
    channel.send(kind, b"".join(keys), end=end)


def read_keys(body: memoryview) -> list[bytes]:
    """The keys of a request."""
    if len(body) % DIGEST:
        raise TransferError("garbage", "half a key")
    return [bytes(body[at : at + DIGEST]) for at in range(0, len(body), DIGEST)]


def send_count(channel: PeerChannel, count: int, end: float) -> None:
    channel.send(FOUND, COUNT.pack(count), end=end)


def read_count(channel: PeerChannel, most: int, end: float) -> int:
    """How many of `most` keys a peer has."""
    body = expect(channel, FOUND, COUNT.size, end)
    count = COUNT.unpack(body)[0] if len(body) == COUNT.size else most + 1
    if count > most:
        raise TransferError("garbage", "a count that cannot be")
    return int(count)


def send_block(channel: PeerChannel, key: bytes, data: Part, end: float) -> None:
    channel.send(BLOCK, BLOCK_HEAD.pack(key, crc32(data)), data, end=end)


def read_block(channel: PeerChannel, key: bytes, size: int, end: float) -> memoryview | None:
    """The data of the block that is due; None where it is gone."""
    kind, body = channel.receive(BLOCK_HEAD.size + size, end)
    if kind == END and not body:
        return None
    if kind != BLOCK or len(body) != BLOCK_HEAD.size + size:
        raise TransferError("garbage", "a block of another size")
    found, checksum = BLOCK_HEAD.unpack_from(body)
    data = body[BLOCK_HEAD.size :]
    if found != key or crc32(data) != checksum:
        raise TransferError("checksum", "a block is damaged, or another's")
    return data
