"""Writes bitsandbytes' NF4 layout (`weights.formats.bitsandbytes` reads it, and lists its tensors).

Invariant: blocks are whole in every row, so a row can be read by itself.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flyweight.ops.grouped import GroupedWeight
from flyweight.ops.tables import NF4
from flyweight.quantize.output.container import OutputTensor
from flyweight.quantize.output.layout import Tensors
from flyweight.quantize.precision import Precision

STATE = ".weight.quant_state.bitsandbytes__nf4"


class BitsandbytesLayout:
    """4 bits in blocks, with float32 scales."""

    name = "bitsandbytes"
    vectors, apart = "", False

    def check(self, precision: Precision, shape: tuple[int, int]) -> str:
        block = precision.count_group(shape[1])
        return "" if block & (block - 1) == 0 and 32 <= block <= 4096 else "has no such blocks"

    def list_entries(
        self, module: str, shape: tuple[int, ...], precision: Precision
    ) -> list[OutputTensor]:
        n, k = shape
        state = _describe_state(shape, precision.count_group(k))
        return [
            OutputTensor(f"{module}.weight", "u8", (n * k // 2, 1)),
            OutputTensor(f"{module}.weight.absmax", "f32", (n * k // precision.count_group(k),)),
            OutputTensor(f"{module}.weight.quant_map", "f32", (16,)),
            OutputTensor(f"{module}{STATE}", "u8", (len(state),)),
        ]

    def encode(self, module: str, weight: GroupedWeight, precision: Precision) -> Tensors:
        assert weight.scales is not None and weight.values == NF4
        flat = weight.codes.reshape(-1)
        state = _describe_state(weight.shape, weight.group)
        return {
            f"{module}.weight": (flat[0::2] << np.uint8(4) | flat[1::2]).reshape(-1, 1),
            f"{module}.weight.absmax": weight.scales.reshape(-1),
            f"{module}.weight.quant_map": np.array(NF4, np.float32),
            f"{module}{STATE}": np.frombuffer(state, np.uint8),
        }

    def describe(self, modules: Mapping[str, Precision], kept: Sequence[str]) -> dict[str, Any]:
        skipped = [name for name in kept if name != "lm_head"]
        return {
            "quant_method": "bitsandbytes",
            "load_in_4bit": True,
            "load_in_8bit": False,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": False,
            "bnb_4bit_compute_dtype": "bfloat16",
            "bnb_4bit_quant_storage": "uint8",
            "llm_int8_skip_modules": [*skipped, "lm_head"] if skipped else None,
        }


def _describe_state(shape: tuple[int, ...], block: int) -> bytes:
    words = {"quant_type": "nf4", "blocksize": block, "dtype": "bfloat16", "shape": list(shape)}
    return json.dumps(words).encode()
