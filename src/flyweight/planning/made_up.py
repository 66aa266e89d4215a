"""Packed weights of made-up bytes: of any shape and kind, without a file.

Bytes are from 0x30 to 0x3f, again and again: as scales of any type these are ordinary numbers.

Invariant: the kernels read as much as for real weights, from memory of its own.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from flyweight.ops.cpu import CpuOps

PATTERN = 1 << 20  # bytes that are repeated
ALIGN = 64


@dataclass(frozen=True, slots=True)
class PartialSlot:
    """A weight slot: shapes and kinds of what fills it, and whether its matrices are biased."""

    name: str
    parts: Sequence[tuple[tuple[int, ...], str]]
    biased: bool


def strip_order(kind: str) -> str:
    """The kind without an order of columns, which made-up bytes cannot be."""
    return kind.removesuffix("_static").removesuffix("_order")


def fill_weights(slots: Sequence[PartialSlot], ops: CpuOps) -> dict[str, Any]:
    """The weights of slots by their names; vectors are ones."""
    matrices = [part for slot in slots for part in slot.parts if len(part[0]) == 2]
    sizes = [ops.count_packed_bytes((n, k), kind) for (n, k), kind in matrices]
    offsets = [0, *accumulate(-(-size // ALIGN) * ALIGN for size in sizes)]
    descriptor = _make_file(offsets[-1])
    file = ops.map_file(descriptor)
    os.close(descriptor)
    ops.move(file, ops.count_unmoved(file))  # to huge pages, where the engine has its weights
    places = iter(offsets)
    weights: dict[str, Any] = {}
    for slot in slots:
        if len(slot.parts[0][0]) == 1:
            weights[slot.name] = np.ones(slot.parts[0][0], np.float32)
            continue
        packed = tuple(
            ops.map_weight(file, next(places), (n, k), kind, zeros if slot.biased else None)
            for (n, k), kind in slot.parts
            for zeros in [np.zeros(n, np.float32)]
        )
        weights[slot.name] = packed[0] if len(packed) == 1 else packed
    return weights


def _make_file(size: int) -> int:
    """A file in memory with so many bytes of the pattern; its descriptor."""
    descriptor = os.memfd_create("flyweight-part")
    pattern = np.random.default_rng(0).integers(0x30, 0x40, PATTERN, dtype=np.uint8).tobytes()
    left = -(-size // PATTERN) * PATTERN
    while left > 0:
        left -= os.write(descriptor, pattern)
    return descriptor
