"""The tensor kinds we read: how many bytes a row takes, and the parser from those bytes to
canonical form.

Invariant: a parser copies; nothing it returns keeps the file's memory map alive.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from flyweight.ops.grouped import GroupedWeight
from flyweight.weights.formats import dense, ggml
from flyweight.wire import U8

# Dense arrays are float32, float16, or uint16 holding bfloat16 bits.
Rows = GroupedWeight | NDArray[Any]


@dataclass(frozen=True, slots=True)
class Format:
    """`block` elements along K take `nbytes` bytes on disk and `canonical` bytes once parsed."""

    block: int
    nbytes: int
    canonical: float
    parse: Callable[[U8, tuple[int, ...]], Rows]

    @property
    def quantised(self) -> bool:
        return self.block > 1

    def bytes_for(self, shape: tuple[int, ...]) -> int:
        """Bytes on disk of a tensor whose last axis is a whole number of blocks."""
        return math.prod(shape) // self.block * self.nbytes


FORMATS: Mapping[str, Format] = {
    "f32": Format(1, 4, 4, dense.parse_f32),
    "f16": Format(1, 2, 2, dense.parse_f16),
    "bf16": Format(1, 2, 2, dense.parse_bf16),
    "q8_0": Format(32, 34, 34, ggml.parse_q8_0),
    "q4_0": Format(32, 18, 34, ggml.parse_q4_0),
    "q4_k": Format(256, 144, 276, ggml.parse_q4_k),
    "q6_k": Format(256, 210, 274, ggml.parse_q6_k),
}
