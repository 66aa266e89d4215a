"""Servers and clients of blocks over loopback, peers that misbehave, and streams in memory."""

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from threading import Event, Thread
from time import monotonic

import numpy as np
from store_cases import FINGERPRINT, SIZE, data_of, key_of

from flyweight.kv.peers import messages
from flyweight.kv.peers.channel import Part, PeerChannel, SocketStream, TransferError
from flyweight.kv.peers.channel import accept_channel as accept
from flyweight.kv.peers.client import PeerClient
from flyweight.kv.peers.fetch import ChainFetch
from flyweight.kv.peers.messages import BlockKind
from flyweight.kv.peers.server import BlockServer
from flyweight.kv.peers.worker import PeerWorker
from flyweight.validation.peers import PeerAddress
from flyweight.wire import U8

KEY = bytes(range(100, 132))
KIND = BlockKind(FINGERPRINT, SIZE)
HERE = PeerAddress("127.0.0.1", 0)
WAIT = 60.0  # seconds for anything that should take one
LATER = 1e9  # seconds: no test waits that long
Behave = Callable[[PeerChannel], None]


class MemoryStream:
    """What is written to it is collected; what is read comes from `source`."""

    def __init__(self, source: bytes = b"") -> None:
        self.source, self.written = source, bytearray()

    def read(self, count: int, end: float) -> bytearray:
        found, self.source = self.source[:count], self.source[count:]
        if len(found) < count:
            raise TransferError("lost", "the end")
        return bytearray(found)

    def write(self, data: Part, end: float) -> None:
        self.written += data


class NumberedStore:
    """A store of the blocks of `store_cases` with these numbers."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.blocks = {key_of(n): data_of(n) for n in numbers}
        self.reads = 0

    def count_stored(self, keys: Sequence[bytes]) -> int:
        return next((i for i, key in enumerate(keys) if key not in self.blocks), len(keys))

    def read_shared(self, key: bytes, out: U8) -> bool:
        self.reads += 1
        if key in self.blocks:
            out[:] = self.blocks[key]
        return key in self.blocks


@contextmanager
def serving(
    numbers: Sequence[int], kind: BlockKind = KIND, key: bytes = KEY
) -> Iterator[BlockServer]:
    """A server of these blocks on a free port."""
    server = BlockServer(HERE, key)
    server.start(NumberedStore(numbers), kind)
    with closing(server):
        yield server


@contextmanager
def misbehaving(behave: Behave, shake: bool = True) -> Iterator[PeerAddress]:
    """A listener that does this with each channel after the handshake and the hello, or with the
    bare socket as `channel.stream.line`.
    """
    with socket.create_server(("127.0.0.1", 0)) as line:
        address = PeerAddress("127.0.0.1", line.getsockname()[1])
        thread = Thread(target=_misbehave, args=(line, behave, shake), daemon=True)
        thread.start()
        yield address
        line.shutdown(socket.SHUT_RDWR)
        thread.join(60)


def _misbehave(line: socket.socket, behave: Behave, shake: bool) -> None:
    while True:
        try:
            one, _ = line.accept()
        except OSError:
            return
        with one:
            stream, end = SocketStream(one), monotonic() + 60
            try:
                if shake:
                    channel = accept(stream, KEY, end)
                    messages.send_hello(channel, KIND, end)
                    messages.check_hello(channel, KIND, end)
                else:
                    channel = PeerChannel(stream, KEY, KEY)
                behave(channel)
            except (TransferError, OSError):
                continue


@contextmanager
def connected(
    address: PeerAddress, kind: BlockKind = KIND, key: bytes = KEY
) -> Iterator[PeerClient]:
    client = PeerClient(address, key, kind)
    with closing(client):
        yield client


def keys_of(*numbers: int) -> list[bytes]:
    return [key_of(number) for number in numbers]


def check_blocks(found: Sequence[tuple[bytes, Part]], numbers: Sequence[int]) -> None:
    """These blocks, in order, each with its bytes."""
    assert [key for key, _ in found] == keys_of(*numbers)
    for number, (_, data) in zip(numbers, found, strict=True):
        assert (np.frombuffer(data, np.uint8) == data_of(number)).all()


def find(worker: PeerWorker, numbers: list[int]) -> ChainFetch:
    """A fetch for which a peer has answered."""
    fetch = ChainFetch(keys_of(*numbers), 8, Event())
    worker.find(fetch)
    wait_until(lambda: bool(fetch.read_found()))
    return fetch


def wait_until(holds: Callable[[], bool]) -> None:
    waited, pause = 0.0, Event()
    while not holds():
        assert waited < WAIT, "it never came true"
        pause.wait(0.005)
        waited += 0.005
