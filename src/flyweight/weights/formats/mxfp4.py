"""MXFP4 as gpt-oss is published (OpenAI, 2025): of experts' matrices [E, N, K],

    M_blocks  u8 [E, N, K / 32, 16]    two codes of E2M1 a byte, the first in the low half
    M_scales  u8 [E, N, K / 32]    exponents, 127 for 1

Invariant: w = 2^(exponent - 127) * value.  The matrix goes by the name of its blocks.
"""

from functools import partial

import numpy as np

from flyweight.errors import CheckpointError
from flyweight.ops.grouped import E2M1, GroupedWeight
from flyweight.validation.untrusted import shown
from flyweight.weights.formats.claims import Claim, Folder, MatrixScheme, Parts, check_powers
from flyweight.weights.tensorinfo import TensorInfo

BLOCKS, SCALES = "_blocks", "_scales"
GROUP = 32


def claim(folder: Folder) -> dict[str, Claim]:
    """Every pair of the folder, by the name of its blocks."""
    return {
        name: _claim_pair(info, folder.tensors.get(name.removesuffix(BLOCKS) + SCALES), folder)
        for name, info in folder.tensors.items()
        if info.kind == "u8" and name.endswith(BLOCKS)
    }


def _claim_pair(blocks: TensorInfo, scales: TensorInfo | None, folder: Folder) -> Claim:
    whole = len(blocks.shape) == 4 and blocks.shape[3] == GROUP // 2
    if scales is None or not whole or (scales.shape, scales.kind) != (blocks.shape[:3], "u8"):
        found = "missing" if scales is None else f"{scales.kind} {list(scales.shape)}"
        raise CheckpointError(
            f"{folder.where}: {shown(blocks.name)} is {list(blocks.shape)} and its scales are "
            f"{found}; [E, N, K/{GROUP}, {GROUP // 2}] and [E, N, K/{GROUP}] of bytes expected"
        )
    experts, rows, groups = blocks.shape[:3]
    parts = {"blocks": blocks.name, "scales": scales.name}
    read = partial(parse, folder.where)
    shape = (experts, rows, groups * GROUP)
    return Claim(shape, "mxfp4", parts, read, MatrixScheme(4, GROUP))


def parse(where: str, parts: Parts, start: int, stop: int) -> GroupedWeight:
    """Of ggml's blocks an exponent of 127 means 1 too, for the values of the table are doubled."""
    blocks = parts["blocks"].rows(start, stop, axes=2)
    scales = parts["scales"].rows(start, stop, axes=2)
    check_powers(parts["scales"], scales, where)
    codes = np.stack((blocks & 15, blocks >> 4), axis=-1)
    codes = codes.reshape(len(blocks), GROUP * blocks.shape[1])
    return GroupedWeight(codes.shape, 4, GROUP, codes, scales, values=E2M1)
