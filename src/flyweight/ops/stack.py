"""A run of decoder layers as one op: what it takes of a layer, and its body in the finer ops; and
`adapt` in the finer ops, where each adapter's two matrices run once for its rows.

Invariant: a backend that computes a stack another way gives the same bits as `run`. A layer is
code in finer ops; its recipe says the same as data, for those backends. A row takes its own
sequence's adapter alone, or none. Knows no families.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from flyweight.ops.operands import HeadNorm, KVLayer, LowRank, Rotation, Weights
from flyweight.spec import KVGroup
from flyweight.wire import F32, I32, Batch, Tensor


@dataclass(frozen=True, slots=True)
class RowNorm:
    """`norm` or, where `centred`, `layer_norm`, as data."""

    w: F32
    b: F32 | None
    eps: float
    centred: bool


class Norm(Protocol):
    """[T,H] -> [T,H], every row by itself."""

    def __call__(self, x: Tensor) -> Tensor: ...
    def add(self, x: Tensor, residual: Tensor) -> Tensor: ...
    def recipe(self) -> RowNorm | None:
        """What it computes; None where it norms nothing."""
        ...


@dataclass(frozen=True, slots=True)
class ResidualAdd:
    """What is done to a block's output before it is added: a norm, then a factor."""

    norm: RowNorm | None = None
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Mixing:
    """Attention: `qkv`, `rope_store`, `attend`, `out`."""

    heads: int
    kv: KVGroup
    qkv: Weights
    out: Weights
    norms: HeadNorm | None
    scale: float
    softcap: float
    sinks: F32 | None


@dataclass(frozen=True, slots=True)
class Feeding:
    """An MLP of `inner` elements: `up`, `act` or `activate`, `down`."""

    inner: int
    up: Weights
    down: Weights
    act: str
    gated: bool


@dataclass(frozen=True, slots=True)
class Recipe:
    """Attention, then an MLP on the residual that has it, each behind its norm."""

    attn_norm: RowNorm | None
    attn: Mixing
    attn_post: ResidualAdd
    mlp_norm: RowNorm | None
    mlp: Feeding
    mlp_post: ResidualAdd
    rope: int | None


class Layer(Protocol):
    """[T,H] -> [T,H]: takes the normed rows, gives what is still to be added to the residual.
    `rope` is its place among the call's rotations, None the last of them.
    """

    @property
    def attn_norm(self) -> Norm: ...
    @property
    def rope(self) -> int | None: ...
    @property
    def reads_host(self) -> bool:
        """Whether it computes on the host, from a batch's columns or from what an op returned: such
        a layer cannot be captured.
        """
        ...

    def __call__(
        self, x: Tensor, residual: Tensor, kv: KVLayer, batch: Batch, rope: Rotation
    ) -> Tensor: ...
    def recipe(self) -> Recipe | None:
        """What it computes for tokens without an adapter; None where no `Recipe` says it."""
        ...


class Stack(Protocol):
    """Layers to be run as one: writes K and V, adds to the residual [T,H] all but what it returns,
    [T,H].  `taps` are places of layers: `run_tapped` also gives the residual after each of them,
    with all that is to be added, in memory of its own.
    """

    def __call__(
        self, residual: Tensor, kv: Sequence[KVLayer], batch: Batch, ropes: Sequence[Rotation]
    ) -> Tensor: ...
    def run_tapped(
        self, residual: Tensor, kv: Sequence[KVLayer], batch: Batch, ropes: Sequence[Rotation],
        taps: Sequence[int],
    ) -> tuple[Tensor, dict[int, Tensor]]: ...  # fmt: skip


@dataclass(frozen=True, slots=True)
class SteppedStack:
    """A stack in the finer ops."""

    layers: Sequence[Layer]

    def __call__(
        self, residual: Tensor, kv: Sequence[KVLayer], batch: Batch, ropes: Sequence[Rotation]
    ) -> Tensor:
        return run(self.layers, None, residual, kv, batch, ropes)

    def run_tapped(
        self, residual: Tensor, kv: Sequence[KVLayer], batch: Batch, ropes: Sequence[Rotation],
        taps: Sequence[int],
    ) -> tuple[Tensor, dict[int, Tensor]]:  # fmt: skip
        return run_tapped(self.layers, None, residual, kv, batch, ropes, taps)


def run(
    layers: Sequence[Layer], x: Tensor | None, residual: Tensor, kv: Sequence[KVLayer],
    batch: Batch, ropes: Sequence[Rotation],
) -> Tensor:  # fmt: skip
    """One layer after the other; `x` is what a layer before has left to be added."""
    return run_tapped(layers, x, residual, kv, batch, ropes, ())[0]


def run_tapped(
    layers: Sequence[Layer], x: Tensor | None, residual: Tensor, kv: Sequence[KVLayer],
    batch: Batch, ropes: Sequence[Rotation], taps: Sequence[int],
) -> tuple[Tensor, dict[int, Tensor]]:  # fmt: skip
    """`run`, and the residual after the layers at `taps`, [T,H] each."""
    found = {}
    for i, (layer, own) in enumerate(zip(layers, kv, strict=True)):
        x = layer.attn_norm(residual) if x is None else layer.attn_norm.add(x, residual)
        x = layer(x, residual, own, batch, ropes[-1 if layer.rope is None else layer.rope])
        if i in taps:
            found[i] = residual + x
    assert x is not None, "a stack without layers"
    return x, found


class LowRankOps(Protocol):
    """What it takes of a backend."""

    def linear(self, x: Tensor, w: Weights) -> Tensor: ...
    def take(self, x: Tensor, rows: I32) -> Tensor: ...


def adapt(ops: LowRankOps, y: Tensor, x: Tensor, low: Mapping[int, LowRank], batch: Batch) -> None:
    """y += up(down(x)) in place, by row."""
    assert batch.adapters is not None
    owners = np.repeat(batch.adapters, np.diff(batch.starts))  # [T]
    for i, pair in low.items():
        rows = np.flatnonzero(owners == i).astype(np.int32)
        if len(rows) == len(x):
            y += ops.linear(ops.linear(x, pair.down), pair.up)
        elif len(rows):
            y[rows] += ops.linear(ops.linear(ops.take(x, rows), pair.down), pair.up)
