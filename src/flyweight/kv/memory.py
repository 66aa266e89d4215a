"""The arrays behind the blocks, one layer of K/V memory per layer of the model, and their pages.

A page is zeroed at its first write, and where the machine is a virtual one its host may have to
find it too (measured: 0.4 GB/s; zeroing alone: 5).  All layers come to a new huge page with
the same block, so one step would pay for all of them.  Here they are paid for while nothing runs,
up to `SPARE` bytes, and one by one between steps.

Invariant: every layer has the pool's N blocks of B tokens, so one table serves all of them.
Touching pages changes nothing that a block holds.  Knows no request.
"""

from collections.abc import Sequence

from flyweight.config import Limits
from flyweight.kv.blocks import BlockPool
from flyweight.ops.base import Ops
from flyweight.ops.operands import KVLayer
from flyweight.spec import ModelSpec

RUN = 4 << 20  # bytes of one layer that are touched at a time: a huge page of K and one of V
SPARE = 2 << 30  # bytes of all layers that an idle engine touches ahead of the blocks in use


def allocate_kv(spec: ModelSpec, ops: Ops, limits: Limits, dtype: str) -> tuple[KVLayer, ...]:
    """Allocates K/V memory for every layer.  Raises `ConfigError` on an unknown dtype."""
    return tuple(
        ops.make_kv_layer(layer.kv, limits.blocks, limits.block_size, dtype)
        for layer in spec.layers
    )


class Prefault:
    """Touches memory in the order in which a pool first hands out its blocks: ascending."""

    def __init__(self, pool: BlockPool, layers: Sequence[KVLayer], ops: Ops) -> None:
        self.pool, self.layers, self.ops = pool, layers, ops
        blocks = max(1, pool.blocks)
        widest = max(layer.nbytes for layer in layers) // blocks
        self.run = max(1, RUN // max(1, widest))  # blocks
        self.spare = SPARE // max(1, sum(layer.nbytes for layer in layers) // blocks)
        self._first, self._layer = 0, 0  # of the next run
        self._owed = 0.0  # runs that the steps so far have used up
        self._seen = 0

    @property
    def wanted(self) -> bool:
        """Whether an idle engine would touch more."""
        return self._first < min(self.pool.blocks, self.pool.reached + self.spare)

    def run_idle(self) -> None:
        """One run of one layer, while the engine is idle."""
        self._catch_up()
        if not self.wanted:
            return
        count = min(self.run, self.pool.blocks - self._first)
        self.ops.populate_kv(self.layers[self._layer], self._first, count)
        self._layer += 1
        if self._layer == len(self.layers):
            self._first, self._layer = self._first + self.run, 0

    def step(self) -> None:
        """Between two steps: as many runs as the last one used up, while there are less than two
        for each layer ahead.
        """
        self._owed += (self.pool.reached - self._seen) / self.run * len(self.layers)
        self._seen = self.pool.reached
        while self._owed >= 1:
            self._owed -= 1
            if self._first < self.pool.reached + 2 * self.run:
                self.run_idle()

    def _catch_up(self) -> None:
        """Skips runs whose blocks have all been taken meanwhile."""
        if self._first + self.run <= self.pool.reached:
            self._first, self._layer = self.pool.reached // self.run * self.run, 0
