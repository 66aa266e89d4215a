"""Dimensions of well-known models, so that they can be planned without any file.

Invariant: each is the config.json that its publisher gives, without what does not decide shapes;
`models/` reads it as it reads a file.
"""

from collections.abc import Mapping
from typing import Any


def _make_llama(
    sizes: tuple[int, int, int], heads: tuple[int, int], context: int, vocab: int = 32000
) -> Mapping[str, Any]:
    """`sizes` are layers, hidden and inner; `heads` query and K/V heads."""
    return {
        "model_type": "llama", "num_hidden_layers": sizes[0], "hidden_size": sizes[1],
        "intermediate_size": sizes[2], "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1], "vocab_size": vocab, "max_position_embeddings": context,
        "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }  # fmt: skip


TIED = {"tie_word_embeddings": True}
NEAR = 0.25  # how far the size of a model may be from one that is taken in its place
# Parameters of one model of each size.
SIZES = {
    "llama-3.2-1b": 1.24e9, "llama-3.2-3b": 3.21e9, "llama-2-7b": 6.74e9, "llama-3-8b": 8.03e9,
    "llama-2-13b": 13.0e9, "llama-2-70b": 69.0e9, "deepseek-v3": 671e9,
}  # fmt: skip


# Llama 2: Touvron et al., 2023; Llama 3 and 3.2: Grattafiori et al., 2024; Mistral 7B: Jiang et
# al., 2023; DeepSeek-V3: DeepSeek-AI, 2024.
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "llama-2-7b": _make_llama((32, 4096, 11008), (32, 32), 4096),
    "llama-2-13b": _make_llama((40, 5120, 13824), (40, 40), 4096),
    "llama-2-70b": _make_llama((80, 8192, 28672), (64, 8), 4096),
    "llama-3-8b": _make_llama((32, 4096, 14336), (32, 8), 8192, 128256),
    "llama-3-70b": _make_llama((80, 8192, 28672), (64, 8), 8192, 128256),
    "llama-3.2-1b": {**_make_llama((16, 2048, 8192), (32, 8), 131072, 128256), **TIED},
    "llama-3.2-3b": {**_make_llama((28, 3072, 8192), (24, 8), 131072, 128256), **TIED},
    "mistral-7b": {
        **_make_llama((32, 4096, 14336), (32, 8), 32768),
        "model_type": "mistral",
        "sliding_window": 4096,
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168,
        "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_attention_heads": 128,
        "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8,
        "topk_group": 4, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 3, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
        "vocab_size": 129280, "max_position_embeddings": 163840, "rms_norm_eps": 1e-6,
        "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    },
}  # fmt: skip


def find_alike(params: float) -> str:
    """The well-known model whose size is nearest, "" where none is near."""
    name = min(SIZES, key=lambda known: abs(SIZES[known] - params))
    return name if abs(SIZES[name] - params) <= NEAR * params else ""
