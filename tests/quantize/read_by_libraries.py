"""Reads folders of `write_for_libraries.py` with other people's code, and compares.

    python tests/quantize/read_by_libraries.py OUT

Needs torch, transformers, optimum, gptqmodel, autoawq's kernels or torch's, compressed-tensors,
bitsandbytes and hqq.  Most folders are loaded by transformers: its logits are those of a float
model with the matrices our reader makes, except for the float16 some of them compute in.  What
transformers does not load (zero points of compressed-tensors, HQQ) or computes with rounded
activations is dequantised by the library itself.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaForCausalLM

IDS = torch.tensor([[480, 5, 17, 80, 3, 95, 41, 42, 7, 64]])
NEAR = {"nf4": 0.05, "awq": 0.01}  # share of the largest logit; NF4 is computed in bfloat16
USUAL = 0.005
Matrices = dict[str, torch.Tensor]


def find_matrices(folder: Path) -> Matrices:
    """What our reader made, by module."""
    found: Matrices = {}
    for slot, rows in np.load(folder / "expected.npz").items():
        at, matrix = f"model.layers.{slot.split('.')[1]}.", torch.tensor(rows)
        n, k = matrix.shape
        if slot.endswith("qkv"):
            parts = {"q_proj": k, "k_proj": (n - k) // 2, "v_proj": (n - k) // 2}
            split = torch.split(matrix, list(parts.values()))
            found |= {f"{at}self_attn.{m}": w for m, w in zip(parts, split, strict=True)}
        elif slot.endswith("up"):
            gate, up = torch.split(matrix, n // 2)
            found |= {f"{at}mlp.gate_proj": gate, f"{at}mlp.up_proj": up}
        else:
            place = "self_attn.o_proj" if slot.endswith("out") else "mlp.down_proj"
            found[at + place] = matrix
    return found


def compute_exact(root: Path, folder: Path) -> torch.Tensor:
    """Logits of a float model with these matrices."""
    model = LlamaForCausalLM.from_pretrained(root / "full", dtype=torch.float32)
    state, written = model.state_dict(), load_file(folder / "model.safetensors")
    for name in state:
        if name in written and written[name].is_floating_point():
            state[name] = written[name].float()
    state |= {f"{name}.weight": w for name, w in find_matrices(folder).items()}
    model.load_state_dict(state)
    with torch.no_grad():
        return model(IDS).logits


def check_logits(root: Path, folder: Path) -> str:
    """transformers loads and computes the folder."""
    exact = compute_exact(root, folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, device_map="cpu")
    with torch.no_grad():
        got = model(IDS).logits.float()
    off = float((got - exact).abs().max() / exact.abs().max())
    assert off <= NEAR.get(folder.name, USUAL), f"{folder.name}: logits differ by {off}"
    return f"transformers' logits differ by {off:.1e}"


def check_compressed(root: Path, folder: Path) -> str:
    """compressed-tensors' own decompressor gives our matrices."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme

    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    given = config["config_groups"]["group_0"]
    scheme = QuantizationScheme(targets=["Linear"], weights=given["weights"])
    compressor = BaseCompressor.get_value_from_registry(given["format"])
    tensors = load_file(folder / "model.safetensors")
    for name, expected in find_matrices(folder).items():
        own = {
            k.removeprefix(f"{name}."): t for k, t in tensors.items() if k.startswith(f"{name}.")
        }
        own.pop("input_scale", None)
        wide = {k: t.float() if t.is_floating_point() else t for k, t in own.items()}
        got = compressor.decompress(wide, scheme)["weight"].float()
        assert torch.equal(got, expected), name
    return "compressed-tensors' matrices are ours"


def check_hqq(root: Path, folder: Path) -> str:
    """hqq's own layer dequantises to our matrices."""
    from hqq.core.quantize import HQQLinear

    tensors = load_file(folder / "model.safetensors")
    for name, expected in find_matrices(folder).items():
        own: dict[str, Any] = {
            k.removeprefix(f"{name}."): t for k, t in tensors.items() if k.startswith(f"{name}.")
        }
        layer = HQQLinear(None, None, compute_dtype=torch.float16, device="cpu")
        layer.load_state_dict(own)
        meta = layer.meta
        meta["scale"], meta["zero"] = meta["scale"].float(), meta["zero"].float()
        meta["compute_dtype"] = torch.float32
        got = layer.dequantize().float().reshape(expected.shape)
        off = float((got - expected).abs().max() / expected.abs().max())
        assert off < 1e-3, f"{name}: {off}"
    return "hqq's matrices are ours"


def main() -> None:
    root = Path(sys.argv[1])
    for folder in sorted(path for path in root.iterdir() if (path / "expected.npz").is_file()):
        name, check = folder.name, check_logits
        if name.startswith("hqq"):
            check = check_hqq
        elif name in ("ct-4-asym", "ct-int8", "ct-int8-static", "ct-smooth"):
            check = check_compressed
        print(f"{name}: {check(root, folder)}", flush=True)


if __name__ == "__main__":
    main()
