"""Whole blocks of K/V as bytes, where the arrays are in the host's memory.

Invariant: a row has the bytes of one block, of one part of the K/V after the other.  Knows no
layout.
"""

from collections.abc import Sequence

import numpy as np

from flyweight.ops.base import Array
from flyweight.wire import U8


def view_blocks(array: Array, blocks: int) -> U8:
    """An array whose memory is block after block, as bytes: [blocks, bytes of one]."""
    return array.reshape(blocks, -1).view(np.uint8)


def read_rows(parts: Sequence[U8], blocks: Sequence[int], out: U8) -> None:
    """Rows `blocks` of all parts, side by side, to the rows of `out`."""
    for row, block in zip(out, blocks, strict=True):
        first = 0
        for part in parts:
            row[first : first + part.shape[1]] = part[block]
            first += part.shape[1]
        assert first == len(row), "rows of another size"


def write_rows(parts: Sequence[U8], blocks: Sequence[int], data: U8) -> None:
    """The opposite of `read_rows`."""
    for row, block in zip(data, blocks, strict=True):
        first = 0
        for part in parts:
            part[block] = row[first : first + part.shape[1]]
            first += part.shape[1]
        assert first == len(row), "rows of another size"
