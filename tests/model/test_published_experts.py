"""The published config.json of the largest mixtures: the numbers their tensors hold, and what sets
them apart.
"""

from typing import Any

import numpy as np
import pytest
from test_published import LLAMA3_ROPE, llama_like, numbers, sizes

from flyweight.models.registry import find_family
from flyweight.models.rope import compute_inverse_frequencies
from flyweight.spec import Files, RopeSpec, TemperSpec

YARN = dict(mscale=1.0, mscale_all_dim=1.0, original_max_position_embeddings=4096, type="yarn")
LATENT = {
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_layer_freq": 1,
    "moe_intermediate_size": 2048, "norm_topk_prob": True, "scoring_func": "sigmoid",
    "topk_method": "noaux_tc", "aux_loss_alpha": 0.001, "seq_aux": True, "ep_size": 1,
    "pretraining_tp": 1, "attention_bias": False,
}  # fmt: skip
LLAMA4: dict[str, Any] = {
    **sizes(5120, 8192, 48, 40, 8, 202048),
    "head_dim": 128, "intermediate_size_mlp": 16384, "attention_chunk_size": 8192,
    "num_experts_per_tok": 1, "rope_theta": 500000.0, "for_llm_compression": False,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "attn_temperature_tuning": True,
    "no_rope_layers": [1, 1, 1, 0] * 12, "attention_bias": False, "tie_word_embeddings": False,
}  # fmt: skip

# name: (numbers in its tensors without the layer for second tokens or images, config.json)
PUBLISHED: dict[str, tuple[int, dict[str, Any]]] = {
    "DeepSeek-V3": (
        671_026_419_200,
        {"model_type": "deepseek_v3", "n_routed_experts": 256, "first_k_dense_replace": 3}
        | {**LATENT, "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5}
        | llama_like(7168, 18432, 61, 128, 128, 129280, num_nextn_predict_layers=1)
        | {"rope_scaling": YARN | dict(factor=40, beta_fast=32, beta_slow=1)}
        | {"max_position_embeddings": 163840, "rms_norm_eps": 1e-6},
    ),
    "Kimi-K2": (
        1_026_408_232_448,
        {"model_type": "kimi_k2", "n_routed_experts": 384, "first_k_dense_replace": 1}
        | {**LATENT, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827}
        | llama_like(7168, 18432, 61, 64, 64, 163840, num_nextn_predict_layers=0)
        | {"rope_scaling": YARN | dict(factor=32.0, beta_fast=1.0, beta_slow=1.0)}
        | {"max_position_embeddings": 131072, "rope_theta": 50000.0, "rms_norm_eps": 1e-6},
    ),
    "Llama-4-Scout": (
        107_769_861_120,
        {
            "model_type": "llama4",
            "text_config": LLAMA4
            | {"model_type": "llama4_text", "num_local_experts": 16, "use_qk_norm": True}
            | {"rope_scaling": LLAMA3_ROPE | dict(factor=16.0, high_freq_factor=1.0)}
            | {"interleave_moe_layer_step": 1, "max_position_embeddings": 10485760},
        },
    ),
    "Llama-4-Maverick": (
        400_711_848_960,
        {
            "model_type": "llama4",
            "text_config": LLAMA4
            | {"model_type": "llama4_text", "num_local_experts": 128, "use_qk_norm": False}
            | {"rope_scaling": None, "interleave_moe_layer_step": 2, "attn_temperature_tuning": 4}
            | {"moe_layers": list(range(1, 48, 2)), "max_position_embeddings": 1048576},
        },
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_gives_the_published_size(name: str) -> None:
    count, config = PUBLISHED[name]
    kind = find_family(config)
    assert numbers(kind.plan(kind.read_spec(config), Files())) == count


@pytest.mark.parametrize("name", ["Llama-4-Scout", "Llama-4-Maverick"])
def test_queries_without_positions_have_a_temperature(name: str) -> None:
    """Configs say true, or 4, which transformers 4 wrote."""
    _, config = PUBLISHED[name]
    layers = find_family(config).read_spec(config).layers
    assert {x.temper for x in layers if x.rope is None} == {TemperSpec(8192, 0.1)}
    assert {x.temper for x in layers if x.rope is not None} == {None}


def test_llama4s_frequencies_have_no_blend() -> None:
    """Scout's thresholds are one: frequencies are kept or divided by 16."""
    _, config = PUBLISHED["Llama-4-Scout"]
    (rope,) = find_family(config).read_spec(config).ropes
    plain = compute_inverse_frequencies(RopeSpec(128, 500000.0), 8192)
    factors = plain / compute_inverse_frequencies(rope, 8192)
    assert set(np.round(factors, 3).tolist()) == {1.0, 16.0}
    assert ((factors < 2) == (2 * np.pi / plain <= 8192)).all()
