"""What rank 0 sends the other ranks for a step: the arrays of its `Batch`, as numbers.

Invariant: `read_step` gives back every array but the sampling options, which rank 0 alone needs.
Knows no processes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from flyweight.sampling.arrays import columns
from flyweight.wire import I32, Batch

ABSENT = -1  # in place of a length
PLAIN = ("tokens", "positions", "slots", "starts", "contexts", "rows")
OPTIONAL = ("adapters", "hidden")
Moves = tuple[I32, I32] | None


@dataclass(frozen=True, slots=True)
class StepMessage:
    """A batch without sampling options, and the slots to copy from and to before it runs."""

    batch: Batch
    moves: Moves


def write_step(batch: Batch, moves: Moves) -> I32:
    """The lengths of all arrays, then the arrays."""
    arrays: list[I32 | None] = [getattr(batch, name) for name in (*PLAIN, *OPTIONAL)]
    arrays += [*(batch.ancestors or (None, None)), *(moves or (None, None)), batch.tables]
    lengths = [ABSENT if array is None else array.size for array in arrays]
    head = np.array([batch.branches, batch.tables.shape[1], *lengths], np.int32)
    return np.concatenate([head, *(a.reshape(-1) for a in arrays if a is not None)])


def read_step(numbers: I32) -> StepMessage:
    """What `write_step` wrote."""
    count = len(PLAIN) + len(OPTIONAL) + 5
    branches, width, *lengths = (int(n) for n in numbers[: count + 2])
    at, arrays = count + 2, []
    for length in lengths:
        arrays.append(None if length == ABSENT else numbers[at : at + length])
        at += max(length, 0)
    assert at == len(numbers), f"{len(numbers)} numbers, and {at} expected"
    named: dict[str, Any] = dict(zip((*PLAIN, *OPTIONAL), arrays[:-5], strict=True))
    *pairs, tables = arrays[-5:]
    assert tables is not None, "a step without block tables"
    batch = Batch(
        **named,
        tables=tables.reshape(-1, width),
        sampling=columns([]),
        ancestors=_pair(*pairs[:2]),
        branches=branches,
    )
    return StepMessage(batch, _pair(*pairs[2:]))


def _pair(first: I32 | None, second: I32 | None) -> Moves:
    return None if first is None or second is None else (first, second)
