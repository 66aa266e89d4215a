"""The other ranks of a model, as processes of this machine or of other nodes, and a runner that has
all ranks compute each step.

Invariant: a rank ends when its standard input does, so none outlives the process that started it.
Rank 0 alone schedules and samples; the others get a step's arrays and compute it up to its logits.
Knows no requests.
"""

import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING

import msgspec

from flyweight.config import Limits, Settings
from flyweight.engine.hook import LogitsEdit, LogitsRead
from flyweight.engine.runner import Runner, Ticket
from flyweight.errors import ConfigError
from flyweight.parallel.messages import Moves, write_step
from flyweight.parallel.nodes.leader import NO_NODES, JoinedNodes
from flyweight.parallel.nodes.messages import RankSetup
from flyweight.parallel.numa import Cores, stay_on
from flyweight.parallel.rendezvous import (
    KeyValue,
    RankBoard,
    RankEnded,
    RankMessage,
    RankReport,
    SharedKeys,
)
from flyweight.parallel.sharding import RankPlace
from flyweight.wire import Batch, Sampled

if TYPE_CHECKING:
    from flyweight.parallel.connections import RankConnections

# Of `Settings`: what a rank must know to load its part as rank 0 loads its own.
SHARED = (
    "model", "load_format", "quantization", "packed_cache", "threads", "activations", "isa",
    "backend", "deterministic", "block_size", "tensor_parallel_size", "pipeline_parallel_size",
    "enable_expert_parallel",
)  # fmt: skip
LEAVING = 5.0  # seconds a rank has to end by itself


class RankPipe:
    """A rank of this machine, over its standard input and output.  `take` gets its messages, on a
    thread of their own; the last is a `RankEnded`.
    """

    def __init__(self, setup: RankSetup, take: Callable[["RankPipe", RankMessage], None]) -> None:
        self.rank, self.child = setup.rank, start_rank(setup)
        self._lock = Lock()  # several threads send
        Thread(target=self._read, args=(take,), name=f"rank {self.rank}", daemon=True).start()

    def send(self, message: KeyValue) -> None:
        assert self.child.stdin is not None
        with self._lock, suppress(OSError, ValueError):  # its end is noticed by the reader
            self.child.stdin.write(msgspec.json.encode(message) + b"\n")
            self.child.stdin.flush()

    def _read(self, take: Callable[["RankPipe", RankMessage], None]) -> None:
        assert self.child.stdout is not None
        with suppress(OSError, ValueError):  # the pipe is closed by `end_processes`
            for line in self.child.stdout:
                take(self, _read_message(self.rank, line))
        take(self, RankEnded(self.rank))


class RankProcesses:
    """All ranks but rank 0, whose place is `place`; none where a model is not divided.  They load
    while this process does.  `children` are those of this machine.
    """

    def __init__(
        self, settings: Settings, path: Path, places: Sequence[RankPlace],
        shape: tuple[Limits, str], cores: Sequence[Cores], nodes: JoinedNodes = NO_NODES,
    ) -> None:  # fmt: skip
        """`shape` are the limits and the type of the K/V memory, `cores` those of each rank of this
        machine.
        """
        self.place, (limits, kv_dtype), self.cores = places[0], shape, cores[0]
        self.address, self._nodes, self.divided = nodes.address, nodes, len(places) > 1
        self.children: list[subprocess.Popen[bytes]] = []
        self._board = board = RankBoard((one.rank for one in places[1:]), nodes.on_lost)
        self._finalize = weakref.finalize(self, _end_ranks, board, self.children)
        shared = {name: getattr(settings, name) for name in SHARED} | {"model": str(path)}
        stages = [(layers.start, len(layers)) for layers in self.place.stages]
        limit = asdict(limits)
        setups = [RankSetup(shared, other.rank, stages, self.address, limit, kv_dtype)
                  for other in places[1:]]  # fmt: skip
        here = settings.local_ranks
        for setup in setups:
            setup.local_rank = setup.rank % here
        for link in nodes.links:
            board.relay.add(link)
        for setup, own in zip(setups, cores[1:], strict=False):
            setup.cores = sorted(own)
            pipe = RankPipe(setup, board.take)
            self.children.append(pipe.child)
            board.relay.add(pipe)
        nodes.start_ranks(setups[here - 1 :], here, board)

    @property
    def keys(self) -> SharedKeys:
        """Where rank 0 finds the others."""
        return self._board.keys

    def wait(self) -> None:
        """Waits until all have loaded their parts.  Raises `ConfigError` where one cannot."""
        try:
            self._board.wait()
        except ConfigError as error:
            self.close(str(error))
            raise

    def note_connected(self, served: bool) -> None:
        """All ranks are connected: from now on the loss of a node is reported at once, and that of
        any rank where this process is a server's.
        """
        self._board.connected, self._board.watched = True, served

    @contextmanager
    def close_on_error(self) -> Iterator[None]:
        """Ends them where the block raises: nothing would use them any more."""
        try:
            yield
        except BaseException as error:
            self.close(str(error) or type(error).__name__)
            raise

    def end(self, connections: "RankConnections") -> None:
        """Ends them as planned, or after one was lost."""
        connections.close()
        if connections.everyone.lost:
            self.drop()
        else:
            self.close()

    def close(self, problem: str = "") -> None:
        """Ends them; `problem` is why, where it is no end as planned."""
        self._board.close()
        self._nodes.close(problem)
        self._finalize()

    def drop(self) -> None:
        """Ends them after one was lost: other nodes wait for the next start."""
        self._board.close()
        self._nodes.drop()
        self._finalize()


def start_rank(setup: RankSetup) -> "subprocess.Popen[bytes]":
    """A process that loads its part of a model, and then computes steps."""
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "flyweight.rank"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,  # Ctrl-C is for rank 0, which decides
    )
    assert child.stdin is not None
    with suppress(BrokenPipeError):  # `wait` says what became of it
        child.stdin.write(msgspec.json.encode(setup) + b"\n")
        child.stdin.flush()
    return child


def _read_message(rank: int, line: bytes) -> RankMessage:
    """What a rank has sent; what is no message is a problem of it."""
    try:
        message: RankMessage = msgspec.json.decode(line, type=RankMessage)
    except msgspec.DecodeError:
        return RankReport(rank, f"it wrote {line[:80]!r}, which is no report")
    return message


def _end_ranks(board: RankBoard, children: "Sequence[subprocess.Popen[bytes]]") -> None:
    board.close()
    end_processes(children)


def end_processes(children: "Sequence[subprocess.Popen[bytes]]") -> None:
    """Ends processes: by their standard input, then by force."""
    for child in children:
        if child.stdin is not None:
            with suppress(OSError):
                child.stdin.close()
    for child in children:
        try:
            child.wait(LEAVING)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdout is not None:
            with suppress(OSError, ValueError):
                child.stdout.close()


class LeadingRunner:
    """Rank 0's runner: sends each step to the other ranks, and computes its own part on its
    `cores`.
    """

    def __init__(self, runner: Runner, connections: "RankConnections", cores: Cores) -> None:
        self.runner, self.group, self.cores = runner, connections.everyone, cores
        self._connections = connections
        self._within = False  # a step was begun and not ended

    def submit(
        self,
        batch: Batch,
        moves: Moves = None,
        edits: Sequence[LogitsEdit] = (),
        reads: Sequence[LogitsRead] = (),
    ) -> Ticket:
        """See `Runner.submit`.  A step that was interrupted leaves the ranks in different places:
        `RankLost` is raised from then on.
        """
        if self._within:
            self.group.lose("a step was interrupted while its ranks computed it")
        self._within = True
        with stay_on(self.cores):
            self.group.broadcast(write_step(batch, moves))
            found = self.runner.compute(batch, moves)
            self._connections.finish_step()
            self._within = False
            return self.runner.sample(found, batch, edits, reads)

    def wait(self, ticket: Ticket) -> Sampled:
        return self.runner.wait(ticket)
