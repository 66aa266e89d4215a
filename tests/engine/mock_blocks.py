"""Blocks of a `MockRunner`'s K/V as bytes, and an external cache of them for the harness."""

import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from oracle import MockRunner

from flyweight.engine.external import ExternalCache
from flyweight.engine.metrics import EngineMetrics
from flyweight.kv.blocks import BlockPool
from flyweight.kv.records import OwnedFile, RecordFile
from flyweight.kv.store import BlockStore
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


class MockExternal:
    """The external cache of a harness, for published blocks, evicted ones, or both, or for none."""

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
            self.cache = ExternalCache(self.pool, blocks, self.metrics, *found, self.clock)
        return self.cache

    def save_some(self) -> None:
        """What is done between two steps, or while the engine is idle."""
        if self.cache is not None and self.rng.random() < 0.7:
            self.cache.step()
        if self.cache is not None and self.cache.wanted and self.rng.random() < 0.3:
            self.cache.run_idle()
