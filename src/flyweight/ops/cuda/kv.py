"""The KV cache on the device: its memory, and moves within it.

Invariant: K and V are [block, head, position in the block, element], with one spare block at the
end for the padding of captured steps.  Memory begins as it was found.  Knows no attention.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flyweight.errors import ConfigError, nearest
from flyweight.ops.base import KV_DTYPES, check_codes, uses_pairs
from flyweight.ops.operands import KVLayer
from flyweight.spec import KV_TYPES, KVGroup
from flyweight.wire import U8

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
CODES = {"int8": 1, "fp8_e4m3": 2, "fp8_e5m2": 3}  # as kernels/store_codes.py has them


@dataclass(frozen=True, slots=True)
class CudaKV:
    """K and V of one layer, [blocks + 1, heads, block size, elements]; codes have `scales` of K and
    of V, the same without elements.  `pairs`: attention multiplies bf16; else float32.  `turns`: K
    is rotated in rows of 2**turns elements.
    """

    group: KVGroup
    blocks: int
    block_size: int
    dtype: str
    k: Tensor
    v: Tensor | None
    pairs: bool
    scales: tuple[Tensor, Tensor] | None = None
    turns: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all slots, without the spare block's."""
        return self.blocks * self.block_size * KV_TYPES[self.dtype].count_bytes(self.group)

    @property
    def block_bytes(self) -> int:
        return sum(part.shape[1] for part in self.parts)

    @property
    def parts(self) -> list[Tensor]:
        """All memory as bytes, [blocks + 1, bytes of one] each."""
        held = [self.k] if self.v is None else [self.k, self.v]
        held += (self.scales or ())[: len(held)]
        return [part.reshape(len(part), -1).view(torch.uint8) for part in held]

    @property
    def spare_block(self) -> int:
        return self.blocks

    @property
    def spare_slot(self) -> int:
        return self.blocks * self.block_size


def make_kv_layer(
    group: KVGroup, blocks: int, block_size: int, dtype: str, device: torch.device,
    activations: str = "bf16",
) -> CudaKV:  # fmt: skip
    """Raises `ConfigError` for a dtype or a group this backend does not store."""
    if dtype not in KV_DTYPES:
        allowed, near = ", ".join(KV_DTYPES), nearest(dtype, KV_DTYPES)
        raise ConfigError(f"KV dtype = {dtype!r} is unknown; allowed: {allowed}{near}")
    if group.kind != "full":
        raise ConfigError(f"KV group kind = {group.kind!r} is not supported; allowed: full")
    if group.v_in_k and group.v_dim > group.k_dim:
        raise ConfigError(
            f"KV group with V of {group.v_dim} elements in K of {group.k_dim}; "
            f"allowed: at most {group.k_dim}"
        )
    check_stored(dtype)
    check_codes(group, block_size, dtype)
    shape = blocks + 1, group.heads, block_size
    k = torch.empty((*shape, group.k_dim), dtype=TYPES.get(dtype, torch.int8), device=device)
    v = None if group.v_in_k else k.new_empty((*shape, group.v_dim))
    pairs = uses_pairs(group, block_size, dtype, activations)
    if dtype in TYPES:
        return CudaKV(group, blocks, block_size, dtype, k, v, pairs)
    of_k = k.new_empty(shape, dtype=torch.float32)
    scales = of_k, of_k if v is None else torch.empty_like(of_k)
    turns = 0 if group.v_in_k else (group.k_dim & -group.k_dim).bit_length() - 1
    return CudaKV(group, blocks, block_size, dtype, k, v, pairs, scales, turns)


def check_stored(dtype: str) -> None:
    """Refuses a type of K and V that this backend does not store."""
    if dtype not in TYPES and dtype not in CODES:
        raise ConfigError(
            f"is not stored on a GPU; allowed: {', '.join((*TYPES, *CODES))}",
            "kv_cache_dtype",
            value=dtype,
            hint="nearest valid: int8",
        )


def move_kv(kv: KVLayer, src: Tensor, dst: Tensor) -> None:
    """As if every source were read before the first destination is written."""
    assert isinstance(kv, CudaKV)
    src, dst = src.long(), dst.long()
    size = kv.block_size
    for held in {kv.k, kv.v, *(kv.scales or ())}:
        if held is not None:
            held[dst // size, :, dst % size] = held[src // size, :, src % size]


def read_kv(kv: KVLayer, blocks: Sequence[int], out: U8) -> None:
    """Copies blocks to the rows of `out`, a host array."""
    assert isinstance(kv, CudaKV)
    places = torch.tensor(blocks, dtype=torch.long, device=kv.k.device)
    rows = torch.cat([part[places] for part in kv.parts], dim=1)
    out[:] = rows.cpu().numpy()


def write_kv(kv: KVLayer, blocks: Sequence[int], data: U8) -> None:
    """The opposite of `read_kv`."""
    assert isinstance(kv, CudaKV)
    places = torch.tensor(blocks, dtype=torch.long, device=kv.k.device)
    rows = torch.from_numpy(np.ascontiguousarray(data)).to(kv.k.device)
    for part, taken in zip(kv.parts, rows.split([p.shape[1] for p in kv.parts], 1), strict=True):
        part[places] = taken
