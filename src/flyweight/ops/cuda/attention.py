"""The KV cache on the device: its memory, what writes it and what reads it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flyweight.ops.cuda.step import DeviceBatch
from flyweight.ops.operands import HeadNorm, KVLayer, Rotation
from flyweight.spec import KVGroup


@dataclass(frozen=True, slots=True)
class CudaKV:
    """K and V of one layer by slot."""

    group: KVGroup
    blocks: int
    block_size: int
    dtype: str
    k: Tensor
    v: Tensor | None

    @property
    def nbytes(self) -> int:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Seen:
    """What a query sees, and how its scores are made: `attend`'s options."""

    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: Tensor | None = None
    chunk: int = 0


def make_kv_layer(
    group: KVGroup, blocks: int, block_size: int, dtype: str, device: torch.device
) -> CudaKV:
    raise NotImplementedError


def rotation(positions: Tensor, inv_freq: Tensor, scale: float) -> Rotation:
    raise NotImplementedError


def rope_store(
    qkv: Tensor, kv: KVLayer, batch: DeviceBatch, rope: Rotation, norms: HeadNorm | None
) -> Tensor:
    raise NotImplementedError


def attend(q: Tensor, kv: KVLayer, batch: DeviceBatch, seen: Seen, dtype: torch.dtype) -> Tensor:
    raise NotImplementedError


def move_kv(kv: KVLayer, src: Tensor, dst: Tensor) -> None:
    raise NotImplementedError
