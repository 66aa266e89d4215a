"""The columns of a batch on the device.

Invariant: a `DeviceBatch` is made once a step and read by every op of it.  The facts that choose a
kernel (`decode`, `longest`) are known on the host, so no op waits for the device.  Only a step that
a graph replays is padded: its columns are in fixed buffers of a rounded-up size, and its padding
rows are sequences of context 1 in the spare block of its own K and V, which no request ever sees.
"""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flyweight.ops.cuda.kv import CudaKV
from flyweight.wire import Batch

# Rows of captured steps: at most three of eight are padding, and one of seven from 97 rows on.
ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240,
        256, 288, 320, 352, 384, 448, 512)  # fmt: skip
LEAST_WIDTH = 16  # blocks of a captured step's tables; wider ones are powers of two


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """T tokens of S sequences.  int32 tensors: `tokens`, `positions`, `slots`, `owners` [T] (the
    sequence of each token), `starts` [S+1], `contexts` [S], `tables` [S,M].  `decode`: every
    sequence has one token, token t belongs to sequence t.  `most` is the largest number of tokens
    of a sequence in this step, `longest` an upper bound of the contexts.
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
    adapters: None = None  # steps that use one are not captured
    ancestors: tuple[Tensor, Tensor] | None = None


class FixedColumns:
    """The buffers of one size of decode step: `rows` sequences with tables of `width` blocks."""

    def __init__(self, rows: int, width: int, block_size: int, device: torch.device) -> None:
        count = 6 * rows + 1 + rows * width
        pinned = device.type == "cuda"
        self.host = torch.empty(count, dtype=torch.int32, pin_memory=pinned)
        self.flat = torch.empty(count, dtype=torch.int32, device=device)
        self.values = self.host.numpy()
        edges = np.cumsum([0, rows, rows, rows, rows, rows + 1, rows, rows * width])
        self.places = [slice(a, b) for a, b in pairwise(edges)]
        tokens, positions, slots, owners, starts, contexts, tables = (
            self.flat[place] for place in self.places
        )
        self.values[self.places[3]] = np.arange(rows)
        self.values[self.places[4]] = np.arange(rows + 1)
        self.batch = DeviceBatch(
            tokens, positions, slots, owners, starts, contexts, tables.view(rows, width),
            decode=True, most=1, longest=width * block_size,
        )  # fmt: skip
        self.rows, self.width = rows, width
        self.copied = torch.cuda.Event() if pinned else None

    def fill(self, batch: Batch, kv: CudaKV) -> DeviceBatch:
        """Copies a batch in; the rows beyond it read and write the spare block of `kv`.  Waits for
        the copy of the step before: one that samples nothing may still be under way.
        """
        if self.copied is not None:
            self.copied.synchronize()
        count, values = len(batch.tokens), self.values
        columns = (batch.tokens, 0), (batch.positions, 0), (batch.slots, kv.spare_slot)
        for place, (column, padding) in zip(self.places, columns, strict=False):
            part = values[place]
            part[:count], part[count:] = column, padding
        contexts = values[self.places[5]]
        contexts[:count], contexts[count:] = batch.contexts, 1
        tables = values[self.places[6]].reshape(self.rows, self.width)
        tables[:count, : batch.tables.shape[1]] = batch.tables
        tables[count:, 0] = kv.spare_block
        self.flat.copy_(self.host, non_blocking=True)
        if self.copied is not None:
            self.copied.record()
        return self.batch


class Stager:
    """Brings batches to the device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._fixed: dict[tuple[int, int, int], FixedColumns] = {}

    def stage(self, batch: Batch) -> DeviceBatch:
        """The columns as they are."""
        counts = np.diff(batch.starts)
        return copy_columns(batch, counts, _is_decode(counts), self.device)

    def pad(self, batch: Batch, kv: CudaKV) -> DeviceBatch | None:
        """The columns in fixed buffers, padded with the spare block of `kv`: K and V of one layer
        of the model that computes the step.  None for steps that are not captured.
        """
        rows = len(batch.tokens)
        if not _is_decode(np.diff(batch.starts)) or rows > ROWS[-1]:
            return None
        if batch.adapters is not None or batch.ancestors is not None:
            return None
        width = _round_width(batch.tables.shape[1])
        size = ROWS[bisect_left(ROWS, rows)], width, kv.block_size
        if size not in self._fixed:
            self._fixed[size] = FixedColumns(*size, self.device)
        return self._fixed[size].fill(batch, kv)


def _is_decode(counts: Any) -> bool:
    """Whether every sequence has one token."""
    return bool(len(counts)) and bool((counts == 1).all())


def copy_columns(batch: Batch, counts: Any, decode: bool, device: torch.device) -> DeviceBatch:
    """A batch's columns on the device, in one transfer."""
    owners = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    columns = (
        batch.tokens, batch.positions, batch.slots, owners, batch.starts, batch.contexts,
        batch.tables, *(batch.ancestors or ()),
    )  # fmt: skip
    flat = torch.from_numpy(np.concatenate([np.ravel(c) for c in columns]).astype(np.int32))
    if device.type == "cuda":
        flat = flat.pin_memory().to(device, non_blocking=True)
    parts = torch.split(flat, [c.size for c in columns])
    tokens, positions, slots, owned, starts, contexts, tables, *shared = parts
    return DeviceBatch(
        tokens=tokens,
        positions=positions,
        slots=slots,
        owners=owned,
        starts=starts,
        contexts=contexts,
        tables=tables.view(batch.tables.shape),
        decode=decode,
        most=int(counts.max(initial=0)),
        longest=int(batch.contexts.max(initial=0)),
        ancestors=(shared[0], shared[1]) if shared else None,
    )


def _round_width(blocks: int) -> int:
    width = LEAST_WIDTH
    while width < blocks:
        width *= 2
    return width
