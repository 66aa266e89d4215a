"""Node 0's side: it listens until all other nodes have joined, and has them start their ranks.

Invariant: a node that has joined has the secret, the same weights, version and options.  A stranger
can neither end the wait nor learn more than that there is a server.  Knows no ranks' work.
"""

import errno
import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from threading import BoundedSemaphore, Thread
from time import monotonic, sleep
from typing import NamedTuple, NoReturn

from flyweight.config import Settings
from flyweight.errors import ConfigError
from flyweight.kv.peers.channel import TransferError, accept_channel
from flyweight.parallel.nodes.link import NodeLink, open_stream
from flyweight.parallel.nodes.messages import (
    LOOPBACK,
    NodeHello,
    NodeRefused,
    RankSetup,
    ServerEnded,
    StartRanks,
    find_difference,
)
from flyweight.parallel.nodes.secret import read_node_key
from flyweight.parallel.rendezvous import KeyValue, RankBoard, RankEnded, RankReport
from flyweight.plan.memory import MemoryPlan

MOST_CONNECTIONS = 64  # at a time, until the secret is proved
MOST_NOTES = 64  # of hosts that could not join
SHAKE = 5.0  # seconds of a handshake
Note = Callable[[str], None]


class JoinedNode(NamedTuple):
    """Another node, and what it is."""

    link: NodeLink
    hello: NodeHello


def end_process(problem: str) -> NoReturn:
    """Ends this process, of which a thread may wait for a host that is gone."""
    sys.stderr.write(f"error: {problem}\n")
    sys.stderr.flush()
    os._exit(1)


class JoinedNodes:
    """The other nodes of a server, in order.  `address` is where they reach this one, `on_lost` is
    called where one is lost once all ranks are connected.
    """

    def __init__(
        self, joined: Sequence[JoinedNode] = (), on_lost: Callable[[str], object] = end_process
    ) -> None:
        self.links = [one.link for one in joined]
        self._hellos = [one.hello for one in joined]
        self.address = self.links[0].address if self.links else LOOPBACK
        self.on_lost = on_lost

    def limit(self, memory: MemoryPlan) -> MemoryPlan:
        """A plan with no more blocks than every node has memory for, and no longer context."""
        for other in self._hellos:
            length = min(memory.sizing.max_model_len, other.max_model_len)
            sizing = replace(memory.sizing, max_model_len=length)
            memory = replace(memory, blocks=min(memory.blocks, other.blocks), sizing=sizing)
        return memory

    def start_ranks(self, setups: Sequence[RankSetup], each: int, board: RankBoard) -> None:
        """Has each node start its ranks; the board gets what they send."""
        for node, link in enumerate(self.links, 1):
            own = setups[(node - 1) * each : node * each]
            link.send(StartRanks(list(own)))
            name, args = f"node {node}", (node, link, board)
            Thread(target=_read_node, args=args, name=name, daemon=True).start()

    def close(self, problem: str = "") -> None:
        """Ends the other nodes."""
        for link in self.links:
            link.send(ServerEnded(problem))
        self.drop()

    def drop(self) -> None:
        """Leaves them; they try to join again."""
        for link in self.links:
            link.close()


NO_NODES = JoinedNodes()


def _read_node(node: int, link: NodeLink, board: RankBoard) -> None:
    try:
        while True:
            message = link.receive()
            if isinstance(message, RankEnded):
                board.take(link, message)
                board.lose_node(f"rank {message.rank} of node {node} has ended")
            elif isinstance(message, KeyValue | RankReport):
                board.take(link, message)
            else:
                raise TransferError("garbage", "a message that only node 0 sends")
    except TransferError as error:
        board.lose_node(f"node {node} is lost: {error}")


def join_nodes(settings: Settings, make_hello: Callable[[], NodeHello], note: Note) -> JoinedNodes:
    """Waits for the other nodes.  Raises `ConfigError` where one differs, or none comes in time."""
    if settings.nnodes == 1:
        return NO_NODES
    key = read_node_key(settings)
    with closing(NodeListener(settings.master_addr, settings.master_port, key, note)) as listener:
        ours = make_hello()
        note(f"waiting for {settings.nnodes - 1} more at {listener}")
        seconds = settings.distributed_timeout_seconds
        return JoinedNodes(listener.wait(ours, settings.nnodes, seconds))


class NodeListener:
    """Where other nodes join; bound at once, so that a port in use is refused before a file is
    read.
    """

    def __init__(self, host: str, port: int, key: bytes, note: Note) -> None:
        self._where, self._key, self._note = (host, port), key, note
        self._line = _bind(host, port)
        self._room = BoundedSemaphore(MOST_CONNECTIONS)
        self._arrived: SimpleQueue[JoinedNode | ConfigError] = SimpleQueue()
        self._closed, self._said = False, set[str]()

    def __str__(self) -> str:
        host, port = self._where
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def wait(self, ours: NodeHello, count: int, seconds: float) -> list[JoinedNode]:
        """All nodes but this one, which must be like `ours`.  Raises `ConfigError`."""
        self._drop_early()
        Thread(target=self._accept, args=(ours,), name="nodes", daemon=True).start()
        end, joined = monotonic() + seconds, dict[int, JoinedNode]()
        try:
            while len(joined) < count - 1:
                self._add(joined, self._take(end, seconds, count - 1 - len(joined)))
        except ConfigError as error:
            for one in joined.values():
                one.link.send(ServerEnded(str(error)))
                one.link.close()
            raise
        return [joined[node] for node in range(1, count)]

    def _drop_early(self) -> None:
        """Ends connections of before, most of which were given up: nodes try again."""
        self._line.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                self._line.accept()[0].close()
        self._line.setblocking(True)

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._line.close()

    def _take(self, end: float, seconds: float, missing: int) -> JoinedNode:
        try:
            found = self._arrived.get(timeout=max(0.0, end - monotonic()))
        except Empty:
            raise ConfigError(
                f"passed, and {missing} more had not joined at {self}",
                "distributed_timeout_seconds", value=seconds,
                hint="start them with --headless and the same --master-addr, --master-port and "
                "--node-secret-file",
            ) from None  # fmt: skip
        if isinstance(found, ConfigError):
            raise found
        return found

    def _add(self, joined: dict[int, JoinedNode], new: JoinedNode) -> None:
        """Refuses a second node of one number; one that left may come back."""
        node = new.hello.node
        if node in joined and joined[node].link.is_open:
            new.link.send(NodeRefused(f"node_rank = {node} has joined already; give each its own"))
            new.link.close()
            return
        joined[node] = new
        self._note(f"node {node} has joined")

    def _accept(self, ours: NodeHello) -> None:
        while not self._closed:
            try:
                line, where = self._line.accept()
            except OSError:  # it is closed, the client is gone, or too many files are open
                sleep(0.01)
                continue
            if not self._room.acquire(blocking=False):
                line.close()
                continue
            args = (line, str(where[0]), ours)
            Thread(target=self._greet, args=args, name="node joins", daemon=True).start()

    def _greet(self, line: socket.socket, where: str, ours: NodeHello) -> None:
        """From the handshake to the end of the comparison."""
        try:
            stream = open_stream(line)
            link = NodeLink(line, accept_channel(stream, self._key, monotonic() + SHAKE))
            hello = link.receive()
            if not isinstance(hello, NodeHello):
                raise TransferError("garbage", "no hello")
            problem = find_difference(hello, ours)
            if problem:
                link.send(NodeRefused(problem))
                link.close()
            self._arrived.put(ConfigError(problem) if problem else JoinedNode(link, hello))
        except TransferError as error:
            line.close()
            self._note_once(f"a host at {where} could not join: {error}")
        finally:
            self._room.release()

    def _note_once(self, text: str) -> None:
        """Strangers cannot fill the log."""
        if text not in self._said and len(self._said) < MOST_NOTES:
            self._said.add(text)
            self._note(text)


def _bind(host: str, port: int) -> socket.socket:
    """Raises `ConfigError`."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, where = found[0]
        line = socket.socket(family, kind, protocol)
        try:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            line.bind(where)
            line.listen(MOST_CONNECTIONS)  # else another may bind too, and learn of it later
            return line
        except OSError:
            line.close()
            raise
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"is in use on {host}", "master_port", value=port,
                hint="give all nodes another",
            ) from None  # fmt: skip
        raise ConfigError(
            f"cannot be listened on: {error.strerror or error}", "master_addr", value=host,
            hint="give an address of node 0's host",
        ) from None  # fmt: skip
