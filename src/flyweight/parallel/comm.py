"""Collectives between the ranks of a model, over torch.distributed's gloo, or through shared memory
where all are on one host.

Invariant: a sum adds the ranks' arrays in the order of ranks, whatever their shape, so that a row's
bits do not depend on what else is in the batch.  Every rank makes the same calls in the same order.
A rank that ends makes the next call of all others raise `RankLost`.  Knows no model.
"""

import time
from collections.abc import Iterator, Sequence
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
    Store,
    Work,
)

from flyweight.errors import ConfigError, RankLost
from flyweight.models.shards import split_evenly
from flyweight.parallel.host_exchange import HostExchange, open_exchange
from flyweight.parallel.rendezvous import SharedKeys
from flyweight.wire import F32, I32, Tensor

FOREVER = timedelta(days=365)  # an idle rank waits for its next step
LOOPBACK = "127.0.0.1"


class KeyStore(Store):  # type: ignore[misc]
    """torch's store of keys over `SharedKeys`; `name` is of the group that uses it."""

    def __init__(self, keys: SharedKeys, name: str, patience: timedelta = FOREVER) -> None:
        super().__init__()
        self._keys, self._name, self._patience = keys, name, patience.total_seconds()

    def set(self, key: str, value: bytes | str) -> None:
        self._keys.set(self._spell(key), value.encode() if isinstance(value, str) else value)

    def get(self, key: str) -> bytes:
        return self._keys.wait_for([self._spell(key)], self._patience)[0]

    def wait(self, keys: Sequence[str], timeout: timedelta = FOREVER) -> None:
        self._keys.wait_for([self._spell(key) for key in keys], self._patience)

    def check(self, keys: Sequence[str]) -> bool:
        return self._keys.has([self._spell(key) for key in keys])

    def has_extended_api(self) -> bool:
        return False

    def _spell(self, key: str) -> str:
        return f"{self._name}/{key}"


def open_file_store(path: Path, size: int) -> Store:
    """A store in a file, for processes that share a folder and nothing else."""
    return FileStore(str(path), size)


class RankGroup:
    """Rank `rank` of `size`, connected through a store of keys.  `address` is this host's, as the
    others know it.  `seconds` is the time spent in collectives, waits for slower ranks included;
    `lost`: another rank has ended.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        patience: timedelta = FOREVER,
        address: str = LOOPBACK,
    ) -> None:
        """Raises `ConfigError` where the others have not connected within `patience`, `RankLost`
        where one ends while memory is shared.
        """
        self.rank, self.size, self.seconds, self.lost = rank, size, 0.0, False
        options = ProcessGroupGloo._Options()
        options._devices = [ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = patience
        self._store = store  # C++ refers to it
        try:
            self._group = ProcessGroupGloo(store, rank, size, options)
        except RuntimeError as broken:
            why = _first_line(broken)
            raise ConfigError(f"a rank ended before it was connected: {why}") from None
        self._group._set_default_timeout(FOREVER)
        self._here: HostExchange | None = None
        try:
            self._here = open_exchange(self, address)
        except OSError as broken:
            raise ConfigError(f"a rank ended before it was connected: {broken}") from None

    @property
    def waited(self) -> float | None:
        """Those of `seconds` before the slowest rank came; None where ranks are on several hosts,
        whose clocks differ.
        """
        return None if self._here is None else self._here.waited

    @property
    def carrier(self) -> ProcessGroupGloo:
        """torch's group, for collectives on tensors."""
        return self._group

    def all_reduce(self, x: Tensor) -> F32:
        """The sum of all ranks' float32 arrays of one shape."""
        if self._here is not None:
            with self.timed():
                return self._here.all_reduce(x)
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
        if self._here is not None:
            with self.timed():
                return self._here.broadcast(numbers)
        count = torch.tensor([0 if numbers is None else len(numbers)])
        self._broadcast(count)
        held = np.empty(int(count), np.int32) if numbers is None else numbers
        if len(held):
            self._broadcast(torch.from_numpy(held))
        return held

    def send(self, x: F32, rank: int) -> Work:
        """Begins to send an array, which must not change until `wait` returns."""
        return self._group.send([torch.from_numpy(x)], rank, 0)

    def receive(self, shape: tuple[int, ...], rank: int) -> F32:
        """The next array that a rank sends, of a known shape."""
        x = np.empty(shape, np.float32)
        self.wait(self._group.recv([torch.from_numpy(x)], rank, 0))
        return x

    def wait(self, work: Work) -> None:
        """Waits for an operation to end."""
        with self.timed():
            work.wait()

    def meet(self) -> None:
        """Waits until all ranks have come here."""
        self.all_reduce(np.zeros(1, np.float32))

    def lose(self, reason: str) -> Never:
        """Raises `RankLost`."""
        self.lost = True
        raise RankLost(f"the ranks of the model are out of step: {reason}")

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Adds what the block takes to `seconds`.  Raises `RankLost` where a collective fails."""
        began = time.perf_counter()
        try:
            yield
        except (RuntimeError, OSError) as broken:
            self.lost = True
            raise RankLost(f"a rank of the model has ended: {_first_line(broken)}") from broken
        finally:
            self.seconds += time.perf_counter() - began

    def _broadcast(self, x: torch.Tensor) -> None:
        options = BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        self.wait(self._group.broadcast([x], options))

    def _gather(self, x: F32) -> list[F32]:
        """Every rank's x, all of one shape."""
        if self._here is not None:
            with self.timed():
                return self._here.gather(x)
        found = [np.empty_like(x) for _ in range(self.size)]
        targets = [torch.from_numpy(one) for one in found]
        self.wait(self._group.allgather([targets], [torch.from_numpy(x)]))
        return found


class StageLink:
    """What one stage of a pipeline sends and receives; `stages` are the ranks of the stages, in
    order, and `index` its own place.
    """

    def __init__(self, group: RankGroup, stages: Sequence[int], index: int) -> None:
        self._group, self._stages, self._index = group, stages, index
        self._sending: list[tuple[Work, F32]] = []  # the arrays live until they are sent

    def send_next(self, x: F32) -> None:
        self._send(x, self._stages[self._index + 1])

    def send_first(self, x: F32) -> None:
        self._send(x, self._stages[0])

    def receive_previous(self, shape: tuple[int, ...]) -> F32:
        return self._group.receive(shape, self._stages[self._index - 1])

    def receive_last(self, shape: tuple[int, ...]) -> F32:
        return self._group.receive(shape, self._stages[-1])

    def finish_sends(self) -> None:
        """Waits until all has been sent."""
        for work, _ in self._sending:
            self._group.wait(work)
        self._sending.clear()

    def _send(self, x: F32, rank: int) -> None:
        self._sending.append((self._group.send(x, rank), x))


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
