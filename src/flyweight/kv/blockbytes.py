"""One block's K and V of all layers, as bytes.

Invariant: what was read of a block makes the same block anywhere in K/V memory of the same shapes
and type.  Knows no keys.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from flyweight.ops.base import Ops
from flyweight.ops.operands import KVLayer
from flyweight.wire import U8


class BlockBytes:
    """Of the blocks of these layers; `size` bytes each."""

    def __init__(self, ops: Ops, layers: Sequence[KVLayer]) -> None:
        self.ops, self.layers = ops, layers
        self.size = sum(layer.block_bytes for layer in layers)

    def make_buffer(self) -> U8:
        return np.empty(self.size, np.uint8)

    def read(self, block: int, out: U8) -> None:
        """Copies a block to `out`."""
        for layer, part in self._split(out):
            self.ops.read_kv(layer, (block,), part)

    def write(self, block: int, data: U8) -> None:
        """Copies `data` to a block."""
        for layer, part in self._split(data):
            self.ops.write_kv(layer, (block,), part)

    def _split(self, whole: U8) -> Iterator[tuple[KVLayer, U8]]:
        first = 0
        for layer in self.layers:
            yield layer, whole[None, first : first + layer.block_bytes]
            first += layer.block_bytes
