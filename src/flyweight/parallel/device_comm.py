"""Collectives on tensors of a device: over torch.distributed's NCCL between GPUs, over gloo where
tensors are on the CPU (Triton's interpreter).

Invariant: NCCL and gloo only gather; a sum adds the ranks' tensors in the order of ranks on each of
them, whatever their shape, so that a row's bits do not depend on what else is in the batch.  Every
rank makes the same calls in the same order.  Between GPUs no call waits for the device.
"""

import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import Store, is_nccl_available

from flyweight.errors import ConfigError
from flyweight.models.shards import split_evenly
from flyweight.parallel.comm import RankGroup

LATEST = timedelta(seconds=300)  # then torch ends a process whose collective has not ended


class DeviceGroup:
    """`ops.base.Comm` of one rank, for tensors on `device`.  `host` connects the same ranks; a rank
    that ends makes it `lost`.
    """

    def __init__(self, host: RankGroup, device: torch.device, store: Store) -> None:
        """All ranks of the group at the same time.  `store` is theirs alone.  Raises `ConfigError`
        where this torch has no NCCL, `RankLost` where a rank has ended.
        """
        self.rank, self.size, self.device, self._host = host.rank, host.size, device, host
        carrier = host.carrier if device.type == "cpu" else _open_nccl(store, host)
        self._carriers = [carrier]
        owned = [] if device.type == "cpu" else self._carriers
        self.close = weakref.finalize(self, _abort, owned)
        self.all_reduce(torch.zeros(1, device=device))  # NCCL connects at its first collective

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' tensors of one shape."""
        found = self._gather(x)
        total = found[0] + found[1]
        for other in found[2:]:
            total += other
        return total

    def all_gather(self, x: torch.Tensor, width: int) -> torch.Tensor:
        """All ranks' x side by side along the last axis; see `ops.base.Comm`."""
        parts = split_evenly(width, self.size)
        missing = len(parts[0]) - x.shape[-1]
        found = self._gather(torch.nn.functional.pad(x, (0, missing)) if missing else x)
        cut = [one[..., : len(part)] for one, part in zip(found, parts, strict=True)]
        return torch.cat(cut, dim=-1)

    def synchronize(self) -> None:
        """Waits until the device has computed all that it was given."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def _gather(self, x: torch.Tensor) -> Sequence[torch.Tensor]:
        """Every rank's x, all of one shape."""
        flat = x.contiguous().view(-1)
        found = flat.new_empty(self.size * flat.numel())
        if flat.numel():
            with self._host.timed():
                (carrier,) = self._carriers
                carrier._allgather_base(found, flat).wait()
        ranks: Sequence[torch.Tensor] = found.view(self.size, *x.shape).unbind()
        return ranks


def _open_nccl(store: Store, host: RankGroup) -> Any:
    if not is_nccl_available():
        raise ConfigError(
            "needs torch with NCCL for several ranks; this one was built without", "backend",
            value="cuda", hint="install torch for CUDA",
        )  # fmt: skip
    from torch.distributed import ProcessGroupNCCL  # not in torch for CPUs

    options = ProcessGroupNCCL.Options()
    options._timeout = LATEST
    return ProcessGroupNCCL(store, host.rank, host.size, options)


def _abort(groups: list[Any]) -> None:
    """Ends NCCL's groups, also while a collective waits for a rank that is gone.  Their threads end
    with the last reference.
    """
    while groups:
        groups.pop().abort()
