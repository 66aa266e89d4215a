"""Blocks on their way from a peer, between the thread that receives them and the engine's.

Invariant: at most `room` blocks are held; the receiving thread waits for room, the engine's thread
never waits.  A fetch that was cancelled takes no more blocks.
"""

from collections.abc import Sequence
from threading import Condition, Event

from flyweight.kv.peers.channel import Part


class ChainFetch:
    """The blocks of `keys`, which follow one another.  `news` is set when something changes."""

    def __init__(self, keys: Sequence[bytes], room: int, news: Event) -> None:
        self.keys, self.room, self.news = tuple(keys), room, news
        self.received = 0  # blocks
        self.ended = self.cancelled = False
        self._found: dict[str, int] = {}
        self._held: dict[bytes, Part] = {}
        self._change = Condition()

    # --- the threads of peers ---

    def note_found(self, name: str, count: int) -> None:
        """A peer has the first `count` of the keys."""
        with self._change:
            self._found[name] = count
        self.news.set()

    def put(self, key: bytes, data: Part) -> bool:
        """Hands over a block, once there is room; False where it is not wanted any more."""
        with self._change:
            self._change.wait_for(lambda: self.cancelled or len(self._held) < self.room)
            if self.cancelled:
                return False
            self._held[key] = data
            self.received += 1
        self.news.set()
        return True

    def end(self) -> None:
        """No more blocks will come."""
        self.ended = True
        self.news.set()

    # --- the engine's thread ---

    def read_found(self) -> dict[str, int]:
        """The answers so far, by peer."""
        with self._change:
            return dict(self._found)

    @property
    def full(self) -> bool:
        """Whether the peer waits for the engine."""
        return len(self._held) >= self.room

    @property
    def empty(self) -> bool:
        """Whether all that has arrived was taken."""
        return not self._held

    def __contains__(self, key: bytes) -> bool:
        return key in self._held

    def take(self, key: bytes) -> Part | None:
        """A block that has arrived, which is forgotten here."""
        with self._change:
            data = self._held.pop(key, None)
            self._change.notify_all()
        return data

    def cancel(self) -> None:
        """No more blocks are wanted; those that have arrived stay."""
        with self._change:
            self.cancelled = True
            self._change.notify_all()

    def drop(self) -> None:
        """Cancels, and forgets what has arrived."""
        self.cancel()
        with self._change:
            self._held.clear()
