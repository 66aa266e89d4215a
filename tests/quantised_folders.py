"""Tiny GPTQ and AWQ matrices by the published layouts, as a folder that tests can tell lies in."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from filewriters import safetensors_bytes

DTYPES = {"i4": "I32", "i8": "I64", "f2": "F16", "f4": "F32", "u2": "BF16", "u1": "U8", "i1": "I8"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
N, K = 32, 64
RNG = np.random.default_rng(5)
Arrays = dict[str, NDArray[Any]]


def write(
    path: Path, quantisation: Any, tensors: Arrays, kinds: dict[str, str] | None = None
) -> Path:
    """A folder with one file; `kinds` are dtypes of the header that differ from the array's."""
    path.mkdir(exist_ok=True)
    config = {"model_type": "llama"} | (
        {} if quantisation is None else {"quantization_config": quantisation}
    )
    (path / "config.json").write_text(json.dumps(config))
    header, data = {}, b""
    for name, array in tensors.items():
        kind = (kinds or {}).get(name) or DTYPES[array.dtype.str[1:]]
        span = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": span}
        data += array.tobytes()
    (path / "model.safetensors").write_bytes(safetensors_bytes(header, data))
    return path


def pack(codes: NDArray[np.int64], bits: int) -> NDArray[np.int32]:
    """Codes along the first axis into words, the first in the lowest bits, running on."""
    rows, columns = codes.shape
    stream = (codes[:, None, :] >> np.arange(bits)[None, :, None]) & 1
    words = stream.reshape(rows * bits // 32, 32, columns) << np.arange(32)[None, :, None]
    found: NDArray[np.int32] = words.sum(1).astype(np.uint32).view(np.int32)
    return found


def gptq(bits: int = 4, group: int = 32, order: NDArray[np.int64] | None = None) -> Arrays:
    """A matrix `m` with zero points of the first version."""
    groups = K // group
    found: Arrays = {
        "m.qweight": pack(RNG.integers(0, 1 << bits, (K, N)), bits),
        "m.qzeros": pack(RNG.integers(0, 1 << bits, (N, groups)), bits).T.copy(),
        "m.scales": RNG.uniform(0.1, 1, (groups, N)).astype(np.float16),
    }
    return found if order is None else found | {"m.g_idx": order.astype(np.int32)}


def awq() -> Arrays:
    return {
        "m.qweight": RNG.integers(-(2**31), 2**31, (K, N // 8)).astype(np.int32),
        "m.qzeros": RNG.integers(-(2**31), 2**31, (K // 32, N // 8)).astype(np.int32),
        "m.scales": RNG.uniform(0.1, 1, (K // 32, N)).astype(np.float16),
    }


ORDER = np.arange(K) // 32
HALF = np.float16
WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}


def schemes(form: str = "pack-quantized", inputs: Any = None, **weights: Any) -> dict[str, Any]:
    scheme = {"targets": ["Linear"], "weights": WEIGHTS | weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"g": scheme}}


def packed(**change: Any) -> Arrays:
    found: Arrays = {
        "m.weight_packed": RNG.integers(-(2**31), 2**31, (N, K // 8)).astype(np.int32),
        "m.weight_scale": RNG.uniform(0.1, 1, (N, K // 32)).astype(HALF),
        "m.weight_shape": np.array([N, K], np.int64),
    }
    return {name: t for name, t in (found | change).items() if t is not None}


def eight(**change: Any) -> Arrays:
    found: Arrays = {
        "m.weight": RNG.integers(-128, 128, (N, K)).astype(np.int8),
        "m.weight_scale": RNG.uniform(0.1, 1, (N, 1)).astype(HALF),
    }
    return found | change


EIGHT_BITS = {"num_bits": 8, "strategy": "channel", "group_size": None}
EIGHT = schemes("int-quantized", **EIGHT_BITS)
STATIC = schemes("int-quantized", {"num_bits": 8, "dynamic": False}, **EIGHT_BITS)
