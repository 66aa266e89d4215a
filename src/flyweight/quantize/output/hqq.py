"""Writes HQQ's layout (`weights.formats.hqq` reads it, and lists its tensors), groups along K.

Invariant: numbers that describe a matrix are tensors of their own, as the library writes them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flyweight.ops.grouped import GroupedWeight
from flyweight.quantize.output.container import OutputTensor
from flyweight.quantize.output.layout import Tensors
from flyweight.quantize.precision import Precision
from flyweight.weights.formats.hqq import LANES
from flyweight.wire import U8

NAMES = {2: "2bit_u8", 3: "3bit_32", 4: "4bit_u8", 8: "8bit_u8"}
WORD = 10  # codes of 3 bits in an int32
FLAGS = {
    "channel_wise": 1, "encoded_state_dict": 1, "offload_meta": 0, "optimize": 1,
    "quant_scale": 0, "quant_zero": 0, "round_zero": 0, "stores_quant_config": 1,
    "view_as_float": 0,
}  # fmt: skip


class HqqLayout:
    """Scales and zero points in float16."""

    name = "hqq"
    vectors, apart = "", False

    def check(self, precision: Precision, shape: tuple[int, int]) -> str:
        groups = shape[0] * shape[1] // precision.count_group(shape[1])
        lanes = LANES[precision.bits]
        whole = precision.bits == 3 or groups % lanes == 0
        return "" if whole else f"packs {lanes} groups in a byte, which do not divide {groups}"

    def list_entries(
        self, module: str, shape: tuple[int, ...], precision: Precision
    ) -> list[OutputTensor]:
        return [
            OutputTensor(name, _find_kind(array), array.shape)
            for name, array in self._list_notes(module, shape, precision).items()
        ] + [
            OutputTensor(f"{module}.W_q", *_find_codes(shape, precision)),
            OutputTensor(f"{module}.scale", "f16", (_count_groups(shape, precision), 1)),
            OutputTensor(f"{module}.zero", "f16", (_count_groups(shape, precision), 1)),
        ]

    def encode(self, module: str, weight: GroupedWeight, precision: Precision) -> Tensors:
        assert weight.scales is not None and weight.zeros is not None
        codes = _pack_groups(weight.codes.reshape(-1, weight.group).view(np.uint8), weight.bits)
        return {
            **self._list_notes(module, weight.shape, precision),
            f"{module}.W_q": codes,
            f"{module}.scale": weight.scales.reshape(-1, 1),
            f"{module}.zero": weight.zeros.reshape(-1, 1),
        }

    def _list_notes(
        self, module: str, shape: tuple[int, ...], precision: Precision
    ) -> dict[str, NDArray[Any]]:
        """What describes a matrix."""
        group = precision.count_group(shape[1])
        numbers = {"nbits": precision.bits, "group_size": group, "axis": 1}
        unpacked = "torch.int32" if precision.bits == 3 else "torch.uint8"
        words = {
            "packing": NAMES[precision.bits],
            "unpack_view_dtype": unpacked,
            "compute_dtype": "torch.float16",
        }
        found: dict[str, NDArray[Any]] = {"shape": np.array(shape, np.int64)}
        found |= {name: np.array(value, np.int32) for name, value in numbers.items()}
        found |= {name: np.array(value, np.uint8) for name, value in FLAGS.items()}
        found |= {name: np.frombuffer(text.encode(), np.uint8) for name, text in words.items()}
        return {f"{module}.{name}": array for name, array in found.items()}

    def describe(self, modules: Mapping[str, Precision], kept: Sequence[str]) -> dict[str, Any]:
        first = next(iter(modules.values()))
        params = {"nbits": first.bits, "group_size": first.group, "axis": 1}
        return {
            "quant_method": "hqq",
            "quant_config": {
                "weight_quant_params": params,
                "scale_quant_params": None,
                "zero_quant_params": None,
            },
            "skip_modules": list(kept) or ["lm_head"],
        }


def _find_kind(array: NDArray[Any]) -> str:
    return {"int64": "i64", "int32": "i32", "uint8": "u8"}[array.dtype.name]


def _count_groups(shape: tuple[int, ...], precision: Precision) -> int:
    return shape[0] * shape[1] // precision.count_group(shape[1])


def _find_codes(shape: tuple[int, ...], precision: Precision) -> tuple[str, tuple[int, int]]:
    groups, group = _count_groups(shape, precision), precision.count_group(shape[1])
    if precision.bits == 3:
        return "i32", (-(-groups // WORD), group)
    return "u8", (groups // LANES[precision.bits], group)


def _pack_groups(codes: U8, bits: int) -> NDArray[Any]:
    """[R, g] codes along the first axis: row i has rows i, i + R/n, ..., the first highest."""
    lanes = LANES[bits]
    if bits == 3:
        filled = np.zeros((-(-len(codes) // lanes) * lanes, codes.shape[1]), np.int32)
        filled[: len(codes)] = codes
    else:
        filled = codes.astype(np.int32)
    stacked = filled.reshape(lanes, -1, codes.shape[1])
    shifts = bits * (lanes - 1 - np.arange(lanes))
    packed = (stacked << shifts[:, None, None]).sum(axis=0)
    found: NDArray[Any] = packed.astype(np.int32 if bits == 3 else np.uint8)
    return found
