"""The tiny random checkpoints of DeepSeek-V3, Kimi K2 and Llama 4; as in fixture_models.py, every
feature that sets one apart is switched on and bitten into by the prompt.
"""

from fixture_models import LATENT, LLAMA3, YARN, Fixture

LLAMA4 = dict(head_dim=24, intermediate_size=40, intermediate_size_mlp=104, num_local_experts=4)

MODELS = {
    "deepseek-v3": Fixture(
        "deepseek_v3",
        "bf16",
        dict(
            **{**LATENT, "q_lora_rank": 40},
            num_key_value_heads=4,
            n_routed_experts=12,
            num_experts_per_tok=3,
            moe_intermediate_size=40,
            n_shared_experts=1,
            first_k_dense_replace=1,
            routed_scaling_factor=2.0,
            norm_topk_prob=True,
            scoring_func="sigmoid",
            topk_method="noaux_tc",
            n_group=3,
            topk_group=2,
            num_nextn_predict_layers=0,
            rope_parameters={**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        ),
    ),
    "kimi-k2": Fixture(
        "kimi_k2",
        "bf16",
        dict(
            **{**LATENT, "q_lora_rank": 40},
            num_key_value_heads=4,
            n_routed_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=40,
            n_shared_experts=1,
            first_k_dense_replace=1,
            routed_scaling_factor=1.5,
            norm_topk_prob=True,
            scoring_func="sigmoid",
            topk_method="noaux_tc",
            n_group=1,
            topk_group=1,
            num_nextn_predict_layers=0,
            rope_parameters={**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 1.0},
        ),
        layers=2,
    ),
    "llama4": Fixture(
        "llama4_text",
        "bf16",
        dict(
            **LLAMA4,
            num_experts_per_tok=2,
            interleave_moe_layer_step=2,
            attention_chunk_size=48,
            no_rope_layers=[1, 0, 1, 0],
            floor_scale=16,
            attn_scale=0.3,
            rope_parameters=dict(rope_type="default", rope_theta=20000.0),
        ),
        layers=4,
    ),
    "llama4-scout": Fixture(  # what a GGUF need not say
        "llama4_text",
        "bf16",
        dict(
            **LLAMA4,
            num_experts_per_tok=1,
            interleave_moe_layer_step=1,
            rope_parameters=LLAMA3,
        ),
        layers=4,
    ),
}
