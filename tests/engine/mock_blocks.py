"""Blocks of a `MockRunner`'s K/V as bytes, and an external cache of them for the harness."""

import os
import random
from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Any

import numpy as np
from oracle import MockRunner, content

from flyweight.engine.external import ExternalCache
from flyweight.engine.metrics import EngineMetrics
from flyweight.engine.peer_blocks import PeerBlocks
from flyweight.kv.blocks import BlockPool
from flyweight.kv.peers.fetch import ChainFetch
from flyweight.kv.records import OwnedFile, RecordFile
from flyweight.kv.store import BlockStore
from flyweight.types import Request
from flyweight.wire import U8

FINGERPRINT = bytes(32)
MakeStore = Callable[..., BlockStore]


class MockBlocks:
    """In the place of `BlockBytes`.  A block's bytes begin with the number of its tenant, so that
    the harness knows whose K/V a block has got; `tenants` is the harness's record of that.
    """

    def __init__(self, runner: MockRunner, tenants: dict[int, tuple[str, str]]) -> None:
        self.runner, self.tenants = runner, tenants
        self.numbers: list[tuple[str, str]] = []
        self.written = 0
        self.size = 8 * (1 + runner.block_size)

    def make_buffer(self) -> U8:
        return np.zeros(self.size, np.uint8)

    def read(self, block: int, out: U8) -> None:
        assert block in self.tenants, "a block that was not computed is saved"
        size, own = self.runner.block_size, self.tenants[block]
        if own not in self.numbers:
            self.numbers.append(own)
        held = self.runner.kv[block * size : (block + 1) * size]
        out[:] = np.array([self.numbers.index(own), *held], np.int64).view(np.uint8)

    def write(self, block: int, data: U8) -> None:
        size, (number, *held) = self.runner.block_size, data.view(np.int64).tolist()
        self.written += 1
        self.tenants[block] = self.numbers[number]
        self.runner.kv[block * size : (block + 1) * size] = held


def open_store(
    descriptor: int, blocks: MockBlocks, most: int, make: MakeStore = BlockStore
) -> BlockStore:
    """A store of at most so many blocks."""
    file = RecordFile(OwnedFile(descriptor), blocks.size, FINGERPRINT)
    return make(file, lambda size: size <= file.count_bytes(most), "a test")


class RandomPeer:
    """A peer that has computed most of the prompts.  It answers and sends as late as it likes, and
    sometimes breaks off.
    """

    def __init__(self, name: str, rng: random.Random) -> None:
        self.name, self.rng, self.refused = name, rng, 0
        self.blocks: dict[bytes, bytes] = {}
        self._finding: list[ChainFetch] = []
        self._getting: list[tuple[ChainFetch, int]] = []

    def is_usable(self) -> bool:
        return self.rng.random() < 0.9

    def estimate(self, count: int) -> float:
        return 0.0

    def find(self, fetch: ChainFetch) -> None:
        self._finding.append(fetch)
        self.step()

    def get(self, fetch: ChainFetch, count: int) -> None:
        self._getting.append((fetch, count))
        self.step()

    def cancel(self, fetch: ChainFetch) -> None:
        fetch.cancel()

    def close(self) -> None:
        """It has no thread."""

    def step(self) -> None:
        """Does some of what was requested."""
        if self.rng.random() < 0.7:
            for fetch in self._finding:
                having = takewhile(self.blocks.__contains__, fetch.keys)
                fetch.note_found(self.name, sum(1 for _ in having))
            self._finding.clear()
        for fetch, count in list(self._getting):
            for key in fetch.keys[fetch.received : count][: self.rng.randrange(4)]:
                if not fetch.full:
                    fetch.put(key, self.blocks[key])
            if fetch.received == count or fetch.cancelled or self.rng.random() < 0.05:
                fetch.end()
                self._getting.remove((fetch, count))


class MockExternal:
    """The external cache of a harness, for published blocks, evicted ones, or both, or for none; in
    half of them with peers.
    """

    def __init__(
        self,
        seed: int,
        pool: BlockPool,
        runner: MockRunner,
        tenants: dict[int, tuple[str, str]],
        clock: Callable[[], float],
    ) -> None:
        self.rng, self.pool, self.clock = random.Random(seed), pool, clock
        self.metrics, self.blocks = EngineMetrics(), MockBlocks(runner, tenants)
        self.cache: ExternalCache | None = None
        own = random.Random(seed + 1)
        many = own.choice((0, 0, 1, 2))
        self.remote = [RandomPeer(f"peer {i}", own) for i in range(many)]

    @property
    def waiting(self) -> bool:
        """Whether a sequence waits for a peer."""
        return bool(self.cache and self.cache.peers and self.cache.peers.waits)

    def make(self, store: MakeStore) -> ExternalCache | None:
        """Stores of random sizes."""
        found = [
            open_store(os.memfd_create("test"), self.blocks, self.rng.randint(1, 30), store)
            if self.rng.random() < 0.5
            else None
            for _ in range(2)
        ]
        if any(found):
            blocks: Any = self.blocks
            peers = self._make_peers() if self.remote else None
            self.cache = ExternalCache(
                self.pool, blocks, self.metrics, *found, self.clock, peers=peers
            )
        return self.cache

    def teach(self, requests: Iterable[Request], find_root: Callable[[Request], bytes]) -> None:
        """Peers have computed most blocks of these prompts."""
        B = self.pool.block_size
        for request in requests if self.remote else ():
            own, held = (request.salt, request.adapter), [0]
            if own not in self.blocks.numbers:
                self.blocks.numbers.append(own)
            for position, token in enumerate(request.tokens):
                held.append(content(token, position, held[-1]))
            key = find_root(request)
            for first in range(0, len(request.tokens) - B + 1, B):
                key = self.pool.key(key, request.tokens[first : first + B])
                whole = [self.blocks.numbers.index(own), *held[1 + first : 1 + first + B]]
                for peer in self.remote:
                    if peer.rng.random() < 0.8:
                        peer.blocks[key] = np.array(whole, np.int64).tobytes()

    def _make_peers(self) -> PeerBlocks:
        shape = self.pool.block_size, self.blocks.size
        peers = PeerBlocks(self.remote, shape, self.metrics, clock=self.clock)
        peers.pause = lambda: None  # type: ignore[method-assign]
        return peers

    def save_some(self) -> None:
        """What is done between two steps, or while the engine is idle."""
        for peer in self.remote:
            peer.step()
        if self.cache is not None and self.rng.random() < 0.7:
            self.cache.step()
        if self.cache is not None and self.cache.wanted and self.rng.random() < 0.3:
            self.cache.run_idle()
