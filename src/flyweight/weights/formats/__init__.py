"""The tensor kinds we read: how many bytes a row takes, and the parser from those bytes to
canonical form.

Invariant: a parser copies; nothing it returns keeps the file's memory map alive.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from numpy.typing import NDArray

from flyweight.ops.grouped import BASES, GroupedWeight, count_block, find_base
from flyweight.weights.formats import blocks, codebook, kquants, values
from flyweight.wire import U8

# Dense arrays are float32, float16, or uint16 holding bfloat16 bits.
Rows = GroupedWeight | NDArray[Any]


@dataclass(frozen=True, slots=True)
class TensorFormat:
    """`block` elements along K take `nbytes` bytes on disk and `canonical` bytes once parsed.
    `packed` is the kind backends pack it as: its own, or another where it has no kernel.
    """

    block: int
    nbytes: int
    canonical: float
    parse: Callable[[U8, tuple[int, ...]], Rows]
    packed: str

    @property
    def quantised(self) -> bool:
        return self.block > 1

    def count_bytes(self, shape: tuple[int, ...]) -> int:
        """Bytes on disk of a tensor whose last axis is a whole number of blocks."""
        return math.prod(shape) // self.block * self.nbytes


PUBLISHED = {
    "f32": TensorFormat(1, 4, 4, values.parse_f32, "f32"),
    "f16": TensorFormat(1, 2, 2, values.parse_f16, "f16"),
    "bf16": TensorFormat(1, 2, 2, values.parse_bf16, "bf16"),
    "q4_0": TensorFormat(32, 18, 34, blocks.parse_q4_0, "q4_0"),
    "q4_1": TensorFormat(32, 20, 36, blocks.parse_q4_1, "q4_1"),
    "q5_0": TensorFormat(32, 22, 34, blocks.parse_q5_0, "q5_0"),
    "q5_1": TensorFormat(32, 24, 36, blocks.parse_q5_1, "q5_1"),
    "q8_0": TensorFormat(32, 34, 34, blocks.parse_q8_0, "q8_0"),
    "q2_k": TensorFormat(256, 84, 292, kquants.parse_q2_k, "q2_k"),
    "q3_k": TensorFormat(256, 110, 274, kquants.parse_q3_k, "q3_k"),
    "q4_k": TensorFormat(256, 144, 276, kquants.parse_q4_k, "q4_k"),
    "q5_k": TensorFormat(256, 176, 276, kquants.parse_q5_k, "q5_k"),
    "q6_k": TensorFormat(256, 210, 274, kquants.parse_q6_k, "q6_k"),
    "iq4_nl": TensorFormat(32, 18, 34, blocks.parse_iq4_nl, "iq4_nl"),
    "iq4_xs": TensorFormat(256, 136, 266, blocks.parse_iq4_xs, "iq4_xs"),
    "mxfp4": TensorFormat(32, 17, 33, blocks.parse_mxfp4, "mxfp4"),
    "nvfp4": TensorFormat(64, 36, 72, blocks.parse_nvfp4, "nvfp4"),
    "iq1_s": TensorFormat(256, 50, 276, codebook.parse_iq1_s, "int8_k"),
    "iq1_m": TensorFormat(256, 56, 276, codebook.parse_iq1_m, "int8_k"),
    "iq2_xxs": TensorFormat(256, 66, 276, codebook.parse_iq2_xxs, "int8_k"),
    "iq2_xs": TensorFormat(256, 74, 276, codebook.parse_iq2_xs, "int8_k"),
    "iq2_s": TensorFormat(256, 82, 276, codebook.parse_iq2_s, "int8_k"),
    "iq3_xxs": TensorFormat(256, 98, 276, codebook.parse_iq3_xxs, "int8_k"),
    "iq3_s": TensorFormat(256, 110, 276, codebook.parse_iq3_s, "int8_k"),
    "tq1_0": TensorFormat(256, 54, 276, codebook.parse_tq1_0, "int8_k"),
    "tq2_0": TensorFormat(256, 66, 276, codebook.parse_tq2_0, "int8_k"),
}


class Formats(Mapping[str, TensorFormat]):
    """The kinds of GGUF and the dense ones, which it lists, and by their names the kinds that
    matrices of several tensors have (`ops.grouped.name_kind`).
    """

    def __getitem__(self, kind: str) -> TensorFormat:
        return PUBLISHED[kind] if kind in PUBLISHED else _make_joined(kind)

    def __iter__(self) -> Iterator[str]:
        return iter(PUBLISHED)

    def __len__(self) -> int:
        return len(PUBLISHED)


FORMATS = Formats()


@cache
def _make_joined(kind: str) -> TensorFormat:
    """The numbers of a kind whose matrices are read by their claim; KeyError for no such kind."""
    base = find_base(kind)
    if base in PUBLISHED:
        return replace(PUBLISHED[base], parse=_refuse_bytes, packed=kind)
    if base not in BASES or "_" not in kind:  # "u8" and "e4m3" are tensors of bytes
        raise KeyError(kind)
    block, bits = (
        count_block(kind),
        4 if base in ("nf4", "fp4") else 8 if base[0] == "e" else int(base[1]),
    )
    scale = 0 if "_g" not in kind else 4 if "_f32" in kind else 2
    point = 0 if base[0] != "u" else scale if "_zf" in kind or "_min" in kind else 1
    nbytes = block * bits // 8 + scale + point
    return TensorFormat(block, nbytes, block + scale + point, _refuse_bytes, kind)


def _refuse_bytes(raw: U8, shape: tuple[int, ...]) -> Rows:
    raise AssertionError("rows of several tensors are parsed by their claim")
