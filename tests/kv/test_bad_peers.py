"""Peers with the secret that send what is wrong, or nothing: every fetch ends, and no block that is
not the requested one is taken.
"""

import logging
import random
import socket
from collections.abc import Callable
from threading import Event

import numpy as np
import pytest
from peer_cases import (
    KEY,
    KIND,
    LATER,
    WAIT,
    check_blocks,
    connected,
    find,
    keys_of,
    misbehaving,
    wait_until,
)
from store_cases import SIZE, data_of, key_of

from flyweight.kv.peers import messages
from flyweight.kv.peers.channel import PeerChannel, TransferError
from flyweight.kv.peers.client import PeerClient
from flyweight.kv.peers.fetch import ChainFetch
from flyweight.kv.peers.log import PeerLog
from flyweight.kv.peers.messages import BLOCK_HEAD
from flyweight.kv.peers.worker import FIRST_WAIT, LONGEST_WAIT, PeerWorker
from flyweight.validation.peers import PeerAddress


def reply(*frames: tuple[int, bytes]) -> Callable[[PeerChannel], None]:
    """Answers a request with these frames, and closes the connection."""

    def behave(channel: PeerChannel) -> None:
        channel.receive(messages.MOST_REQUEST, LATER)
        for kind, body in frames:
            channel.send(kind, body, end=LATER)

    return behave


def block(number: int, key: int | None = None, wrong: int = 0, size: int = SIZE) -> bytes:
    """The body of a block's frame."""
    data = bytearray(data_of(number, size).tobytes())
    checksum = BLOCK_HEAD.unpack_from(pack_block(number, bytes(data)))[1]
    data[-1] ^= wrong
    return BLOCK_HEAD.pack(key_of(number if key is None else key), checksum) + bytes(data)


def pack_block(number: int, data: bytes) -> bytes:
    sent: list[bytes] = []

    class Collector:
        def send(self, kind: int, *parts: bytes, end: float) -> None:
            sent.extend(parts)

    collector: object = Collector()
    messages.send_block(collector, key_of(number), data, LATER)  # type: ignore[arg-type]
    return b"".join(sent)


BAD_BLOCKS = {
    "checksum": block(0, wrong=1),
    "another key": block(0, key=1),
    "too short": block(0, size=SIZE - 1),
    "too long": block(0, size=SIZE + 1),
    "nothing": b"",
}


@pytest.mark.parametrize("name", BAD_BLOCKS)
def test_a_bad_block_is_not_taken(name: str) -> None:
    with misbehaving(reply((messages.BLOCK, BAD_BLOCKS[name]))) as where:
        with connected(where) as client, pytest.raises(TransferError) as refused:
            list(client.get(keys_of(0, 1)))
        assert refused.value.cause == ("checksum" if "another" in name or name == "checksum"
                                       else "garbage")  # fmt: skip


def test_what_came_before_a_bad_block_is_taken() -> None:
    good = (messages.BLOCK, block(0))
    for bad in ((messages.BLOCK, BAD_BLOCKS["checksum"]), (messages.END, b"x"), (9, b"")):
        with misbehaving(reply(good, bad)) as where, connected(where) as client:
            blocks, found = client.get(keys_of(0, 1)), []
            with pytest.raises(TransferError):
                found.extend(blocks)
            check_blocks(found, [0])
            assert client._line is None


@pytest.mark.parametrize("body", [b"", b"123", (3).to_bytes(4, "little"), b"12345"])
def test_a_count_that_cannot_be_is_refused(body: bytes) -> None:
    with misbehaving(reply((messages.FOUND, body))) as where, connected(where) as client:
        with pytest.raises(TransferError) as refused:
            client.find(keys_of(0, 1))
        assert refused.value.cause == "garbage" and client._line is None


def close_at_once(channel: PeerChannel) -> None:
    """It hangs up."""


def send_noise(channel: PeerChannel) -> None:
    channel.stream.write(random.Random(1).randbytes(5000), LATER)


def die_within_a_block(channel: PeerChannel) -> None:
    """Half of a frame."""
    kind, _ = channel.receive(messages.MOST_REQUEST, LATER)
    if kind == messages.FIND:
        messages.send_count(channel, 2, LATER)
        channel.receive(messages.MOST_REQUEST, LATER)
    stream = channel.stream
    channel.send(messages.BLOCK, block(0), end=LATER)
    stream.write(messages.BLOCK_HEAD.pack(key_of(1), 0)[:20], LATER)


@pytest.mark.parametrize("shake", [True, False])
@pytest.mark.parametrize("behave", [close_at_once, send_noise, die_within_a_block])
def test_every_fetch_ends(behave: Callable[[PeerChannel], None], shake: bool) -> None:
    """Whatever a peer does, a worker answers, and goes on with the next."""
    with misbehaving(behave, shake) as where:
        worker = PeerWorker(PeerClient(where, KEY, KIND), PeerLog())
        fetch = find(worker, [0, 1])
        assert fetch.read_found()[worker.name] in (0, 2)
        worker.get(fetch, 2)
        wait_until(lambda: fetch.ended)
        assert fetch.received < 2
        assert fetch.received == 0 or (np.frombuffer(fetch.take(key_of(0)) or b"", np.uint8)
                                       == data_of(0)).all()  # fmt: skip
        assert not worker.is_usable()
        worker.close()
        assert worker._thread is not None and not worker._thread.is_alive()


def test_a_peer_that_cannot_be_reached_is_left_alone_for_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    with socket.create_server(("127.0.0.1", 0)) as line:
        nowhere = PeerAddress("127.0.0.1", line.getsockname()[1])
    now = [100.0]
    worker = PeerWorker(PeerClient(nowhere, KEY, KIND), PeerLog(), lambda: now[0])
    wait = FIRST_WAIT
    for _ in range(8):
        assert worker.is_usable()
        assert find(worker, [0]).read_found() == {worker.name: 0}
        assert not worker.is_usable()
        now[0] += wait - 0.01
        assert not worker.is_usable()
        now[0] += 0.01
        wait = min(2 * wait, LONGEST_WAIT)
    worker.close()
    assert not worker.is_usable() and len(caplog.records) == 1
    assert "cannot be reached: Connection refused" in caplog.records[0].getMessage()


def test_a_silent_peer_is_given_up_at_once() -> None:
    """A transfer that is cancelled does not wait for the peer."""
    silent = Event()

    def behave(channel: PeerChannel) -> None:
        channel.receive(messages.MOST_REQUEST, LATER)
        channel.send(messages.BLOCK, block(0), end=LATER)
        silent.wait(WAIT)

    with misbehaving(behave) as where:
        worker = PeerWorker(PeerClient(where, KEY, KIND), PeerLog())
        fetch = ChainFetch(keys_of(0, 1), 8, Event())
        worker.get(fetch, 2)
        wait_until(lambda: fetch.received == 1)
        worker.cancel(fetch)
        wait_until(lambda: fetch.ended)
        assert key_of(0) in fetch, "what arrived is kept"
        assert worker.is_usable(), "it was our decision"
        silent.set()
        worker.close()
