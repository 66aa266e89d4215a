"""gpt-oss's own layout of MXFP4 in safetensors: for a tensor of experts one of codes,
`NAME_blocks`, and one of exponents, `NAME_scales`, both bytes.

Invariant: a pair is one tensor `NAME_blocks` of kind mxfp4 and shape [E, N, K]; other bytes (the
masks of older files) stay bytes.
"""

from collections.abc import Mapping

import numpy as np

from flyweight.errors import CheckpointError
from flyweight.ops.grouped import E2M1, GroupedWeight
from flyweight.validation.untrusted import shown
from flyweight.weights.tensorinfo import TensorInfo
from flyweight.wire import U8

BLOCKS, SCALES = "_blocks", "_scales"
GROUP = 32


def pair_tensors(tensors: Mapping[str, TensorInfo], where: str) -> dict[str, TensorInfo]:
    """The tensors with every pair of bytes as one.  Raises `CheckpointError`."""
    found: dict[str, TensorInfo] = {}
    for name, info in tensors.items():
        if info.kind == "u8" and name.endswith(BLOCKS):
            found[name] = _make_pair(info, tensors.get(name_scales(name)), where)
        elif not (name.endswith(SCALES) and name.removesuffix(SCALES) + BLOCKS in tensors):
            found[name] = info
    return found


def name_scales(name: str) -> str:
    """The scales' name, of the blocks'."""
    return name.removesuffix(BLOCKS) + SCALES


def _make_pair(blocks: TensorInfo, scales: TensorInfo | None, where: str) -> TensorInfo:
    """[E, N, K/32, 16] and [E, N, K/32] -> [E, N, K]."""
    whole = len(blocks.shape) == 4 and blocks.shape[3] == GROUP // 2
    if scales is None or not whole or (scales.shape, scales.kind) != (blocks.shape[:3], "u8"):
        found = "missing" if scales is None else f"{scales.kind} {list(scales.shape)}"
        raise CheckpointError(
            f"{where}: {shown(blocks.name)} is {list(blocks.shape)} and its scales are {found}; "
            f"[E, N, K/{GROUP}, {GROUP // 2}] and [E, N, K/{GROUP}] of bytes expected"
        )
    experts, rows, groups = blocks.shape[:3]
    return TensorInfo(blocks.name, (experts, rows, groups * GROUP), "mxfp4")


def join(blocks: U8, scales: U8) -> GroupedWeight:
    """Rows of both, [N, K/2] and [N, K/32]: each byte holds two neighbours, the low half first; an
    exponent of 127 means 1, as in ggml's blocks.
    """
    codes = np.stack((blocks & 15, blocks >> 4), axis=-1).reshape(len(blocks), -1)
    return GroupedWeight(codes.shape, 4, GROUP, codes, scales, values=E2M1)
