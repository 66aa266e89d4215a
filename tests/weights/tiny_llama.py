"""A tiny random Llama for libraries to quantise; needs torch and transformers."""

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

PROMPT = 16


def draw_prompt() -> np.ndarray:
    return np.random.default_rng(3).integers(3, 64, PROMPT)


def build(hidden: int = 64, wide: int = 64, heads: int = 2, layers: int = 1) -> LlamaForCausalLM:
    """Random weights in bfloat16 whose logits are far apart; what is computed of the config stays
    float32.
    """
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=wide,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=heads,
        vocab_size=64,
        max_position_embeddings=128,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    rng = np.random.default_rng(7)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            x = rng.standard_normal(tuple(tensor.shape)).astype(np.float32)
            gain = 3 if "lm_head" in name else 2 if "q_proj" in name or "k_proj" in name else 1
            x = 1 + 0.3 * x if "norm" in name else x if "embed" in name else gain * x
            wide_of = 1 if tensor.ndim == 1 or "embed" in name else tensor.shape[1]
            tensor.data = torch.from_numpy(x / np.sqrt(wide_of)).to(torch.bfloat16)
    return model.eval()


def list_linears(model: LlamaForCausalLM) -> dict[str, torch.nn.Linear]:
    """What the libraries quantise: all but the head."""
    found = dict(model.named_modules())
    return {n: m for n, m in found.items() if isinstance(m, torch.nn.Linear) and n != "lm_head"}
