"""Collectives between the ranks of a model, over torch.distributed's gloo.

Invariant: a sum adds the ranks' arrays in the order of ranks, whatever their shape, so that a row's
bits do not depend on what else is in the batch.  Every rank makes the same calls in the same order.
A rank that ends makes the next call of all others raise `RankLost`.  Knows no model.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Never

import numpy as np
import torch
from torch.distributed import (
    BroadcastOptions,
    FileStore,
    ProcessGroupGloo,
    Work,
)

from flyweight.models.shards import split_evenly
from flyweight.wire import F32, I32, Tensor

FOREVER = timedelta(days=365)  # an idle rank waits for its next step
LOOPBACK = "127.0.0.1"


class RankLost(BaseException):
    """Another rank has ended, so this process cannot compute any more.  Not an `Exception`: no
    request is at fault, and none can go on.
    """


class RankGroup:
    """Rank `rank` of `size`, connected through `rendezvous`: a file in a folder of their own.
    `seconds` is the time spent in collectives, waits for slower ranks included.
    """

    def __init__(self, rendezvous: Path, rank: int, size: int) -> None:
        self.rank, self.size, self.seconds = rank, size, 0.0
        options = ProcessGroupGloo._Options()
        options._devices = [ProcessGroupGloo.create_device(hostname=LOOPBACK)]
        options._timeout = FOREVER
        self._store = FileStore(str(rendezvous), size)
        with self._timed():
            self._group = ProcessGroupGloo(self._store, rank, size, options)

    def all_reduce(self, x: Tensor) -> F32:
        """The sum of all ranks' float32 arrays of one shape."""
        total, *others = self._gather(np.ascontiguousarray(x))
        for other in others:
            np.add(total, other, out=total)
        return total

    def all_gather(self, x: Tensor, width: int) -> F32:
        """All ranks' x side by side along the last axis; see `ops.base.Comm`."""
        parts = split_evenly(width, self.size)
        longest = len(parts[0])
        mine = np.zeros((*x.shape[:-1], longest), np.float32)
        mine[..., : x.shape[-1]] = x
        found = zip(self._gather(mine), parts, strict=True)
        cut = [one[..., : len(part)] for one, part in found]
        return np.concatenate(cut, axis=-1)

    def broadcast(self, numbers: I32 | None) -> I32:
        """Rank 0's numbers, on every rank; the others give None."""
        count = torch.tensor([0 if numbers is None else len(numbers)])
        self._broadcast(count)
        held = np.empty(int(count), np.int32) if numbers is None else numbers
        if len(held):
            self._broadcast(torch.from_numpy(held))
        return held

    def lose(self, reason: str) -> Never:
        """Raises `RankLost`."""
        raise RankLost(f"the ranks of the model are out of step: {reason}")

    def _broadcast(self, x: torch.Tensor) -> None:
        options = BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        with self._timed():
            self._wait(self._group.broadcast([x], options))

    def _gather(self, x: F32) -> list[F32]:
        """Every rank's x, all of one shape."""
        found = [np.empty_like(x) for _ in range(self.size)]
        with self._timed():
            targets = [torch.from_numpy(one) for one in found]
            self._wait(self._group.allgather([targets], [torch.from_numpy(x)]))
        return found

    def _wait(self, work: Work) -> None:
        work.wait()

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        except RuntimeError as broken:
            raise RankLost(f"a rank of the model has ended: {_first_line(broken)}") from broken
        finally:
            self.seconds += time.perf_counter() - began


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
