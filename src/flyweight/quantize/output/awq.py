"""Writes AWQ's GEMM layout (`weights.formats.awq` reads it, and lists its tensors).

Invariant: 4 bits with a zero point a group.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flyweight.ops.grouped import GroupedWeight
from flyweight.quantize.output.container import OutputTensor
from flyweight.quantize.output.layout import Tensors
from flyweight.quantize.output.words import pack_words
from flyweight.quantize.precision import Precision
from flyweight.weights.formats.awq import BITS, LANES, ORDER
from flyweight.wire import I32, U8


class AwqLayout:
    """AutoAWQ's files."""

    name = "awq"
    vectors, apart = "", False

    def check(self, precision: Precision, shape: tuple[int, int]) -> str:
        n, k = shape
        if precision.activations or precision.bits != BITS or precision.symmetric:
            return f"holds weights of 4 bits with zero points, not {precision}"
        if k % 32 or n % LANES:
            return f"needs rows of 8 and columns of 32, which a matrix [{n}, {k}] does not have"
        return ""

    def list_entries(
        self, module: str, shape: tuple[int, ...], precision: Precision
    ) -> list[OutputTensor]:
        n, k = shape
        groups = k // precision.count_group(k)
        return [
            OutputTensor(f"{module}.qweight", "i32", (k, n // LANES)),
            OutputTensor(f"{module}.qzeros", "i32", (groups, n // LANES)),
            OutputTensor(f"{module}.scales", "f16", (groups, n)),
        ]

    def encode(self, module: str, weight: GroupedWeight, precision: Precision) -> Tensors:
        assert weight.scales is not None and weight.zeros is not None
        return {
            f"{module}.qweight": _pack_lanes(weight.codes.astype(np.uint8)),
            f"{module}.qzeros": _pack_lanes(weight.zeros.astype(np.uint8)),
            f"{module}.scales": weight.scales.T,
        }

    def describe(self, modules: Mapping[str, Precision], kept: Sequence[str]) -> dict[str, Any]:
        first = next(iter(modules.values()))
        return {
            "quant_method": "awq",
            "bits": BITS,
            "group_size": first.group,
            "zero_point": True,
            "version": "gemm",
            "modules_to_not_convert": [name for name in kept if name != "lm_head"] or None,
        }


def _pack_lanes(codes: U8) -> I32:
    """[N, K] to words [K, N / 8]: a word has eight rows in the order `ORDER`."""
    n, k = codes.shape
    lanes = codes.reshape(n // LANES, LANES, k)[:, list(ORDER)]
    return pack_words(np.ascontiguousarray(lanes.transpose(2, 0, 1)).reshape(k, n), BITS)
