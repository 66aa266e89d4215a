"""Reads the slots that are quantised, and refuses weights that are not finite: codes cannot hold
NaN or infinity, so that they would be written as other numbers.

Invariant: the refusal names the tensor of the file.  Every weight that a job writes is read here.
"""

from collections.abc import Iterator

import numpy as np

from flyweight.errors import ConfigError
from flyweight.spec import SlotPlan
from flyweight.validation.untrusted import shown
from flyweight.weights.checkpoint import Checkpoint
from flyweight.weights.load import iterate_rows, read_bias, read_matrix, read_vector
from flyweight.wire import F32


def read_finite_matrix(checkpoint: Checkpoint, slot: SlotPlan) -> F32:
    """`read_matrix`.  Raises `ConfigError`."""
    rows = read_matrix(checkpoint, slot)
    _check(checkpoint, slot, rows)
    return rows


def iterate_finite_rows(checkpoint: Checkpoint, slot: SlotPlan) -> Iterator[tuple[int, F32]]:
    """`iterate_rows`.  Raises `ConfigError`."""
    for first, rows in iterate_rows(checkpoint, slot):
        _check(checkpoint, slot, rows, first)
        yield first, rows


def read_finite_vector(checkpoint: Checkpoint, slot: SlotPlan) -> F32:
    """`read_vector`.  Raises `ConfigError`."""
    values = read_vector(checkpoint, slot)
    _check(checkpoint, slot, values)
    return values


def read_finite_bias(checkpoint: Checkpoint, slot: SlotPlan) -> F32 | None:
    """`read_bias`.  Raises `ConfigError`."""
    values = read_bias(checkpoint, slot)
    if values is not None:
        _check(checkpoint, slot, values, bias=True)
    return values


def _check(
    checkpoint: Checkpoint, slot: SlotPlan, rows: F32, first: int = 0, bias: bool = False
) -> None:
    """Rows of a slot from `first` on.  Their extremes are NaN where one value is, and cost less
    than to look at each.
    """
    if not rows.size or (np.isfinite(rows.max()) and np.isfinite(rows.min())):
        return
    odd = ~np.isfinite(rows.reshape(len(rows), -1)).all(axis=1)
    place = first + int(odd.argmax())
    for source in slot.sources:
        if place < source.out:
            raise ConfigError(
                f"has values that are not finite in tensor "
                f"{shown(source.bias if bias else source.tensor)}",
                "model",
                value=str(checkpoint.path),
                hint="flyweight check MODEL counts them",
            )
        place -= source.out
    raise AssertionError("a row of no source")
