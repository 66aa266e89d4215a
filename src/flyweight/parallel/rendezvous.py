"""How ranks find each other: keys that each of them sets, and all of them get.

A rank sends a key to the process that started it, which passes it on to its other ranks and to the
other nodes.  So no port is opened for it.

Invariant: a key that was set reaches every rank, or the wait for it ends.  Imports no torch.
"""

from collections.abc import Callable, Iterable, Sequence
from threading import Condition, Timer
from typing import Protocol

import msgspec

from flyweight.errors import ConfigError

GRACE = 30.0  # seconds that a start which lacks a node has to end


class KeyValue(msgspec.Struct, tag="key"):
    """A key that a rank has set."""

    key: str
    value: bytes


class RankReport(msgspec.Struct, tag="report"):
    """A rank has loaded its part of the model, or what is wrong."""

    rank: int
    problem: str = ""


class RankEnded(msgspec.Struct, tag="ended"):
    """The process of a rank has ended."""

    rank: int


RankMessage = KeyValue | RankReport | RankEnded


class MessageTarget(Protocol):
    """Where messages go.  One that is gone takes no more, and raises nothing."""

    def send(self, message: KeyValue) -> None: ...


class SharedKeys:
    """The keys of all ranks, as one of them sees them.  Used by several threads."""

    def __init__(self, publish: Callable[[KeyValue], None]) -> None:
        """`publish` gets each key that is set here."""
        self._publish = publish
        self._changed = Condition()
        self._values: dict[str, bytes] = {}
        self._problem = ""

    def set(self, key: str, value: bytes) -> None:
        message = KeyValue(key, value)
        self.put(message)
        self._publish(message)

    def put(self, message: KeyValue) -> None:
        """Another rank has set a key."""
        with self._changed:
            self._values[message.key] = message.value
            self._changed.notify_all()

    def end(self, problem: str) -> None:
        """Ends all waits."""
        with self._changed:
            self._problem = self._problem or problem
            self._changed.notify_all()

    def has(self, keys: Iterable[str]) -> bool:
        """Whether all of these were set."""
        return all(key in self._values for key in keys)

    def wait_for(self, keys: Sequence[str], seconds: float) -> list[bytes]:
        """The values of these keys.  Raises `RuntimeError` where one is not set in time."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.has(keys) or self._problem, seconds):
                raise RuntimeError(f"no rank answered within {seconds:g} s")
            if not self.has(keys):
                raise RuntimeError(self._problem)
            return [self._values[key] for key in keys]


class KeyRelay:
    """Passes keys on to all targets but the one that they come from."""

    def __init__(self, targets: Iterable[MessageTarget] = ()) -> None:
        self._targets = list(targets)

    def add(self, target: MessageTarget) -> None:
        self._targets.append(target)

    def publish(self, message: KeyValue, source: MessageTarget | None = None) -> None:
        for target in self._targets:
            if target is not source:
                target.send(message)


class RankBoard:
    """What rank 0 knows of the other ranks: whether they have loaded, and their keys.

    `on_lost` is called where another node is lost once all ranks are connected, or is lost before
    and the start has not ended after `GRACE`: a wait for one of its ranks might not end.  It is
    called as well where a rank ends that is `watched`.
    """

    def __init__(self, ranks: Iterable[int], on_lost: Callable[[str], object]) -> None:
        self.relay = KeyRelay()
        self.keys = SharedKeys(self.relay.publish)
        self.connected = self.watched = False
        self._waiting, self._problem, self._changed = set(ranks), "", Condition()
        self._on_lost, self._closed = on_lost, False

    def take(self, source: MessageTarget, message: RankMessage) -> None:
        if isinstance(message, KeyValue):
            self.keys.put(message)
            self.relay.publish(message, source)
        elif isinstance(message, RankEnded):
            loading = message.rank in self._waiting
            when = " before it had loaded its part of the model" if loading else ""
            if self.watched:
                self._lose(f"rank {message.rank} has ended")
            self.fail(f"rank {message.rank} ended{when}")
        elif message.problem:
            self.fail(f"rank {message.rank}: {message.problem}")
        else:
            with self._changed:
                self._waiting.discard(message.rank)
                self._changed.notify_all()

    def lose_node(self, problem: str) -> None:
        """The connection to another node has ended."""
        if self.connected:
            self._lose(problem)
        else:
            later = Timer(GRACE, self._lose, (problem,))
            later.daemon = True
            later.start()
        self.fail(problem)

    def _lose(self, problem: str) -> None:
        if not self._closed:
            self._on_lost(problem)

    def fail(self, problem: str) -> None:
        """Ends all waits; only the first problem is kept."""
        with self._changed:
            self._problem = self._problem or problem
            self._changed.notify_all()
        self.keys.end(problem)

    def wait(self) -> None:
        """Waits until all have loaded their parts.  Raises `ConfigError` where one cannot."""
        with self._changed:
            self._changed.wait_for(lambda: self._problem or not self._waiting)
            if self._problem:
                raise ConfigError(self._problem)

    def close(self) -> None:
        """From now on it is no loss that others end."""
        self._closed = True
