"""Blocks from server to client over loopback, and every way in which a peer can be bad."""

import logging
import os
import random
import socket
from collections.abc import Callable
from dataclasses import replace
from threading import Event

import numpy as np
import pytest
from peer_cases import (
    HERE,
    KEY,
    KIND,
    LATER,
    check_blocks,
    connected,
    keys_of,
    misbehaving,
    serving,
)
from store_cases import SIZE, data_of, key_of, opened, save

from flyweight.errors import ConfigError
from flyweight.kv.peers import messages, server
from flyweight.kv.peers.channel import PeerChannel, TransferError
from flyweight.kv.peers.client import PeerClient
from flyweight.kv.peers.fetch import ChainFetch
from flyweight.kv.peers.log import PeerLog
from flyweight.kv.peers.messages import BLOCK_HEAD, MOST_KEYS, BlockKind
from flyweight.kv.peers.worker import FIRST_WAIT, LONGEST_WAIT, PeerWorker
from flyweight.validation.peers import PeerAddress

WAIT = 60.0


def test_blocks_arrive_as_they_are_stored() -> None:
    with serving(range(40)) as one, connected(one.address) as client:
        keys = keys_of(*range(30), 77, 31)
        assert client.find(keys) == 30
        check_blocks(list(client.get(keys[:30])), range(30))
        check_blocks(list(client.get(keys_of(3, 4, 77, 5))), [3, 4])
        assert client.find(keys_of(78)) == 0 and client.find([]) == 0
        check_blocks(list(client.get(keys_of(39))), [39])
    assert one.sent == 33 * SIZE and one.refused == 0


def test_requests_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """More blocks than fit in one request, and more keys than a frame may have."""
    monkeypatch.setattr("flyweight.kv.peers.client.AT_ONCE", 3 * SIZE)
    with serving(range(11)) as one, connected(one.address) as client:
        check_blocks(list(client.get(keys_of(*range(11)))), range(11))
        assert client.find(keys_of(*range(10)) * (MOST_KEYS // 10 + 1)) == MOST_KEYS


def test_a_store_serves_other_threads(tmp_path: object) -> None:
    with opened(tmp_path / "blocks") as store:  # type: ignore[operator]
        assert all(save(store, number) for number in range(4))
        one = server.BlockServer(HERE, KEY)
        one.start(store, KIND)
        with connected(one.address) as client:
            assert client.find(keys_of(0, 1, 2, 9)) == 3
            check_blocks(list(client.get(keys_of(0, 1, 2))), range(3))
            place = store.entries[key_of(1)].place
            os.pwrite(store.file.file.number, b"?", store.file.count_bytes(place) + 130)
            check_blocks(list(client.get(keys_of(0, 1, 2))), [0])
            assert key_of(1) in store, "another thread changes nothing"
            store.close()
            assert list(client.get(keys_of(0))) == []
        one.close()


# --- peers that are refused ---


@pytest.mark.parametrize(
    ("kind", "said"),
    [(BlockKind(bytes(32), SIZE), "000000000000"), (replace(KIND, size=64), "64")],
)
def test_another_fingerprint_or_size_is_refused(
    kind: BlockKind, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    log = PeerLog()
    with serving([1]) as one:
        worker = PeerWorker(PeerClient(one.address, KEY, kind), log)
        for _ in range(2):
            worker._retry_at = 0.0
            fetch = find(worker, [1])
            assert fetch.read_found() == {worker.name: 0}
        worker.close()
        assert worker.refused == 2
    lines = [record.getMessage() for record in caplog.records]
    assert one.refused == 2 and len(lines) == 2, "one line of each side"
    assert all(said in line for line in lines)
    assert sum(f"peer {worker.name}: " in line for line in lines) == 1


def test_another_secret_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with serving([1]) as one, connected(one.address, key=bytes(32)) as client:
        for _ in range(3):
            with pytest.raises(TransferError) as refused:
                client.find(keys_of(1))
            assert refused.value.cause == "secret"
        with connected(one.address) as other:
            assert other.find(keys_of(1)) == 1
    assert one.refused == 3
    assert [r.getMessage() for r in caplog.records] == [
        "prefix cache peer at 127.0.0.1: it has another secret"
    ]


# --- clients that are bad ---


@pytest.mark.parametrize("seed", range(8))
def test_garbage_ends_only_its_connection(seed: int) -> None:
    rng = random.Random(seed)
    with serving([1]) as one:
        raw = rng.randbytes(rng.randrange(48, 3000))
        with socket.create_connection(one.address) as line:
            line.settimeout(WAIT)
            line.sendall(raw)
            read_to_end(line)
        with connected(one.address) as client:
            assert client.find(keys_of(1)) == 1
    assert one.refused == 1


@pytest.mark.parametrize("seed", range(8))
def test_a_peer_with_the_secret_may_send_garbage_too(seed: int) -> None:
    """Frames that are authentic, and make no sense."""
    rng = random.Random(seed)
    with serving([1]) as one, connected(one.address) as client:
        assert client.find(keys_of(1)) == 1
        assert client._channel is not None and client._line is not None
        kind, body = rng.choice((
            (messages.FIND, rng.randbytes(33)), (messages.GET, rng.randbytes(1)),
            (messages.BLOCK, b""), (99, rng.randbytes(64)),
            (messages.FIND, rng.randbytes(messages.MOST_REQUEST + 32)),
        ))  # fmt: skip
        try:
            client._channel.send(kind, body, end=LATER)
            read_to_end(client._line)
        except TransferError:
            pass  # it has closed the connection before all was sent
        with connected(one.address) as other:
            assert other.find(keys_of(1)) == 1
    assert one.refused == 1


def test_slow_handshakes_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """And so many connections at most are open meanwhile."""
    with serving([1]) as one:
        lines = [socket.create_connection(one.address) for _ in range(server.MOST_CONNECTIONS)]
        wait_until(lambda: len(one._open) == server.MOST_CONNECTIONS)
        with connected(one.address) as client:
            with pytest.raises(TransferError):
                client.find(keys_of(1))
            lines.pop().close()
            wait_until(lambda: len(one._open) < server.MOST_CONNECTIONS)
            assert client.find(keys_of(1)) == 1
        for line in lines:
            line.close()
        wait_until(lambda: one.refused == 1)
        monkeypatch.setattr(server, "SHAKE", 0.05)
        with socket.create_connection(one.address) as line:
            line.settimeout(WAIT)
            line.sendall(b"f")
            assert read_to_end(line) == 0
    assert one.refused == 2, "those that left before the handshake are not counted"


def test_a_server_that_ends_closes_its_connections() -> None:
    with serving([1]) as one:
        client = PeerClient(one.address, KEY, KIND)
        assert client.find(keys_of(1)) == 1
        one.close()
        assert not any(thread.is_alive() for thread in one._threads)
        with pytest.raises(TransferError):
            client.find(keys_of(1))
    with serving([1]) as again, connected(again.address) as other:
        assert other.find(keys_of(1)) == 1


def test_a_port_in_use_is_refused_in_one_line() -> None:
    with serving([1]) as one, pytest.raises(ConfigError) as refused:
        server.BlockServer(one.address, KEY)
    assert str(refused.value) == (
        f"prefix_cache_listen = '{one.address}' cannot be listened on: Address already in use; "
        "choose another address or port"
    )


# --- servers that are bad ---


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


def test_a_fetch_holds_so_many_blocks_at_most() -> None:
    with serving(range(20)) as one:
        worker = PeerWorker(PeerClient(one.address, KEY, KIND), PeerLog())
        fetch, keys = ChainFetch(keys_of(*range(20)), 3, Event()), keys_of(*range(20))
        worker.get(fetch, 20)
        for count, key in enumerate(keys):
            wait_until(lambda key=key: key in fetch)  # type: ignore[misc]
            assert fetch.received <= count + 3
            assert fetch.take(key) is not None
        wait_until(lambda: fetch.ended)
        assert fetch.received == 20 and fetch.empty
        again = ChainFetch(keys, 3, Event())
        worker.get(again, 20)
        wait_until(lambda: again.full)
        worker.close()
        assert again.ended and worker._thread is not None and not worker._thread.is_alive()


def find(worker: PeerWorker, numbers: list[int]) -> ChainFetch:
    """A fetch for which a peer has answered."""
    fetch = ChainFetch(keys_of(*numbers), 8, Event())
    worker.find(fetch)
    wait_until(lambda: bool(fetch.read_found()))
    return fetch


def read_to_end(line: socket.socket) -> int:
    """How many bytes come until the other side closes."""
    count = 0
    try:
        while part := line.recv(1 << 16):
            count += len(part)
    except ConnectionError:
        pass
    return count


def wait_until(holds: Callable[[], bool]) -> None:
    waited, pause = 0.0, Event()
    while not holds():
        assert waited < WAIT, "it never came true"
        pause.wait(0.005)
        waited += 0.005
