"""Families with experts, latent attention, tied or fused matrices, quantised matrix by matrix: the
logits are those of the same folder in float32.

Matrices whose columns do not fill groups of 32 stay as they are, as libraries leave modules out.
"""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import MODELS, decoder, logits
from numpy.typing import NDArray

from edited_folder import EditedFolder
from flyweight.ops.cpu import CpuOps
from flyweight.ops.tables import E4M3, NF4
from quantised_folders import pack

FAMILIES = ("deepseek-v3", "gemma3", "mixtral", "phi3", "qwen3-moe")
LEFT_OUT = ("embed_tokens", "lm_head", "norm", "mlp.gate.", "moe.gate.")
Tensors = dict[str, tuple[str, NDArray[Any]]]
Quantised = tuple[Tensors, NDArray[np.float32]]  # and the values


def write_fp8(name: str, rng: np.random.Generator, shape: tuple[int, int]) -> Quantised:
    """Blocks of 32 x 32, the last ones cut off."""
    codes = rng.integers(0, 256, shape, np.uint8)
    codes[(codes & 0x7F) >= 0x58] = 0x38  # nothing above 15
    grid = tuple(-(-n // 32) for n in shape)
    scales = rng.uniform(0.01, 0.03, grid).astype(np.float32)
    spread = np.repeat(np.repeat(scales, 32, 0), 32, 1)[: shape[0], : shape[1]]
    values = np.array(E4M3, np.float32)[codes] * spread
    return {name: ("F8_E4M3", codes), f"{name}_scale_inv": ("F32", scales)}, values


def write_nf4(name: str, rng: np.random.Generator, shape: tuple[int, int]) -> Quantised:
    codes = rng.integers(0, 16, shape[0] * shape[1]).astype(np.uint8)
    absmax = rng.uniform(0.1, 0.3, codes.size // 32).astype(np.float32)
    state = json.dumps({"quant_type": "nf4", "blocksize": 32, "shape": list(shape)}).encode()
    values = np.array(NF4, np.float32)[codes] * np.repeat(absmax, 32)
    return {
        name: ("U8", (codes[::2] << 4 | codes[1::2])[:, None]),
        f"{name}.absmax": ("F32", absmax),
        f"{name}.quant_map": ("F32", np.array(NF4, np.float32)),
        f"{name}.quant_state.bitsandbytes__nf4": ("U8", np.frombuffer(state, np.uint8)),
    }, values.reshape(shape)


METHODS: dict[str, tuple[dict[str, Any], Callable[..., Quantised]]] = {
    "fp8": ({"quant_method": "fp8", "weight_block_size": [32, 32]}, write_fp8),
    "bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, write_nf4),
}


def write_gptq(name: str, rng: np.random.Generator, shape: tuple[int, int]) -> Quantised:
    """4 bits in groups of 32, all zero points the middle."""
    (n, k), stem = shape, name.removesuffix(".weight")
    codes = rng.integers(0, 16, (k, n))
    scales = rng.uniform(0.005, 0.02, (k // 32, n)).astype(np.float16)
    values = np.repeat(scales.astype(np.float32), 32, 0) * (codes - 8).astype(np.float32)
    return {
        f"{stem}.qweight": ("I32", pack(codes, 4)),
        f"{stem}.qzeros": ("I32", np.full((k // 32, n // 8), 0x77777777, np.int32)),
        f"{stem}.scales": ("F16", scales),
    }, np.ascontiguousarray(values.T)


def test_matrices_of_gpt2_are_stored_as_others(native: CpuOps, tmp_path: Path) -> None:
    """[out, in] once quantised, though they are published as [in, out]."""
    folder, plain = EditedFolder.read("gpt2", MODELS), EditedFolder.read("gpt2", MODELS)
    rng = np.random.default_rng(9)
    for name, (_, old) in list(folder.tensors.items()):
        if ".h." in name and old.ndim == 2:
            del folder.tensors[name]
            tensors, values = write_gptq(name, rng, old.shape[::-1])
            folder.tensors |= tensors
            plain.tensors[name] = ("F32", values.T)
    folder.whole["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    check_logits("gpt2", native, folder.write(tmp_path / "q"), plain.write(tmp_path / "plain"))


def test_experts_of_llama4_may_be_separate(native: CpuOps, tmp_path: Path) -> None:
    """As compressors leave them: a matrix each, [out, in], those of 64 columns in 8 bits."""
    folder, plain = EditedFolder.read("llama4", MODELS), EditedFolder.read("llama4", MODELS)
    rng = np.random.default_rng(9)
    for name, (kind, old) in list(folder.tensors.items()):
        stem, _, module = name.rpartition(".")
        if module == "down_proj":
            del folder.tensors[name]
            for e, values in enumerate(old):
                folder.tensors[f"{stem}.{e}.down_proj.weight"] = (kind, values.T)
        elif module == "gate_up_proj":
            del folder.tensors[name]
            count, k, n = old.shape
            codes = rng.integers(-127, 128, (count, n, k)).astype(np.int8)
            scales = rng.uniform(5e-4, 2e-3, (count, n, 1)).astype(np.float32)
            plain.tensors[name] = ("F32", (codes * scales).transpose(0, 2, 1))
            for e, (i, own) in itertools.product(range(count), enumerate(("gate", "up"))):
                weight, half = f"{stem}.{e}.{own}_proj.weight", slice(i * n // 2, (i + 1) * n // 2)
                folder.tensors[weight] = ("I8", codes[e, half])
                folder.tensors[f"{weight}_scale"] = ("F32", scales[e, half])
    folder.whole["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "config_groups": {"g": {"weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}},
    }
    check_logits("llama4", native, folder.write(tmp_path / "q"), plain.write(tmp_path / "plain"))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits(family: str, method: str, native: CpuOps, tmp_path: Path) -> None:
    settings, write = METHODS[method]
    folder, plain = EditedFolder.read(family, MODELS), EditedFolder.read(family, MODELS)
    rng = np.random.default_rng(9)
    for name, (_, values) in list(folder.tensors.items()):
        left_out = any(part in name for part in LEFT_OUT)
        if values.ndim != 2 or left_out or values.shape[1] % 32:
            continue
        del folder.tensors[name]
        tensors, values = write(name, rng, values.shape)
        folder.tensors |= tensors
        plain.tensors[name] = ("F32", values)
    folder.whole["quantization_config"] = settings
    quantised, dense = folder.write(tmp_path / "quantised"), plain.write(tmp_path / "plain")
    check_logits(family, native, quantised, dense)


def check_logits(family: str, native: CpuOps, quantised: Path, dense: Path) -> None:
    """Both folders answer the family's prompt alike."""
    expected = np.load(MODELS / family / "expected.npz")
    prompt, rows = expected["prompt"], expected["rows"]
    true = logits(decoder(dense, native), prompt, rows)
    found = logits(decoder(quantised, native), prompt, rows)
    assert true.std() > 0.5
    assert np.abs(found - true).max() <= 1e-3 * max(1.0, float(true.std()))
