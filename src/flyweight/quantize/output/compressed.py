"""Writes compressed-tensors' layouts (`weights.formats.compressed` reads them, and lists their
tensors): packed whole numbers, and int8 with activations rounded to int8.

Invariant: each precision is a group of the config that names its modules.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flyweight.ops.grouped import GroupedWeight
from flyweight.quantize.output.container import OutputTensor
from flyweight.quantize.output.layout import Tensors
from flyweight.quantize.output.words import pack_words
from flyweight.quantize.precision import Precision
from flyweight.wire import U8


class CompressedLayout:
    """Columns are in the model's order: "group", the other order there was, has been removed from
    the format.
    """

    name = "compressed-tensors"
    vectors, apart = "", False

    def check(self, precision: Precision, shape: tuple[int, int]) -> str:
        n, k = shape
        if precision.activations:
            fits = precision.bits == 8 and precision.symmetric and precision.group == -1
            return "" if fits else f"rounds activations for int8 rows only, not for {precision}"
        if precision.bits not in (4, 8):
            return f"is written for weights of 4 and 8 bits, not {precision}"
        if k % 32 or n * precision.bits % 32:
            return f"needs whole words of 32 bits, which a matrix [{n}, {k}] does not fill"
        return ""

    def list_entries(
        self, module: str, shape: tuple[int, ...], precision: Precision
    ) -> list[OutputTensor]:
        n, k = shape
        if precision.activations:
            found = [
                OutputTensor(f"{module}.weight", "i8", (n, k)),
                OutputTensor(f"{module}.weight_scale", "f32", (n, 1)),
            ]
            static = precision.activations == "static"
            return found + ([OutputTensor(f"{module}.input_scale", "f32", (1,))] if static else [])
        groups = k // precision.count_group(k)
        found = [
            OutputTensor(f"{module}.weight_packed", "i32", (n, k * precision.bits // 32)),
            OutputTensor(f"{module}.weight_scale", "f16", (n, groups)),
            OutputTensor(f"{module}.weight_shape", "i64", (2,)),
        ]
        if not precision.symmetric:
            words = n * precision.bits // 32
            found.append(OutputTensor(f"{module}.weight_zero_point", "i32", (words, groups)))
        return found

    def encode(self, module: str, weight: GroupedWeight, precision: Precision) -> Tensors:
        if precision.activations:
            return self._encode_int8(module, weight, precision)
        n, k = weight.shape
        assert weight.columns is None, "columns are in order"
        codes: U8 = weight.codes.astype(np.uint8)
        found = {
            f"{module}.weight_packed": pack_words(codes, weight.bits),
            f"{module}.weight_scale": weight.scales,
            f"{module}.weight_shape": np.array([n, k], np.int64),
        }
        if weight.zeros is not None:
            points = pack_words(np.ascontiguousarray(weight.zeros.T.astype(np.uint8)), weight.bits)
            found[f"{module}.weight_zero_point"] = points.T
        return found

    def _encode_int8(self, module: str, weight: GroupedWeight, precision: Precision) -> Tensors:
        assert weight.row_scales is not None, "int8 weights have a scale a row"
        found: dict[str, Any] = {
            f"{module}.weight": weight.codes.view(np.int8),
            f"{module}.weight_scale": weight.row_scales.reshape(-1, 1),
        }
        if precision.activations == "static":
            found[f"{module}.input_scale"] = np.array([weight.input_scale], np.float32)
        return found

    def describe(self, modules: Mapping[str, Precision], kept: Sequence[str]) -> dict[str, Any]:
        kinds = list(dict.fromkeys(modules.values()))
        groups = {}
        for i, precision in enumerate(kinds):
            own = [name for name, p in modules.items() if p == precision]
            groups[f"group_{i}"] = {
                "targets": ["Linear"] if len(kinds) == 1 else own,
                "weights": _describe_weights(precision),
                "input_activations": _describe_inputs(precision),
                "output_activations": None,
                "format": _name_format(precision),
            }
        formats = {_name_format(precision) for precision in kinds}
        return {
            "quant_method": "compressed-tensors",
            "format": formats.pop() if len(formats) == 1 else "mixed-precision",
            "quantization_status": "compressed",
            "config_groups": groups,
            "ignore": list(kept),
            "kv_cache_scheme": None,
        }


def _name_format(precision: Precision) -> str:
    return "int-quantized" if precision.activations else "pack-quantized"


def _describe_weights(precision: Precision) -> dict[str, Any]:
    by_group = precision.group != -1
    return {
        "num_bits": precision.bits,
        "type": "int",
        "symmetric": precision.symmetric,
        "strategy": "group" if by_group else "channel",
        "group_size": precision.group if by_group else None,
        "actorder": None,
        "dynamic": False,
    }


def _describe_inputs(precision: Precision) -> dict[str, Any] | None:
    if not precision.activations:
        return None
    dynamic = precision.activations == "dynamic"
    return {
        "num_bits": 8,
        "type": "int",
        "symmetric": True,
        "strategy": "token" if dynamic else "tensor",
        "dynamic": dynamic,
    }
