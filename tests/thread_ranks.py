"""Ranks of a model as threads of one process, for tests of its parts without torch."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import Queue
from threading import Barrier
from typing import Any

import numpy as np

from flyweight.models.shards import split_evenly
from flyweight.wire import F32

HANGING = 600  # seconds after which a rank that waits for another is an error


@dataclass
class ThreadGroup:
    """What `size` threads share."""

    size: int
    held: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.barrier, self.held = Barrier(self.size, timeout=HANGING), [None] * self.size

    def exchange(self, rank: int, x: F32) -> list[F32]:
        """Every rank's x."""
        self.held[rank] = x.copy()
        self.barrier.wait()
        found = [*self.held]
        self.barrier.wait()
        return found


@dataclass
class ThreadRank:
    """`ops.base.Comm` of one thread."""

    group: ThreadGroup
    rank: int

    @property
    def size(self) -> int:
        return self.group.size

    def all_reduce(self, x: F32) -> F32:
        total, *others = self.group.exchange(self.rank, x)
        total = total.copy()
        for other in others:
            total += other
        return total

    def all_gather(self, x: F32, width: int) -> F32:
        found = self.group.exchange(self.rank, x)
        widths = [len(part) for part in split_evenly(width, self.size)]
        assert [one.shape[-1] for one in found] == widths
        return np.concatenate(found, axis=-1)


@dataclass
class ThreadLink:
    """`parallel.comm.StageLink` of one stage, between threads: `queues[a][b]` has what stage a has
    sent stage b.
    """

    queues: Sequence[Sequence[Queue[F32]]]
    index: int

    @classmethod
    def connect(cls, stages: int) -> "list[ThreadLink]":
        """Those of all stages."""
        queues: list[list[Queue[F32]]] = [[Queue() for _ in range(stages)] for _ in range(stages)]
        return [cls(queues, index) for index in range(stages)]

    def send_next(self, x: F32) -> None:
        self.queues[self.index][self.index + 1].put(x.copy())

    def send_first(self, x: F32) -> None:
        self.queues[self.index][0].put(x.copy())

    def receive_previous(self, shape: tuple[int, ...]) -> F32:
        return self._take(self.index - 1, shape)

    def receive_last(self, shape: tuple[int, ...]) -> F32:
        return self._take(len(self.queues) - 1, shape)

    def finish_sends(self) -> None:
        """All has been sent."""

    def _take(self, stage: int, shape: tuple[int, ...]) -> F32:
        x = self.queues[stage][self.index].get(timeout=HANGING)
        assert x.shape == shape
        return x


def run_ranks(size: int, work: Callable[[ThreadRank], Any]) -> Sequence[Any]:
    """What `work` gives on each rank.  A rank that raises ends the others."""
    group = ThreadGroup(size)

    def guarded(rank: int) -> Any:
        try:
            return work(ThreadRank(group, rank))
        except BaseException:
            group.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        return [*pool.map(guarded, range(size))]
