"""Writes GPTQ's layout (`weights.formats.gptq` reads it, and lists its tensors): of the first
version, with `g_idx` where columns are in another order.

Invariant: `encode` writes codes in the order of the elements they belong to.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flyweight.ops.grouped import GroupedWeight
from flyweight.quantize.output.container import OutputTensor
from flyweight.quantize.output.layout import Tensors
from flyweight.quantize.output.words import pack_words
from flyweight.quantize.precision import BITS, Precision


class GptqLayout:
    """`order`: matrices may have their columns in another order (act-order)."""

    name = "gptq"
    vectors, apart = "", False

    def __init__(self, *, order: bool) -> None:
        self.order = order

    def check(self, precision: Precision, shape: tuple[int, int]) -> str:
        n, k = shape
        if precision.activations or precision.bits not in BITS:
            return f"holds weights of 2, 3, 4 or 8 bits, not {precision}"
        if k % 32 or n * precision.bits % 32:
            return f"needs whole words of 32 bits, which a matrix [{n}, {k}] does not fill"
        return ""

    def list_entries(
        self, module: str, shape: tuple[int, ...], precision: Precision
    ) -> list[OutputTensor]:
        (n, k), bits = shape, precision.bits
        groups = k // precision.count_group(k)
        found = [
            OutputTensor(f"{module}.qweight", "i32", (k * bits // 32, n)),
            OutputTensor(f"{module}.qzeros", "i32", (groups, n * bits // 32)),
            OutputTensor(f"{module}.scales", "f16", (groups, n)),
        ]
        return [*found, OutputTensor(f"{module}.g_idx", "i32", (k,))]

    def encode(self, module: str, weight: GroupedWeight, precision: Precision) -> Tensors:
        k = weight.shape[1]
        codes, groups = weight.codes, np.arange(k, dtype=np.int32) // weight.group
        assert weight.scales is not None
        if weight.columns is not None:
            codes, groups = np.empty_like(codes), np.empty_like(groups)
            codes[:, weight.columns] = weight.codes
            groups[weight.columns] = np.arange(k) // weight.group
        middle = np.full(weight.scales.shape, weight.zero, np.uint8)
        zeros = middle if weight.zeros is None else weight.zeros.astype(np.uint8)
        return {
            f"{module}.qweight": pack_words(codes.astype(np.uint8), weight.bits).T,
            f"{module}.qzeros": pack_words(
                np.ascontiguousarray((zeros - np.uint8(1)).T), weight.bits
            ),
            f"{module}.scales": weight.scales.T,
            f"{module}.g_idx": groups,
        }

    def describe(self, modules: Mapping[str, Precision], kept: Sequence[str]) -> dict[str, Any]:
        """Modules that differ from the first are `dynamic` rules, as GPTQModel has them."""
        first = next(iter(modules.values()))
        found: dict[str, Any] = {
            "quant_method": "gptq",
            "checkpoint_format": "gptq",
            "bits": first.bits,
            "group_size": first.group,
            "sym": first.symmetric,
            "desc_act": self.order,
            "lm_head": "lm_head" in modules,
        }
        others = {name: p for name, p in modules.items() if p != first}
        rules: dict[str, Any] = {
            f"+:^{_escape(name)}$": {"bits": p.bits, "group_size": p.group, "sym": p.symmetric}
            for name, p in others.items()
        }
        rules |= {f"-:^{_escape(name)}$": {} for name in kept}
        return found | ({"dynamic": rules} if rules else {})


def _escape(name: str) -> str:
    """A module's name as a pattern that fits it alone."""
    return name.replace(".", r"\.")
