"""What a server and the machines that run its replicas agree on, without Ray.

Invariant: a replica is named by its cluster and a name is never used again.  Requests and answers
are frames of the engine's pipe (`server.pipe`), as bytes that nothing here reads.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol

END = b""  # the last item of a stream whose request has ended
GONE = b"gone"  # the only item of a stream whose replica takes no new requests


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """How many replicas run and where.  `least` and `most` differ where load decides.  `address` is
    an existing cluster, "" one that is started on this machine for as long as the server runs.
    Each replica reserves `cores`, 0 a whole machine.  One that ends by plan has `drain` seconds for
    its requests; one that is silent for `patience` seconds is replaced.  The cluster aims at
    `target` requests on each.
    """

    least: int
    most: int
    address: str = ""
    cores: int = 0
    drain: float = 600.0
    patience: float = 60.0
    target: int = 32

    @property
    def engine_patience(self) -> float:
        """Seconds without an answer after which a replica kills its own engine.

        The server drops a replica without progress after twice `patience`.  This is earlier: one
        that is dropped cannot kill its engine any more, which then ends by its watchdog alone.
        """
        return 1.5 * self.patience


class ReplicaProgram(Protocol):
    """What runs in the process of a replica: an engine behind frames."""

    async def start(self) -> None:
        """Returns once its engine is loaded.  Raises `ConfigError`."""

    def compute(self, frame: bytes) -> AsyncIterator[bytes]:
        """The frames that answer a request, with `END` at last; without it, the engine was lost."""

    async def tell(self, frame: bytes) -> bytes:
        """Takes a message that is no request; the frame that answers it, or nothing."""

    def report(self) -> bytes:
        """Its state now, for `Cluster.list`."""

    @property
    def healthy(self) -> bool:
        """Whether its engine runs."""

    async def close(self) -> None: ...


class Cluster(Protocol):
    """Starts and ends replicas, and carries frames to them.  All methods may raise `EngineError`
    where the cluster itself is lost.
    """

    async def start(self, setup: bytes) -> None:
        """Starts the replicas that `setup` describes, in place of those that run, a few at a time.
        Does not wait for them.  Raises `ConfigError`.
        """

    async def list(self) -> Mapping[str, bytes]:
        """What each replica reported last, also while it loads or drains; by name."""

    def compute(self, name: str, frame: bytes) -> AsyncIterator[bytes]:
        """See `ReplicaProgram.compute`; `GONE` where it does not take new requests.  Raises
        `CallError` where the replica failed in this call and goes on; other errors, and a stream
        without `END`, mean that it was lost.
        """

    async def tell(self, name: str, frame: bytes) -> bytes:
        """See `ReplicaProgram.tell`; `GONE` where it does not run."""

    async def drop(self, name: str) -> None:
        """Ends a replica at once, with its requests.  Another is started in its place."""

    async def stop(self) -> None:
        """Ends all replicas."""

    async def close(self) -> None:
        """Leaves the cluster, and ends one that was started for this server."""
