"""What ops take apart from arrays: weights, rotations, a layer's K and V.

Invariant: a protocol says what others than the backend may know of an operand; only ops look
inside.  Knows no op.
"""

from dataclasses import dataclass
from typing import Protocol

from flyweight.spec import KVGroup
from flyweight.wire import F32, Tensor


class Weight(Protocol):
    """A packed matrix or a plain vector; only ops look inside.  `nbytes` is what it really holds in
    memory.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def kind(self) -> str: ...  # "f32", "f16", "bf16", or a key of grouped.LAYOUTS


# A slot whose sources differ in kind is a tuple, in order along N.
Weights = Weight | tuple[Weight, ...]


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds to a matrix (N,K): up(down(x)), (r,K) and (N,r)."""

    down: Weight
    up: Weight


@dataclass(frozen=True, slots=True)
class Rotation:
    """cos and sin of every token's rope angles, scaled by the attention factor: [T, dim/2] each,
    float32.  Half-split convention: element i pairs with i + dim/2; elements from `dim` on are left
    as they are.
    """

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """RMS norm of q and k before the rotation.  float32 weights [D] norm every head by itself
    (Qwen3); [Hq*D] and [Hk*D] norm all heads of a token as one vector (OLMo 2).
    """

    q: F32
    k: F32
    eps: float


class KVLayer(Protocol):
    """One layer's K and V in the backend's own layout, addressed by slot."""

    @property
    def group(self) -> KVGroup: ...
    @property
    def block_size(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def block_bytes(self) -> int:
        """Bytes of one block, as `read_kv` gives them."""
        ...
