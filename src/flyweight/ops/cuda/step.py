"""The columns of a batch on the device.

Invariant: a `DeviceBatch` is made once a step and read by every op of it.  The facts that choose a
kernel (`decode`, `longest`) are known on the host, so no op waits for the device.  A decode step
that a graph may replay has its columns in fixed buffers of a rounded-up size; its padding rows are
sequences of context 1 in the spare block, which no request ever sees.
"""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

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
    of a sequence in this step, `longest` an upper bound of the contexts.  `fixed`: the columns are
    in buffers that the next step of this size uses again.
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
    fixed: bool = False
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
            decode=True, most=1, longest=width * block_size, fixed=True,
        )  # fmt: skip
        self.rows, self.width = rows, width
        self.copied = torch.cuda.Event() if pinned else None

    def fill(self, batch: Batch, spare: tuple[int, int]) -> DeviceBatch:
        """Copies a batch in; the rows beyond it read and write the spare (block, slot).  Waits for
        the copy of the step before: one that samples nothing may still be under way.
        """
        if self.copied is not None:
            self.copied.synchronize()
        count, values = len(batch.tokens), self.values
        block, slot = spare
        columns = (batch.tokens, 0), (batch.positions, 0), (batch.slots, slot)
        for place, (column, padding) in zip(self.places, columns, strict=False):
            part = values[place]
            part[:count], part[count:] = column, padding
        contexts = values[self.places[5]]
        contexts[:count], contexts[count:] = batch.contexts, 1
        tables = values[self.places[6]].reshape(self.rows, self.width)
        tables[:count, : batch.tables.shape[1]] = batch.tables
        tables[count:, 0] = block
        self.flat.copy_(self.host, non_blocking=True)
        if self.copied is not None:
            self.copied.record()
        return self.batch


class Stager:
    """Brings batches to the device.  `spare` is (block, slot) for padding, None where steps are not
    captured.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.spare: tuple[int, int] | None = None
        self.block_size = 0
        self._fixed: dict[tuple[int, int], FixedColumns] = {}

    def stage(self, batch: Batch) -> DeviceBatch:
        counts = np.diff(batch.starts)
        decode = bool(len(counts)) and bool((counts == 1).all())
        rows = len(batch.tokens)
        special = batch.adapters is not None or batch.ancestors is not None
        if self.spare is None or not decode or rows > ROWS[-1] or special:
            return copy_columns(batch, counts, decode, self.device)
        size = ROWS[bisect_left(ROWS, rows)], _round_width(batch.tables.shape[1])
        if size not in self._fixed:
            self._fixed[size] = FixedColumns(*size, self.block_size, self.device)
        return self._fixed[size].fill(batch, self.spare)


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
