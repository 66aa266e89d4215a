"""Random checkpoints of more depth and width than the fixtures, made anew for each run: the same
values wherever they are made, exact in bfloat16.

`make_exact.py` computes their logits in float64; `test_exact.py` holds ours to those.
"""

import zlib
from pathlib import Path
from typing import Any

import numpy as np
from fixture_models import LONGROPE, YARN

from filewriters import encode, write_folder
from flyweight.models.registry import find_family
from flyweight.spec import Files

PROMPT, EVERY = 160, 8  # tokens of a prompt; logits of every eighth are kept
SIZES = dict(
    hidden_size=768,
    intermediate_size=1024,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=2,
    vocab_size=160,
    max_position_embeddings=1024,
    rms_norm_eps=1e-5,
    hidden_act="silu",
    pad_token_id=0,
    tie_word_embeddings=False,
)
LATENT = dict(
    num_key_value_heads=8,
    kv_lora_rank=256,
    qk_rope_head_dim=32,
    qk_nope_head_dim=96,
    v_head_dim=96,
    n_routed_experts=6,
    num_experts_per_tok=6,  # all: no choice that float32 could make otherwise
    moe_intermediate_size=256,
    n_shared_experts=1,
    first_k_dense_replace=1,
    rope_parameters={**YARN, "factor": 40.0, "mscale": 0.7, "mscale_all_dim": 0.7},
)
FACTORS = dict(
    short_factor=[1.0 + 0.01 * i for i in range(36)],
    long_factor=[1.0 + 0.5 * i for i in range(36)],
)
MODELS: dict[str, dict[str, Any]] = {
    "llama": {**SIZES, "model_type": "llama"},
    "deepseek-v2": {**SIZES, **LATENT, "model_type": "deepseek_v2", "q_lora_rank": 256},
    "deepseek-v2-lite": {**SIZES, **LATENT, "model_type": "deepseek_v2", "q_lora_rank": None},
    "deepseek-v3": {
        **SIZES,
        **LATENT,
        "model_type": "deepseek_v3",
        "q_lora_rank": 256,
        "n_group": 1,
        "topk_group": 1,
    },
    "gpt-oss": {
        **SIZES,
        "model_type": "gpt_oss",
        "intermediate_size": 256,
        "head_dim": 64,
        "num_local_experts": 4,
        "num_experts_per_tok": 4,
        "sliding_window": 64,
        "rope_parameters": {**YARN, "factor": 32.0, "rope_theta": 150000.0, "truncate": False},
    },
    "phi4-longrope": {
        **SIZES,
        "model_type": "phi3",
        "original_max_position_embeddings": 96,
        "rope_parameters": {**LONGROPE, **FACTORS, "original_max_position_embeddings": 96},
    },
}


def prompt(name: str) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(name.encode())).integers(3, 160, PROMPT)


def make(name: str, out: Path) -> Path:
    """Writes a checkpoint of one of `MODELS`."""
    config = MODELS[name]
    kind = find_family(config)
    plan = kind.plan(kind.read_spec(config), Files())
    shapes: dict[str, tuple[int, ...]] = {}
    for source in (source for slot in plan.slots for source in slot.sources):
        shapes[source.tensor] = source.shape
        if source.bias:
            shapes[source.bias] = source.bias_shape
    tensors = {key: encode(values(key, shape, config), "bf16") for key, shape in shapes.items()}
    return write_folder(out, config, tensors)


def values(key: str, shape: tuple[int, ...], config: dict[str, Any]) -> np.ndarray:
    """Uniform, of eight bits and a sign; matrices keep their input's variance, or double its
    size where attention's scores come from.
    """
    rng = np.random.default_rng(zlib.crc32(key.encode()))
    steps = rng.integers(-128, 129, shape).astype(np.float32) / 128
    if len(shape) == 1:
        return 1 + steps / 4 if "norm" in key else steps / 4
    if "embed" in key:
        return steps
    turned = config["model_type"] == "gpt_oss" and ".experts." in key
    columns = shape[-2] if turned else shape[-1]
    strong = "lm_head" in key or any(part in key for part in ("q_proj", "k_proj", "q_b_proj"))
    return steps * np.float32(2.0 ** round(np.log2(np.sqrt(3 / columns) * (2 if strong else 1))))
