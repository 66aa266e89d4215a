"""Which tiny random checkpoints there are: config.json settings and storage type of each.

Every family at least once, with every feature that sets it apart switched on and bitten into by the
prompt: windows and rope thresholds far shorter than the 200 tokens of it, caps within reach of the
scores, multipliers away from 1.
"""

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

PROMPT, GREEDY = 200, 64
CONTEXT = PROMPT + GREEDY
BASE = dict(
    hidden_size=64,
    intermediate_size=104,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=320,
    max_position_embeddings=CONTEXT,
    rms_norm_eps=1e-5,
    hidden_act="silu",
    tie_word_embeddings=False,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
LLAMA3 = dict(
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
    rope_theta=5000.0,
)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=66, rope_theta=10000.0)
DYNAMIC = dict(rope_type="dynamic", factor=4.0, rope_theta=10000.0)
ORIGINAL = 96  # the context Phi was trained on, before longrope stretches it
LONGROPE = dict(
    rope_type="longrope",
    short_factor=[1.0 + 0.05 * i for i in range(6)],
    long_factor=[1.0 + 0.9 * i for i in range(6)],
    original_max_position_embeddings=ORIGINAL,
    rope_theta=10000.0,
    partial_rotary_factor=0.75,
)
GEMMA3_ROPE = dict(
    full_attention=dict(rope_type="linear", factor=8.0, rope_theta=50000.0),
    sliding_attention=dict(rope_type="default", rope_theta=1000.0),
)
LATENT = dict(
    q_lora_rank=None, kv_lora_rank=32, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=20
)
SMALL = dict(hidden_size=32, intermediate_size=40, vocab_size=112)  # all share 15 MiB
SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class Fixture:
    """`lengths` the model is run at, where they decide its rope; the first is what `expected.npz`
    is for, the others have a file of their own.  With `mxfp4` experts are published in that.
    """

    model_type: str
    dtype: str = "f32"
    settings: dict[str, Any] = field(default_factory=dict)
    lengths: tuple[int, ...] = ()
    mxfp4: bool = False
    layers: int = 3
    computed_as: str = ""  # the model type of transformers that computes the same

    @property
    def config(self) -> dict[str, Any]:
        whole = {"model_type": self.model_type, **BASE, "num_hidden_layers": self.layers}
        kept = {k: v for k, v in {**whole, **self.settings}.items() if v is not ABSENT}
        return deepcopy(kept)  # transformers fills in what it is given


ABSENT = object()  # a setting of BASE this family does not have


OPT = dict(
    ffn_dim=104,
    word_embed_proj_dim=64,
    activation_function="relu",
    tie_word_embeddings=True,
    hidden_act=ABSENT,
    intermediate_size=ABSENT,
    rms_norm_eps=ABSENT,
    num_key_value_heads=ABSENT,
)


def llama(dtype: str = "f32", **settings: Any) -> Fixture:
    return Fixture("llama", dtype, settings)


MODELS = {
    "llama1": llama(num_key_value_heads=4, rope_theta=10000.0),
    "llama2-gqa": llama("bf16", num_key_value_heads=1, tie_word_embeddings=True),
    "llama3": llama("bf16", head_dim=32, rope_parameters=LLAMA3),
    "llama-linear": llama(
        "f16",
        **SMALL,
        head_dim=16,
        rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=10000.0),
    ),
    "llama-yarn": llama("bf16", rope_parameters=YARN),
    "llama-dynamic": Fixture(
        "llama",
        "bf16",
        dict(rope_parameters=DYNAMIC, max_position_embeddings=128),
        lengths=(CONTEXT, 128),
    ),
    "llama-bias": llama(
        "bf16", **SMALL, num_key_value_heads=4, head_dim=16, attention_bias=True, mlp_bias=True
    ),
    "mistral": Fixture(
        "mistral", "bf16", dict(**SMALL, head_dim=24, rope_theta=30000.0, sliding_window=None)
    ),
    "mistral-window": Fixture("mistral", "bf16", dict(**SMALL, sliding_window=37)),
    "qwen2": Fixture("qwen2", "bf16", dict(rope_theta=20000.0, tie_word_embeddings=True)),
    "qwen2-window": Fixture(
        "qwen2",
        "bf16",
        dict(**SMALL, use_sliding_window=True, sliding_window=50, max_window_layers=1),
    ),
    "qwen3": Fixture("qwen3", "bf16", dict(head_dim=48, rope_theta=50000.0, rms_norm_eps=1e-6)),
    "qwen3-bias": Fixture(
        "qwen3", "bf16", dict(head_dim=32, attention_bias=True, tie_word_embeddings=True)
    ),
    "phi3": Fixture("phi3", "bf16", dict(sliding_window=61)),
    "phi4-longrope": Fixture(
        "phi3",
        "bf16",
        dict(
            rope_parameters=LONGROPE,
            original_max_position_embeddings=ORIGINAL,
            tie_word_embeddings=True,
        ),
        lengths=(CONTEXT, ORIGINAL),
    ),
    "gemma": Fixture(
        "gemma",
        "bf16",
        dict(head_dim=24, hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True),
    ),
    "gemma2": Fixture(
        "gemma2",
        "bf16",
        dict(
            head_dim=24,
            query_pre_attn_scalar=24,
            attn_logit_softcapping=6.0,
            final_logit_softcapping=9.0,
            sliding_window=45,
            layer_types=[SLIDING, FULL, SLIDING],
            hidden_act=ABSENT,
            tie_word_embeddings=True,
        ),
    ),
    "gemma2-scalar": Fixture(
        "gemma2",
        "bf16",
        dict(
            head_dim=24,
            query_pre_attn_scalar=9,
            attn_logit_softcapping=None,
            final_logit_softcapping=None,
            sliding_window=45,
            hidden_act=ABSENT,
            tie_word_embeddings=True,
        ),
        layers=2,
    ),
    "gemma3": Fixture(
        "gemma3_text",
        "bf16",
        dict(
            head_dim=24,
            query_pre_attn_scalar=24,
            sliding_window=33,
            layer_types=[SLIDING, FULL, SLIDING],
            rope_parameters=GEMMA3_ROPE,
            hidden_act=ABSENT,
            tie_word_embeddings=True,
        ),
    ),
    "granite": Fixture(
        "granite",
        "bf16",
        dict(
            **SMALL,
            embedding_multiplier=6.0,
            attention_multiplier=0.4,
            residual_multiplier=0.6,
            logits_scaling=0.8,
        ),
    ),
    "smollm3": Fixture(
        "smollm3", "bf16", dict(**SMALL, no_rope_layers=[1, 1, 1, 0], rope_theta=20000.0), layers=4
    ),
    "olmo2": Fixture("olmo2", "bf16"),
    "stablelm": Fixture(
        "stablelm",
        "bf16",
        dict(
            use_qkv_bias=True,
            rms_norm_eps=ABSENT,
            rope_parameters=dict(
                rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25
            ),
        ),
    ),
    "stablelm-parallel": Fixture(
        "stablelm",
        "bf16",
        dict(
            **SMALL,
            use_parallel_residual=True,
            rms_norm_eps=ABSENT,
            rope_parameters=dict(
                rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5
            ),
        ),
    ),
    "stablelm-heads": Fixture(
        "stablelm",
        "bf16",
        dict(
            **SMALL,
            use_parallel_residual=True,
            qk_layernorm=True,
            rms_norm_eps=ABSENT,
            rope_parameters=dict(
                rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25
            ),
        ),
    ),
    "starcoder2": Fixture(
        "starcoder2",
        "bf16",
        dict(
            hidden_act="gelu_pytorch_tanh",
            sliding_window=52,
            rms_norm_eps=ABSENT,
            tie_word_embeddings=True,
        ),
    ),
    "gpt-neox": Fixture(
        "gpt_neox",
        "f16",
        dict(
            hidden_act="gelu",
            rms_norm_eps=ABSENT,
            num_key_value_heads=ABSENT,
            rope_parameters=dict(
                rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25
            ),
        ),
    ),
    "gpt-neox-serial": Fixture(
        "gpt_neox",
        "f16",
        dict(
            **SMALL,
            hidden_act="gelu",
            use_parallel_residual=False,
            rms_norm_eps=ABSENT,
            num_key_value_heads=ABSENT,
            rope_parameters=dict(
                rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5
            ),
        ),
    ),
    "gpt2": Fixture(
        "gpt2",
        "f16",
        {
            **dict.fromkeys(BASE, ABSENT),
            **dict(n_embd=64, n_head=4, n_layer=3, n_positions=CONTEXT, vocab_size=320),
            **dict(bos_token_id=1, eos_token_id=2, tie_word_embeddings=True),
        },
    ),
    "opt": Fixture("opt", "f16", OPT),
    "gpt2-odd": Fixture(
        "gpt2",
        "f16",
        {
            **dict.fromkeys(BASE, ABSENT),
            **dict(n_embd=60, n_head=4, n_layer=2, n_positions=CONTEXT, vocab_size=320),
            **dict(bos_token_id=1, eos_token_id=2, tie_word_embeddings=True),
        },
    ),
    "opt-odd": Fixture(
        "opt", "f16", {**OPT, "hidden_size": 60, "word_embed_proj_dim": 60}, layers=2
    ),
    "opt-350m": Fixture(
        "opt", "f16", {**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 48}
    ),
    "mixtral": Fixture(
        "mixtral", "bf16", dict(num_local_experts=5, num_experts_per_tok=2, intermediate_size=56)
    ),
    "qwen2-moe": Fixture(
        "qwen2_moe",
        "bf16",
        dict(
            num_experts=6,
            num_experts_per_tok=3,
            moe_intermediate_size=24,
            shared_expert_intermediate_size=56,
        ),
    ),
    "qwen3-moe": Fixture(
        "qwen3_moe",
        "bf16",
        dict(
            num_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=24,
            norm_topk_prob=True,
            head_dim=24,
        ),
    ),
    "qwen3-moe-step": Fixture(
        "qwen3_moe",
        "bf16",
        dict(
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=40,
            head_dim=24,
            decoder_sparse_step=2,
        ),
    ),
    "gpt-oss": Fixture(
        "gpt_oss",
        "bf16",
        dict(
            num_local_experts=5,
            num_experts_per_tok=2,
            intermediate_size=64,
            head_dim=24,
            sliding_window=41,
            layer_types=[SLIDING, FULL, SLIDING],
            rope_parameters={**YARN, "truncate": False},
        ),
    ),
    "gpt-oss-mxfp4": Fixture(
        "gpt_oss",
        "bf16",
        dict(
            num_local_experts=3,
            num_experts_per_tok=2,
            intermediate_size=64,
            head_dim=16,
            rope_parameters=dict(rope_type="default", rope_theta=10000.0),
            sliding_window=41,
            quantization_config={"quant_method": "mxfp4"},
        ),
        layers=2,
        mxfp4=True,
    ),
    "deepseek-v2-lite": Fixture(
        "deepseek_v2",
        "bf16",
        dict(
            **LATENT,
            num_key_value_heads=4,
            n_routed_experts=6,
            num_experts_per_tok=3,
            moe_intermediate_size=40,
            n_shared_experts=2,
            first_k_dense_replace=1,
            routed_scaling_factor=1.5,
            rope_parameters={**YARN, "mscale": 0.8, "mscale_all_dim": 0.8},
        ),
    ),
    "deepseek-v2": Fixture(
        "deepseek_v2",
        "bf16",
        dict(
            **{**LATENT, "q_lora_rank": 40},
            num_key_value_heads=4,
            n_routed_experts=8,
            num_experts_per_tok=4,
            moe_intermediate_size=40,
            n_shared_experts=1,
            first_k_dense_replace=1,
            routed_scaling_factor=2.0,
            topk_method="group_limited_greedy",
            n_group=4,
            topk_group=2,
        ),
    ),
}
