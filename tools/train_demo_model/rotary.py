"""The two orders of a rotary projection's rows, and a network filled from an exported file.

transformers and model.py pair row i with i + head/2; GGUF's `llama` architecture pairs 2i, 2i + 1.
"""

from pathlib import Path

import gguf
import numpy as np
import torch

from model import Llama


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows [heads * head, dim]: within each head, row i and row i + head/2 become neighbours."""
    halves = rows.reshape(heads, 2, -1, rows.shape[-1])  # [heads, 2, head/2, dim]
    return halves.swapaxes(1, 2).reshape(rows.shape)


def split_halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """The inverse of `interleave`."""
    return rows.reshape(heads, -1, 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def fill(model: Llama, path: Path) -> None:
    """Sets every weight of the model to the file's, which was exported from one of its shape."""
    found = {
        tensor.name.removesuffix(".weight"): gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        for tensor in gguf.GGUFReader(path).tensors
    }
    shape = model.shape

    def stack(*names: str) -> np.ndarray:
        heads = {"attn_q": shape.heads, "attn_k": shape.kv_heads}
        layers = []
        for layer in range(shape.layers):
            parts = [found[f"blk.{layer}.{name}"] for name in names]
            for i, name in enumerate(names):
                if name in heads:
                    parts[i] = split_halves(parts[i], heads[name])
            layers.append(np.concatenate(parts))
        return np.stack(layers)

    state = {
        "embed": found["token_embd"],
        "out_norm": found["output_norm"],
        "attn_norm": stack("attn_norm"),
        "ffn_norm": stack("ffn_norm"),
        "qkv": stack("attn_q", "attn_k", "attn_v"),
        "attn_out": stack("attn_output"),
        "gate_up": stack("ffn_gate", "ffn_up"),
        "down": stack("ffn_down"),
    }
    model.load_state_dict({name: torch.from_numpy(np.array(v)) for name, v in state.items()})
