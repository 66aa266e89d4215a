"""Ranks of one host exchange arrays through shared memory; they are threads here."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flyweight.parallel import host_exchange
from flyweight.parallel.host_exchange import SLOT, HostExchange, open_exchange
from flyweight.wire import F32, I32
from thread_ranks import ThreadRank, run_ranks


@dataclass
class SetupRank(ThreadRank):
    """A thread as `host_exchange.SetupGroup`."""

    def broadcast(self, numbers: I32 | None) -> I32:
        held = self.group.exchange(self.rank, np.zeros(0) if numbers is None else numbers)
        return held[0]


def open_rank(rank: ThreadRank, address: str = "here") -> HostExchange | None:
    return open_exchange(SetupRank(rank.group, rank.rank), address)


def run_exchanges(size: int, work: Callable[[HostExchange, int], Any]) -> Sequence[Any]:
    """What `work` gives on each of so many ranks that are connected."""

    def connected(rank: ThreadRank) -> Any:
        exchange = open_rank(rank)
        assert exchange is not None
        return work(exchange, rank.rank)

    return run_ranks(size, connected)


def draw(rank: int, number: int, shape: tuple[int, ...]) -> F32:
    return np.random.default_rng([rank, number]).normal(size=shape).astype(np.float32)


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where ranks meet."""
    monkeypatch.setattr(host_exchange, "SHARED", tmp_path)
    return tmp_path


@pytest.mark.parametrize("size", [2, 3])
def test_sums_have_the_bits_of_sums_in_the_order_of_ranks(size: int) -> None:
    shapes = [(1, 8), (3, 1000), (1,), (2, SLOT + 5), (1, 8), (0, 8), (SLOT,)]

    def work(exchange: HostExchange, rank: int) -> list[F32]:
        return [exchange.all_reduce(draw(rank, i, shape)) for i, shape in enumerate(shapes)]

    found = run_exchanges(size, work)
    for i, shape in enumerate(shapes):
        total = draw(0, i, shape)
        for rank in range(1, size):
            total += draw(rank, i, shape)
        for own in found:
            assert own[i].shape == shape and own[i].tobytes() == total.tobytes()


def test_ranks_gather_the_arrays_of_all() -> None:
    def work(exchange: HostExchange, rank: int) -> list[list[F32]]:
        return [exchange.gather(draw(rank, i, (2, 100 + i))) for i in range(200)]

    for own in run_exchanges(3, work):
        for i, arrays in enumerate(own):
            assert [one.tobytes() for one in arrays] == [
                draw(rank, i, (2, 100 + i)).tobytes() for rank in range(3)
            ]


def test_numbers_of_rank_0_reach_all() -> None:
    told = [np.arange(n, dtype=np.int32) - (1 << 30) for n in (5, 0, 70_000)]
    told.append(np.array([0x7FA00001, -1], np.int32))  # not numbers, as float32

    def work(exchange: HostExchange, rank: int) -> list[I32]:
        return [exchange.broadcast(None if rank else numbers) for numbers in told]

    for own in run_exchanges(2, work):
        assert all(np.array_equal(a, b) for a, b in zip(own, told, strict=True))


def test_a_rank_that_is_early_counts_what_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    now = threading.local()
    monkeypatch.setattr(host_exchange, "time", SimpleNamespace(perf_counter=lambda: now.at))

    def work(exchange: HostExchange, rank: int) -> float:
        now.at = 1.0 + 2.5 * rank
        exchange.all_reduce(np.zeros(1, np.float32))
        return exchange.waited

    assert list(run_exchanges(2, work)) == [2.5, 0.0]


def test_a_rank_that_has_ended_is_noticed() -> None:
    def work(exchange: HostExchange, rank: int) -> None:
        if rank:
            exchange.close()
            return
        with pytest.raises(OSError):
            for _ in range(2):
                exchange.all_reduce(np.zeros(1, np.float32))

    run_exchanges(2, work)


def test_ranks_on_several_hosts_share_no_memory(folders: Path) -> None:
    assert list(run_ranks(2, lambda rank: open_rank(rank, f"host {rank.rank}"))) == [None, None]
    assert not [*folders.iterdir()]


def test_ranks_without_memory_to_share_are_none(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr("os.posix_fallocate", refuse)
    assert list(run_ranks(2, open_rank)) == [None, None]
    assert not [*folders.iterdir()]


def test_where_one_rank_cannot_open_the_memory_none_does(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(HostExchange):
        def __init__(self, folder: Path, rank: int, size: int) -> None:
            if rank == 1:
                raise OSError("no such file")
            super().__init__(folder, rank, size)

    monkeypatch.setattr(host_exchange, "HostExchange", Refusing)
    assert list(run_ranks(3, open_rank)) == [None] * 3
    assert not [*folders.iterdir()]


def test_no_folder_is_left(folders: Path) -> None:
    run_exchanges(2, lambda exchange, rank: None)
    assert not [*folders.iterdir()]
