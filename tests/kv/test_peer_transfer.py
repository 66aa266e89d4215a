"""Blocks from server to client over loopback; peers that are refused, and clients that are bad."""

import logging
import os
import random
import socket
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from peer_cases import (
    HERE,
    KEY,
    KIND,
    LATER,
    WAIT,
    NumberedStore,
    check_blocks,
    connected,
    find,
    keys_of,
    serving,
    wait_until,
)
from store_cases import SIZE, key_of, opened, save

from flyweight.errors import ConfigError
from flyweight.kv.peers import messages, server
from flyweight.kv.peers.channel import TransferError
from flyweight.kv.peers.client import PeerClient
from flyweight.kv.peers.fetch import ChainFetch
from flyweight.kv.peers.log import PeerLog
from flyweight.kv.peers.messages import MOST_KEYS, BlockKind
from flyweight.kv.peers.worker import PeerWorker
from flyweight.validation.peers import MOST_PEERS


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


def test_a_store_serves_other_threads(tmp_path: Path) -> None:
    with opened(tmp_path / "blocks") as store:
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
        lines = [socket.create_connection(one.address) for _ in range(server.MOST_UNPROVED)]
        wait_until(lambda: len(one._open) == server.MOST_UNPROVED)
        with connected(one.address) as client:
            with pytest.raises(TransferError):
                client.find(keys_of(1))
            lines.pop().close()
            wait_until(lambda: len(one._open) < server.MOST_UNPROVED)
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


def test_as_many_peers_are_served_as_a_list_may_have() -> None:
    """More than may be unproved; one more is refused, and has room once another leaves."""
    with serving([1]) as one, ExitStack() as stack:
        peers = [stack.enter_context(connected(one.address)) for _ in range(MOST_PEERS)]
        assert [peer.find(keys_of(1)) for peer in peers] == [1] * MOST_PEERS
        with connected(one.address) as other:
            with pytest.raises(TransferError):
                other.find(keys_of(1))
            wait_until(lambda: one.refused == 1)
            peers[0].close()
            wait_until(lambda: len(one._proved) < MOST_PEERS)
            assert other.find(keys_of(1)) == 1


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


def test_of_two_servers_that_start_at_once_one_has_the_port() -> None:
    with closing(server.BlockServer(HERE, KEY)) as one:
        with pytest.raises(ConfigError, match="Address already in use"):
            server.BlockServer(one.address, KEY)
        one.start(NumberedStore([1]), KIND)
        with connected(one.address) as client:
            assert client.find(keys_of(1)) == 1


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


def read_to_end(line: socket.socket) -> int:
    """How many bytes come until the other side closes."""
    count = 0
    try:
        while part := line.recv(1 << 16):
            count += len(part)
    except ConnectionError:
        pass
    return count
