"""The arrays behind the blocks: one layer of K/V memory per layer of the model.

Invariant: every layer has the pool's N blocks of B tokens, so one table serves all of them.  The
layout is the backend's.
"""

from flyweight.config import Limits
from flyweight.ops.base import Ops
from flyweight.ops.operands import KVLayer
from flyweight.spec import ModelSpec


def kv_memory(spec: ModelSpec, ops: Ops, limits: Limits, dtype: str) -> tuple[KVLayer, ...]:
    """Allocates K/V memory for every layer.  Raises `ConfigError` on an unknown dtype."""
    return tuple(
        ops.kv_layer(layer.kv, limits.blocks, limits.block_size, dtype) for layer in spec.layers
    )
