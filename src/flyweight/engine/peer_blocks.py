"""Blocks of the prefix cache that peers have: which waiting sequences wait for them, and how long.

A sequence whose blocks are not here is looked up at all peers at once.  They are fetched from the
one where that saves most time by the cost model, if it saves any, and given up when computing the
rest would be quicker.

Invariant: a step waits at most `GRACE` seconds for answers of peers, never for blocks, and a
sequence waits no longer than its blocks would take to compute.  What arrived by then is used.
Knows no sockets and no arrays of the model.
"""

import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from threading import Event
from typing import Protocol

import numpy as np

from flyweight.engine.metrics import EngineMetrics
from flyweight.engine.sequence import Sequence
from flyweight.kv.blocks import ChainLink
from flyweight.kv.peers.fetch import ChainFetch
from flyweight.kv.peers.messages import MOST_KEYS
from flyweight.wire import U8

UNMEASURED = 5.0  # seconds that a sequence waits while no cost is known
FIND = 1.0  # seconds of the same until all peers have answered
PAUSE = 0.005  # seconds that an engine without work waits for news
GRACE = 0.003  # seconds of a step for answers of peers that are known to be as quick
MOST_FETCHES = 4
ROOM = 64 << 20  # bytes of blocks that have arrived, of all fetches
Estimate = Callable[[int], float | None]


class BlockPeer(Protocol):
    """A peer; see `kv.peers.worker`."""

    name: str
    refused: int

    def is_usable(self) -> bool: ...

    def estimate(self, count: int) -> float: ...

    def find(self, fetch: ChainFetch) -> None: ...

    def get(self, fetch: ChainFetch, count: int) -> None: ...

    def cancel(self, fetch: ChainFetch) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class PeerWait:
    """A sequence that waits for blocks.  `peer` sends `count` of them from `began` on; None while
    its `candidates` are looking.  `end` is when it is given up.
    """

    seq: Sequence
    fetch: ChainFetch
    candidates: Seq[BlockPeer]
    end: float
    peer: BlockPeer | None = None
    count: int = 0
    began: float = 0.0
    over: bool = False


class PeerBlocks:
    """Of one pool, with blocks of `block_size` tokens and `size` bytes.  `estimate` gives the
    seconds in which so many tokens of a prompt are computed, None while that is unknown.
    """

    def __init__(
        self,
        peers: Seq[BlockPeer],
        shape: tuple[int, int],
        metrics: EngineMetrics,
        news: Event | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.peers, self.metrics, self.clock = peers, metrics, clock
        self.block_size, self.size = shape
        self.estimate: Estimate = lambda tokens: None
        self.waits: dict[Sequence, PeerWait] = {}
        self._news = news or Event()
        self._grace = 0.0  # seconds that are left of it in this step
        self._room = max(1, ROOM // MOST_FETCHES // self.size)

    # --- blocks that have arrived, as a store has them ---

    def __contains__(self, key: bytes) -> bool:
        return any(key in wait.fetch for wait in self.waits.values())

    def load(self, key: bytes, out: U8) -> bool:
        """Copies a block to `out`, and forgets it."""
        for wait in self.waits.values():
            data = wait.fetch.take(key)
            if data is not None:
                out[:] = np.frombuffer(data, np.uint8)
                self.metrics.peer_hits += self.block_size
                self.metrics.peer_bytes += self.size
                return True
        return False

    # --- before each step ---

    def advance(self, waiting: Iterable[Sequence]) -> None:
        """Reads what has come; gives up what does not pay any more, and what is not wanted."""
        self._news.clear()
        self._grace = GRACE
        if not self.waits:
            return
        left = {id(seq) for seq in waiting}
        for wait in list(self.waits.values()):
            if id(wait.seq) in left:
                self._advance(wait)
            if id(wait.seq) not in left or (wait.over and wait.fetch.empty):
                self._drop(wait)

    def wait_for(self, seq: Sequence, missing: Seq[ChainLink]) -> bool:
        """Whether a sequence is to wait for the first of these blocks, which are not here."""
        wait = self.waits.get(seq)
        if wait is None:
            return bool(missing) and self._begin(seq, missing)
        first = missing[0].key if missing else b""
        if first in wait.fetch:
            return True  # it has just arrived
        if not wait.over and first in wait.fetch.keys[: wait.count or None]:
            return True
        self._drop(wait)
        return False

    def pause(self) -> None:
        """Waits a moment for news, where there is nothing to compute."""
        self._news.wait(PAUSE)

    def reset(self) -> None:
        """Forgets all that is on its way."""
        for wait in list(self.waits.values()):
            self._drop(wait)

    def close(self) -> None:
        self.reset()
        for peer in self.peers:
            peer.close()

    def count_refused(self) -> int:
        return sum(peer.refused for peer in self.peers)

    # --- one sequence ---

    def _begin(self, seq: Sequence, missing: Seq[ChainLink]) -> bool:
        first = missing[0].key
        for other in self.waits.values():  # one before it fetches the same
            if other.seq.order < seq.order and not other.over and first in other.fetch.keys:
                return True
        if seq.sought or len(self.waits) >= MOST_FETCHES:
            return False
        seq.sought = True
        keys = [link.key for link in missing[:MOST_KEYS]]
        usable = [peer for peer in self.peers if peer.is_usable()]
        candidates = [peer for peer in usable if self._find_gain(peer, len(keys)) > 0]
        if not candidates:
            return False
        fetch = ChainFetch(keys, self._room, self._news)
        end = self.clock() + min(FIND, self._find_cost(len(keys)))
        self.waits[seq] = PeerWait(seq, fetch, candidates, end)
        for peer in candidates:
            peer.find(fetch)
        return not self._is_missed(self.waits[seq])

    def _is_missed(self, wait: PeerWait) -> bool:
        """Whether no peer has the blocks, where all of them are quick enough to say so before the
        step; then it is forgotten.
        """
        if not all(0 < peer.estimate(0) <= self._grace for peer in wait.candidates):
            return False
        began = self.clock()
        while len(wait.fetch.read_found()) < len(wait.candidates):
            left = self._grace - (self.clock() - began)
            if left <= 0 or not self._news.wait(left):
                break
            self._news.clear()
        self._grace -= self.clock() - began
        self._advance(wait)
        if wait.over:
            self._drop(wait)
        return wait.over

    def _advance(self, wait: PeerWait) -> None:
        now, fetch = self.clock(), wait.fetch
        if wait.over:
            return
        if wait.peer is None:
            found = fetch.read_found()
            if len(found) == len(wait.candidates) or now >= wait.end:
                self._choose(wait, found)
        elif fetch.ended:
            wait.over = True
            self.metrics.peer_given_up += fetch.received < wait.count
        elif now >= wait.end or self._is_too_slow(wait, now):
            self._give_up(wait)

    def _choose(self, wait: PeerWait, found: dict[str, int]) -> None:
        """Has the blocks sent by the peer that saves most time."""
        having = [(peer, found[peer.name]) for peer in wait.candidates if found.get(peer.name)]
        gains = [(self._find_gain(peer, count), peer, count) for peer, count in having]
        gain, peer, count = max(gains, key=lambda one: one[0], default=(0.0, None, 0))
        if gain <= 0 or peer is None:
            wait.over = True
            self.metrics.peer_given_up += bool(having) or len(found) < len(wait.candidates)
            return
        wait.peer, wait.count, wait.began = peer, count, self.clock()
        wait.end = wait.began + self._find_cost(count)
        peer.get(wait.fetch, count)

    def _is_too_slow(self, wait: PeerWait, now: float) -> bool:
        """Whether the rest would arrive later, at its speed so far, than it could be computed."""
        got = wait.fetch.received
        if not 0 < got < wait.count or wait.fetch.full:
            return False
        rest = wait.count - got
        return (now - wait.began) / got * rest > self._find_cost(rest)

    def _give_up(self, wait: PeerWait) -> None:
        wait.over = True
        self.metrics.peer_given_up += 1
        if wait.peer is not None:
            wait.peer.cancel(wait.fetch)

    def _drop(self, wait: PeerWait) -> None:
        """Forgets a wait, and what has arrived for it."""
        del self.waits[wait.seq]
        if wait.peer is not None and not wait.over:
            wait.peer.cancel(wait.fetch)
        wait.fetch.drop()

    def _find_cost(self, blocks: int) -> float:
        """Seconds of computing so many blocks; `UNMEASURED` while that is unknown."""
        seconds = self.estimate(blocks * self.block_size)
        return UNMEASURED if seconds is None else seconds

    def _find_gain(self, peer: BlockPeer, blocks: int) -> float:
        """Seconds saved where a peer sends so many blocks; while no cost is known, more blocks are
        better.
        """
        if self.estimate(blocks * self.block_size) is None:
            return float(blocks)
        return self._find_cost(blocks) - peer.estimate(blocks * self.size)
