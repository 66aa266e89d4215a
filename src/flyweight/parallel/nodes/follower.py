"""Another node's side: it joins node 0, and runs the ranks that node 0 describes.

Invariant: no rank outlives the connection.  Knows no model.
"""

import socket
from collections.abc import Mapping, Sequence
from time import monotonic, sleep
from typing import Any

from flyweight.errors import ConfigError
from flyweight.kv.peers.channel import TransferError, open_channel
from flyweight.parallel.nodes.link import NodeLink, open_stream
from flyweight.parallel.nodes.messages import (
    NodeHello,
    NodeRefused,
    RankSetup,
    ServerEnded,
    StartRanks,
)
from flyweight.parallel.nodes.secret import OPTION
from flyweight.parallel.numa import Cores
from flyweight.parallel.processes import RankPipe, end_processes
from flyweight.parallel.rendezvous import KeyRelay, KeyValue, RankMessage

CONNECT = 5.0  # seconds of a try, and of its handshake
RETRY = 0.5  # seconds between tries
REFUSALS = 3  # in a row, of a secret: a node 0 that ends during the handshake looks like one


def join(where: tuple[str, int], key: bytes, seconds: float) -> NodeLink:
    """A connection to node 0, which may not have started yet.  Raises `ConfigError`."""
    end, refusals = monotonic() + seconds, 0
    while True:
        try:
            return _connect(where, key)
        except TransferError as error:
            refusals = refusals + 1 if error.cause == "secret" else 0
            if refusals == REFUSALS:
                raise ConfigError(
                    f"is not the secret of {where[0]}:{where[1]}: {error}", OPTION,
                    hint="give all nodes a copy of one file",
                ) from None  # fmt: skip
            if monotonic() > end:
                raise ConfigError(
                    f"cannot be reached at port {where[1]} within {seconds:g} s: {error}",
                    "master_addr", value=where[0],
                    hint="start node 0, and let its firewall pass the port",
                ) from None  # fmt: skip
        sleep(RETRY)


def receive_start(link: NodeLink, hello: NodeHello) -> Sequence[RankSetup]:
    """The ranks that node 0 wants.  Raises `ConfigError` where it refuses the node or cannot start,
    `TransferError` where it is lost.
    """
    link.send(hello)
    answer = link.receive()
    if isinstance(answer, NodeRefused | ServerEnded):
        raise ConfigError(answer.problem or "node 0 ended while it started")
    if not isinstance(answer, StartRanks):
        raise TransferError("garbage", "no answer to the hello")
    return answer.setups


def run_ranks(
    link: NodeLink, setups: Sequence[RankSetup], own: Mapping[str, Any], cores: Sequence[Cores]
) -> ServerEnded:
    """Runs ranks, with this node's `own` settings and the `cores` of each, until node 0 ends.
    Raises `TransferError` where it is lost.
    """
    relay, pipes = KeyRelay([link]), list[RankPipe]()

    def take(pipe: RankPipe, message: RankMessage) -> None:
        if isinstance(message, KeyValue):
            relay.publish(message, pipe)
        else:
            link.send(message)

    try:
        for setup, bound in zip(setups, cores, strict=True):
            setup.settings |= own
            setup.cores = sorted(bound)
            setup.address = link.address
            pipes.append(RankPipe(setup, take))
            relay.add(pipes[-1])
        while True:
            message = link.receive()
            if isinstance(message, ServerEnded):
                return message
            if not isinstance(message, KeyValue):
                raise TransferError("garbage", "a message that only other nodes send")
            relay.publish(message, link)
    finally:
        end_processes([pipe.child for pipe in pipes])


def _connect(where: tuple[str, int], key: bytes) -> NodeLink:
    try:
        line = socket.create_connection(where, CONNECT)
    except OSError as error:
        raise TransferError("unreachable", error.strerror or str(error)) from None
    try:
        stream = open_stream(line)
        return NodeLink(line, open_channel(stream, key, monotonic() + CONNECT))
    except TransferError:
        line.close()
        raise
