"""The columns of a batch on the device.

Invariant: a `DeviceBatch` is made once a step and read by every op of it.  The facts that choose a
kernel (`decode`, `longest`) are known on the host, so no op waits for the device.  Padding tokens
of a captured step belong to sequences of context 1 in the spare block.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flyweight.wire import Batch


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """T tokens of S sequences.  int32 tensors: `positions`, `slots`, `owners` [T] (the sequence of
    each token), `starts` [S+1], `contexts` [S], `tables` [S,M].  `decode`: no sequence has more
    than one token and token t belongs to sequence t.  `most` is the largest number of tokens of a
    sequence in this step, `longest` an upper bound of the contexts.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    owners: Tensor
    starts: Tensor
    contexts: Tensor
    tables: Tensor
    decode: bool
    most: int
    longest: int


def stage(batch: Batch, device: torch.device) -> DeviceBatch:
    """Copies a batch's columns to the device in one transfer."""
    counts = np.diff(batch.starts)
    owners = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    columns = (
        batch.tokens, batch.positions, batch.slots, owners, batch.starts, batch.contexts,
        batch.tables,
    )  # fmt: skip
    flat = torch.from_numpy(np.concatenate([np.ravel(c) for c in columns]).astype(np.int32))
    if device.type == "cuda":
        flat = flat.pin_memory().to(device, non_blocking=True)
    parts = torch.split(flat, [c.size for c in columns])
    tokens, positions, slots, owned, starts, contexts, tables = parts
    return DeviceBatch(
        tokens=tokens,
        positions=positions,
        slots=slots,
        owners=owned,
        starts=starts,
        contexts=contexts,
        tables=tables.view(batch.tables.shape),
        decode=bool(len(counts)) and bool((counts == 1).all()),
        most=int(counts.max(initial=0)),
        longest=int(batch.contexts.max(initial=0)),
    )
