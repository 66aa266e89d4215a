"""Nodes that join, over real sockets and without ranks: who is refused, and who notices what."""

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import msgspec
import pytest

from flyweight.errors import ConfigError
from flyweight.kv.peers.channel import TransferError
from flyweight.kv.peers.secret import SharedSecret
from flyweight.parallel import rendezvous
from flyweight.parallel.nodes import follower
from flyweight.parallel.nodes.follower import join, receive_start
from flyweight.parallel.nodes.leader import JoinedNode, JoinedNodes, NodeListener
from flyweight.parallel.nodes.link import NodeLink
from flyweight.parallel.nodes.messages import NodeHello, RankSetup, ServerEnded, find_difference
from flyweight.parallel.rendezvous import (
    KeyRelay,
    KeyValue,
    RankBoard,
    RankEnded,
    RankReport,
    SharedKeys,
)

KEY = SharedSecret.of(b"s" * 32).nodes
LATE = 60.0  # seconds for what should take none
OURS = NodeHello(0, "1.0", "c0de", "feed", "avx2", {"block_size": "32", "nnodes": "2"}, 10, 100)
HOST = "127.0.0.1"


def make_hello(node: int = 1, **other: Any) -> NodeHello:
    return msgspec.structs.replace(OURS, node=node, **other)


@dataclass
class Listening:
    """Node 0 on a free port, and what it says."""

    listener: NodeListener
    pool: ThreadPoolExecutor
    said: list[str] = field(default_factory=list)

    @property
    def where(self) -> tuple[str, int]:
        return HOST, self.listener._line.getsockname()[1]

    def wait(self, count: int = 2, seconds: float = LATE) -> "Future[list[JoinedNode]]":
        return self.pool.submit(self.listener.wait, OURS, count, seconds)

    def join(self, hello: NodeHello, key: bytes = KEY) -> "Future[Any]":
        return self.pool.submit(self._join, hello, key)

    def _join(self, hello: NodeHello, key: bytes) -> Any:
        link = join(self.where, key, LATE)
        return link, receive_start(link, hello)


@contextmanager
def listening() -> Iterator[Listening]:
    said: list[str] = []
    listener = NodeListener(HOST, 0, KEY, said.append)
    with ThreadPoolExecutor() as pool, closing(listener):
        yield Listening(listener, pool, said)


def make_setup(rank: int) -> RankSetup:
    return RankSetup({"tensor_parallel_size": 3}, rank, [(0, 4)], HOST, {}, "bf16")


def test_nodes_get_their_ranks_in_order() -> None:
    with listening() as node:
        waiting = node.wait(3)
        second = node.join(make_hello(2, blocks=7))
        first = node.join(make_hello(1, max_model_len=50))
        nodes = JoinedNodes(waiting.result(LATE))
        assert nodes.address == HOST
        board = RankBoard([1, 2], pytest.fail)
        nodes.start_ranks([make_setup(1), make_setup(2)], 1, board)
        found = [one.result(LATE)[1] for one in (first, second)]
        assert [[setup.rank for setup in setups] for setups in found] == [[1], [2]]
        board.close()
        nodes.close("enough")
        assert first.result()[0].receive() == ServerEnded("enough")
    assert sorted(node.said) == ["node 1 has joined", "node 2 has joined"]


def test_of_two_servers_that_start_at_once_one_has_the_port() -> None:
    """Nodes that came before the first one was ready get in, and leave no note."""
    with listening() as node:
        with pytest.raises(ConfigError, match=r"master_port = \d+ is in use"):
            NodeListener(*node.where, KEY, node.said.append)
        with suppress(TransferError), socket.create_connection(node.where) as gone:
            gone.sendall(b"a node that was not patient")
        joining = node.join(make_hello())
        (joined,) = node.wait().result(LATE)
        board = RankBoard([1], pytest.fail)
        JoinedNodes([joined]).start_ranks([make_setup(1)], 1, board)
        assert joining.result(LATE)[1]
        assert node.said == ["node 1 has joined"]
        board.close()
        joined.link.close()


@pytest.mark.parametrize(
    "other, said",
    [
        ({"version": "1.1", "isa": "x"}, "node 1 has flyweight 1.1, node 0 has 1.0; install the "
         "same"),
        ({"code": "beef"}, "node 1 has another build of flyweight 1.0: beef, node 0 has c0de; "
         "install the same"),
        ({"weights": "dead"}, "node 1 has other weights: fingerprint dead, node 0 has feed; give "
         "both the same model"),
        ({"options": {"block_size": "16", "nnodes": "2"}}, "node 1 has block_size = 16, node 0 has "
         "32; give both the same"),
        ({"isa": "avx512"}, "node 1 computes with avx512, node 0 with avx2; set FLYWEIGHT_ISA to "
         "one that both have"),
    ],
)  # fmt: skip
def test_a_difference_is_refused_on_both_sides(other: dict[str, Any], said: str) -> None:
    with listening() as node:
        waiting, joining = node.wait(), node.join(make_hello(**other))
        for side in (waiting, joining):
            with pytest.raises(ConfigError) as refused:
                side.result(LATE)
            assert str(refused.value) == said


def test_equal_nodes_do_not_differ() -> None:
    assert find_difference(make_hello(blocks=1, max_model_len=2), OURS) == ""


def test_a_stranger_does_not_end_the_wait() -> None:
    with listening() as node:
        waiting = node.wait()
        with pytest.raises(ConfigError, match="it refused our secret"):
            node.join(make_hello(), SharedSecret.of(b"t" * 32).nodes).result(LATE)
        with socket.create_connection(node.where) as line:
            line.sendall(b"GET / HTTP/1.1\r\n" + bytes(64))
            with suppress(ConnectionError):
                assert line.recv(100) == b""
        joining = node.join(make_hello())
        ((link, hello),) = waiting.result(LATE)
        assert hello.node == 1
        link.close()
        with pytest.raises(TransferError):
            joining.result(LATE)
    refused = "could not join: it has another secret"
    end = time.monotonic() + LATE  # it is said on a thread of its own
    while not any(refused in text for text in node.said):
        assert time.monotonic() < end, node.said
        time.sleep(0.01)


def test_a_number_is_given_once_and_again_where_its_node_has_left() -> None:
    with listening() as node:
        waiting, first = node.wait(3), node.join(make_hello(1))
        while node.said != ["node 1 has joined"]:
            pass
        with pytest.raises(ConfigError, match="node_rank = 1 has joined already"):
            node.join(make_hello(1)).result(LATE)
        link = join(node.where, KEY, LATE)
        second = node.join(make_hello(2))
        for one in waiting.result(LATE):
            one.link.close()
        link.close()
        for side in (first, second):
            with pytest.raises(TransferError):
                side.result(LATE)


def test_a_node_that_does_not_come_is_named() -> None:
    with listening() as node:
        with pytest.raises(ConfigError) as refused:
            node.wait(3, 0.1).result(LATE)
        port = node.where[1]
        assert str(refused.value).startswith(
            f"distributed_timeout_seconds = 0.1 passed, and 2 more had not joined at {HOST}:"
        )
        with pytest.raises(ConfigError, match=f"master_port = {port} is in use on {HOST}"):
            NodeListener(HOST, port, KEY, print)


def test_addresses_that_are_not_there() -> None:
    with pytest.raises(ConfigError, match=r"^master_addr = '192.0.2.1' cannot be listened on"):
        NodeListener("192.0.2.1", 0, KEY, print)
    with socket.create_server((HOST, 0)) as line:
        where = line.getsockname()
    with pytest.raises(ConfigError, match=r"^master_addr = '127.0.0.1' cannot be reached at port"):
        join(where, KEY, 0)


@contextmanager
def linked() -> Iterator[tuple[NodeLink, NodeLink]]:
    """Both ends of a connection."""
    with listening() as node:
        waiting = node.wait()
        near = join(node.where, KEY, LATE)
        near.send(make_hello())
        ((far, _),) = waiting.result(LATE)
        yield near, far
        near.close()
        far.close()


def test_a_node_that_is_lost_ends_a_start_and_then_the_process() -> None:
    lost: list[str] = []
    for connected in (False, True):
        with linked() as (near, far):
            board = RankBoard([1], lost.append)
            board.connected = connected
            JoinedNodes([JoinedNode(far, OURS)]).start_ranks([make_setup(1)], 1, board)
            near.close()
            with pytest.raises(ConfigError, match="node 1 is lost"):
                board.wait()
            board.close()
    assert lost == ["node 1 is lost: it closed the connection"]


def test_a_start_that_does_not_end_after_a_loss_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that connect over a link which was cut may wait for ever."""
    monkeypatch.setattr(rendezvous, "GRACE", 0.05)
    lost: SimpleQueue[str] = SimpleQueue()
    board = RankBoard([1], lost.put)
    board.lose_node("node 1 is lost")
    assert lost.get(timeout=LATE) == "node 1 is lost"


@pytest.mark.parametrize("closed", [False, True])
def test_a_rank_that_ends_while_the_server_is_idle_is_reported(closed: bool) -> None:
    lost: list[str] = []
    board = RankBoard([1, 2], lost.append)
    for rank in (1, 2):
        board.take(Inbox(), RankReport(rank))
    board.watched = True
    if closed:
        board.close()
    board.take(Inbox(), RankEnded(2))
    assert lost == ([] if closed else ["rank 2 has ended"])


def test_a_node_0_that_ends_during_the_handshake_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follower, "RETRY", 0.01)
    tries: list[int] = []

    def connect(where: tuple[str, int], key: bytes) -> str:
        tries.append(1)
        if len(tries) < 3:
            raise TransferError("secret", "it refused our secret")
        return "joined"

    monkeypatch.setattr(follower, "_connect", connect)
    assert follower.join((HOST, 1), KEY, LATE) == "joined"
    tries.clear()
    monkeypatch.setattr(follower, "REFUSALS", 2)
    with pytest.raises(ConfigError, match="is not the secret of"):
        follower.join((HOST, 1), KEY, LATE)


class Inbox:
    """A target that keeps what it gets."""

    def __init__(self) -> None:
        self.got: list[KeyValue] = []

    def send(self, message: KeyValue) -> None:
        self.got.append(message)


def test_a_key_reaches_all_but_the_one_that_set_it() -> None:
    boxes = [Inbox(), Inbox(), Inbox()]
    relay, message = KeyRelay(boxes), KeyValue("k", b"v")
    relay.publish(message, boxes[1])
    assert [box.got for box in boxes] == [[message], [], [message]]


def test_keys_are_waited_for_until_they_are_there_or_cannot_come() -> None:
    keys = SharedKeys(lambda message: None)
    with pytest.raises(RuntimeError, match="no rank answered within 0 s"):
        keys.wait_for(["k"], 0)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(keys.wait_for, ["k", "l"], LATE)
        keys.put(KeyValue("k", b"1"))
        keys.set("l", b"2")
        assert waiting.result(LATE) == [b"1", b"2"]
        waiting = pool.submit(keys.wait_for, ["m"], LATE)
        keys.end("rank 1 ended")
        with pytest.raises(RuntimeError, match="rank 1 ended"):
            waiting.result(LATE)
        assert keys.wait_for(["k"], LATE) == [b"1"]


@pytest.mark.parametrize(
    "message, said",
    [
        (RankReport(1, "no memory"), "rank 1: no memory"),
        (RankEnded(1), "rank 1 ended before it had loaded its part of the model"),
    ],
)
def test_the_first_problem_of_a_rank_is_reported(message: Any, said: str) -> None:
    board, later = RankBoard([1, 2], pytest.fail), RankEnded(2)
    take: Callable[[Any], None] = lambda one: board.take(Inbox(), one)  # noqa: E731
    take(message)
    take(later)
    with pytest.raises(ConfigError) as refused:
        board.wait()
    assert str(refused.value) == said


def test_ranks_that_have_loaded_are_waited_for() -> None:
    board = RankBoard([1, 2], pytest.fail)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(board.wait)
        for rank in (1, 2):
            board.take(Inbox(), RankReport(rank))
        assert waiting.result(LATE) is None
