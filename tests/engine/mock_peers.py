"""Peers that answer and send when a test makes them, and an engine that uses them, on a simulated
clock.
"""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from mock_blocks import MockBlocks, open_store
from oracle import MockRunner

from flyweight.config import Limits
from flyweight.engine.engine import Engine
from flyweight.engine.external import ExternalCache
from flyweight.engine.metrics import EngineMetrics
from flyweight.engine.peer_blocks import PeerBlocks
from flyweight.engine.prefix import KeyBase
from flyweight.engine.scheduler import Scheduler
from flyweight.kv.blocks import BlockPool
from flyweight.kv.peers.fetch import ChainFetch
from flyweight.kv.store import BlockStore
from flyweight.types import Event, Request, SamplingParams

B = 4
PROMPT = tuple(i * i % 6 for i in range(22))  # five full blocks that may be skipped


class MockPeer:
    """A peer that has what a store has.  It answers and sends when it is made to."""

    def __init__(self, name: str, store: BlockStore | None, seconds: float = 0.0) -> None:
        self.name, self.store, self.seconds = name, store, seconds  # of a block
        self.refused, self.usable, self.latency = 0, True, 0.0
        self.quick = False  # it answers at once
        self.finding: list[ChainFetch] = []
        self.getting: list[tuple[ChainFetch, int]] = []
        self.log: list[str] = []

    def is_usable(self) -> bool:
        return self.usable

    def estimate(self, count: int) -> float:
        return self.latency + self.seconds * count / (8 * (1 + B))

    def find(self, fetch: ChainFetch) -> None:
        self.log.append("find")
        self.finding.append(fetch)
        if self.quick:
            self.reply()

    def get(self, fetch: ChainFetch, count: int) -> None:
        self.log.append(f"get {count}")
        self.getting.append((fetch, count))

    def cancel(self, fetch: ChainFetch) -> None:
        self.log.append("cancel")
        fetch.cancel()

    def close(self) -> None:
        self.log.append("close")

    def reply(self, most: int = 99) -> None:
        """Answers what is looked for, with at most so many blocks."""
        for fetch in self.finding:
            count = self.store.count_stored(fetch.keys) if self.store is not None else 0
            fetch.note_found(self.name, min(count, most))
        self.finding.clear()

    def send(self, count: int = 99, end: bool = True) -> None:
        """Sends the next blocks of each transfer."""
        assert self.store is not None
        for fetch, wanted in self.getting:
            for key in fetch.keys[fetch.received : wanted][:count]:
                data = np.zeros(self.store.size, np.uint8)
                assert self.store.read_shared(key, data) and fetch.put(key, data.data)
            if end:
                fetch.end()


class World:
    """An engine whose blocks may come from peers, on a simulated clock."""

    def __init__(
        self,
        peers: list[MockPeer],
        numbers: list[tuple[str, str]] | None = None,
        seqs: int = 4,
        blocks: int = 32,
    ) -> None:
        limits = Limits(
            max_model_len=64, max_num_seqs=seqs, max_num_batched_tokens=64, block_size=B,
            blocks=blocks,
        )  # fmt: skip
        self.now = 0.0
        pool, runner = BlockPool(blocks, B), MockRunner(blocks, B)
        keys = KeyBase("model", bytes(32))
        self.scheduler = Scheduler(limits, pool, keys=keys, clock=lambda: self.now)
        self.kv = MockBlocks(runner, dict.fromkeys(range(blocks), ("", "")))
        self.kv.numbers = [("", "")] if numbers is None else numbers
        self.metrics = EngineMetrics()
        self.store = open_store(os.memfd_create("test"), self.kv, 64)
        clock: Callable[[], float] = lambda: self.now  # noqa: E731
        self.peers = PeerBlocks(peers, (B, self.kv.size), self.metrics, clock=clock)
        self.pauses = 0
        self.peers.pause = self._pause  # type: ignore[method-assign]
        kv: Any = self.kv
        external = ExternalCache(
            pool, kv, self.metrics, self.store, None, clock, peers=self.peers if peers else None
        )
        self.external = external
        self.engine = Engine(self.scheduler, runner, None, self.metrics, external=external)
        self.texts: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}
        self.done: list[str] = []

    def _pause(self) -> None:
        self.pauses += 1

    def add(self, id: str, tokens: tuple[int, ...] = PROMPT, most: int = 3, **rest: Any) -> Request:
        request = Request(id, tokens, SamplingParams(max_tokens=most), max_tokens=most, **rest)
        self.engine.add(request)
        return request

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            for event in self.engine.step():
                self._take(event)
            self.scheduler.pool.check_integrity([s.table for s in self.scheduler.running])

    def _take(self, event: Event) -> None:
        self.texts.setdefault(event.id, []).extend(event.tokens)
        self.cached[event.id] = event.cached
        if event.finish:
            self.done.append(event.id)

    def finish(self) -> None:
        for _ in range(100):
            if not self.engine.busy:
                return
            self.step()
        raise AssertionError("no end")

    def save(self) -> None:
        while self.external.wanted:
            self.external.run_idle()
