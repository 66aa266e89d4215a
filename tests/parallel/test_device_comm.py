"""Collectives on tensors: over gloo the sums and joins of NumPy, in the order of ranks; NCCL chosen
for a GPU.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra [distributed] is not installed")

import torch

from flyweight.errors import ConfigError
from flyweight.models.shards import split_evenly
from flyweight.parallel.comm import RankGroup
from flyweight.parallel.device_comm import LATEST, DeviceGroup
from flyweight.wire import F32

PATIENCE = timedelta(seconds=300)  # machines that run tests are busy
SPREAD = 10.0 ** np.arange(-4, 5)  # of sizes that do not add up to the same in another order


def run_ranks(size: int, work: Callable[[DeviceGroup], Any]) -> Sequence[Any]:
    """What `work` gives on each rank, a thread each."""
    store = torch.distributed.HashStore()

    def run(rank: int) -> Any:
        host = RankGroup(store, rank, size, PATIENCE)
        return work(DeviceGroup(host, torch.device("cpu"), store))

    with ThreadPoolExecutor(size) as pool:
        return [*pool.map(run, range(size))]


def draw(size: int, *shape: int) -> list[F32]:
    """An array for each rank."""
    rng = np.random.default_rng(size)
    return [
        (rng.standard_normal(shape) * rng.choice(SPREAD, shape)).astype(np.float32)
        for _ in range(size)
    ]


@pytest.mark.parametrize("size", [2, 3])
def test_sums_are_in_the_order_of_ranks_in_any_shape(size: int) -> None:
    """All rows at once, each by itself, a part that is not contiguous, and none."""
    arrays = draw(size, 5, 37)
    want = arrays[0].copy()
    for other in arrays[1:]:
        want += other

    def work(group: DeviceGroup) -> tuple[F32, F32, F32, tuple[int, ...]]:
        x = torch.from_numpy(arrays[group.rank])
        rows = [group.all_reduce(x[i : i + 1]) for i in range(len(x))]
        part = group.all_reduce(x[:, 3:20])
        empty = group.all_reduce(x[:0])
        return group.all_reduce(x).numpy(), torch.cat(rows).numpy(), part.numpy(), empty.shape

    for whole, rows, part, empty in run_ranks(size, work):
        assert (whole == want).all() and (rows == want).all()
        assert (part == want[:, 3:20]).all() and tuple(empty) == (0, 37)


@pytest.mark.parametrize(("size", "width"), [(2, 8), (2, 61), (3, 61), (3, 2)])
def test_parts_are_joined_in_the_order_of_ranks(size: int, width: int) -> None:
    """Also where some ranks have a column less, or none, and in bfloat16."""
    parts = split_evenly(width, size)
    (whole,) = draw(1, 4, width)

    def work(group: DeviceGroup) -> tuple[F32, Any]:
        own = parts[group.rank]
        x = torch.from_numpy(whole)[:, own.start : own.stop]
        return group.all_gather(x, width).numpy(), group.all_gather(x.bfloat16(), width)

    for found, short in run_ranks(size, work):
        assert (found == whole).all()
        assert (short == torch.from_numpy(whole).bfloat16()).all()


class NcclStandIn:
    """Gathers nothing, and notes what it is made with and when it is aborted."""

    made: list[tuple[int, int, timedelta]]
    aborted: list[int]

    class Options:
        _timeout = timedelta(0)

    def __init__(self, store: object, rank: int, size: int, options: Options) -> None:
        self.rank = rank
        self.made.append((rank, size, options._timeout))

    def _allgather_base(self, found: object, x: object) -> "NcclStandIn":
        return self

    def wait(self) -> None:
        """Nothing was begun."""

    def abort(self) -> None:
        self.aborted.append(self.rank)


def test_nccl_is_chosen_for_a_device_and_ends_with_the_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On tensors without memory, as there is no GPU."""
    monkeypatch.setattr("flyweight.parallel.device_comm.is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", NcclStandIn, raising=False)
    monkeypatch.setattr(NcclStandIn, "made", [], raising=False)
    monkeypatch.setattr(NcclStandIn, "aborted", [], raising=False)
    store = torch.distributed.HashStore()
    host = RankGroup(store, 0, 1, PATIENCE)
    host.rank, host.size = 1, 3
    group = DeviceGroup(host, torch.device("meta"), store)
    assert NcclStandIn.made == [(1, 3, LATEST)]
    assert group.all_reduce(torch.empty(2, 5, device="meta")).shape == (2, 5)
    assert group.all_gather(torch.empty(2, 3, device="meta"), 10).shape == (2, 10)
    group.close()
    group.close()
    del group
    assert NcclStandIn.aborted == [1]


def test_torch_without_nccl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flyweight.parallel.device_comm.is_nccl_available", lambda: False)
    store = torch.distributed.HashStore()
    host = RankGroup(store, 0, 1, PATIENCE)
    with pytest.raises(ConfigError) as refused:
        DeviceGroup(host, torch.device("meta"), store)
    assert str(refused.value) == (
        "backend = 'cuda' needs torch with NCCL for several ranks; this one was built without; "
        "install torch for CUDA"
    )
