"""Published configs of the families of 2024 and 2025, as their publishers wrote them: each is read,
and its plan has as many parameters as the model is published with.
"""

from typing import Any

import pytest
from test_published import LONG_LISTS, llama_like, numbers, sizes

from flyweight.models.registry import find_family
from flyweight.spec import Files

SLIDING, FULL = "sliding_attention", "full_attention"
OLMO3_YARN = dict(
    attention_factor=1.2079441541679836, beta_fast=32, beta_slow=1, factor=8.0,
    original_max_position_embeddings=8192, rope_type="yarn",
)  # fmt: skip
EXAONE_ROPE = dict(
    factor=8.0, high_freq_factor=4.0, low_freq_factor=1.0,
    original_max_position_embeddings=8192, rope_type="llama3",
)  # fmt: skip
GLM = {"attention_bias": True, "head_dim": 128, "partial_rotary_factor": 0.5}
GLM |= {"max_position_embeddings": 131072, "pad_token_id": 151329}
GLM |= {"eos_token_id": [151329, 151336, 151338], "tie_word_embeddings": False}
COHERE = {"hidden_act": "silu", "layer_norm_eps": 1e-5, "bos_token_id": 5, "eos_token_id": 255001}
COHERE |= {"pad_token_id": 0, "use_cache": True, "attention_dropout": 0.0}

# name: (parameters, config.json)
PUBLISHED: dict[str, tuple[int, dict[str, Any]]] = {
    "glm-4-9b-hf": (
        9_399_951_360,
        {"model_type": "glm"}
        | llama_like(4096, 13696, 40, 32, 2, 151552, rms_norm_eps=1.5625e-07)
        | GLM,
    ),
    "GLM-4-9B-0414": (
        9_400_279_040,
        {"model_type": "glm4"}
        | llama_like(4096, 13696, 40, 32, 2, 151552)
        | {**GLM, "max_position_embeddings": 32768},
    ),
    "ERNIE-4.5-0.3B-PT": (
        360_748_032,
        {"model_type": "ernie4_5", "head_dim": 128, "use_bias": False, "compression_ratio": 1.0}
        | llama_like(1024, 3072, 18, 16, 2, 103424, rope_theta=500000.0, rope_scaling=None)
        | {"max_position_embeddings": 131072, "tie_word_embeddings": True},
    ),
    "Seed-OSS-36B-Instruct": (
        36_151_104_512,
        {"model_type": "seed_oss", "attention_bias": True, "attention_out_bias": False}
        | {"head_dim": 128, "mlp_bias": False, "residual_dropout": 0.1, "pretraining_tp": 1}
        | llama_like(5120, 27648, 64, 80, 8, 155136, rope_theta=10000000.0, rms_norm_eps=1e-6)
        | {"max_position_embeddings": 524288, "rope_scaling": {"rope_type": "default"}},
    ),
    "Olmo-3-7B-Instruct": (
        7_298_011_136,
        {"model_type": "olmo3", "layer_types": [SLIDING, SLIDING, SLIDING, FULL] * 8}
        | llama_like(4096, 11008, 32, 32, 32, 100278, rope_theta=500000, rms_norm_eps=1e-6)
        | {"max_position_embeddings": 65536, "rope_scaling": OLMO3_YARN, "sliding_window": 4096},
    ),
    "aya-expanse-8b": (
        8_028_033_024,
        {"model_type": "cohere", "logit_scale": 0.125, "rope_theta": 10000, "use_qk_norm": False}
        | {**COHERE, "max_position_embeddings": 8192}
        | sizes(4096, 14336, 32, 32, 8, 256000),
    ),
    "c4ai-command-r-plus": (
        103_810_674_688,
        {"model_type": "cohere", "logit_scale": 0.8333333333333334, "rope_theta": 75000000.0}
        | {**COHERE, "use_qk_norm": True, "model_max_length": 131072}
        | sizes(12288, 33792, 64, 96, 8, 256000)
        | {"max_position_embeddings": 8192},
    ),
    "c4ai-command-r7b-12-2024": (
        8_028_033_024,
        {"model_type": "cohere2", "logit_scale": 0.25, "rope_theta": 50000, "rope_scaling": None}
        | {"sliding_window": 4096, "sliding_window_pattern": 4, "rotary_pct": 1.0}
        | {
            "order_of_interleaved_layers": "local_attn_first",
            "position_embedding_type": "rope_gptj",
        }
        | {**COHERE, "max_position_embeddings": 8192, "use_embedding_sharing": True}
        | sizes(4096, 14336, 32, 32, 8, 256000),
    ),
    "EXAONE-3.5-2.4B-Instruct": (
        2_405_327_360,
        {"model_type": "exaone", "activation_function": "silu", "head_dim": 80, "num_layers": 30}
        | {"layer_norm_epsilon": 1e-5, "rope_theta": 1000000, "rope_scaling": EXAONE_ROPE}
        | {"hidden_size": 2560, "intermediate_size": 7168, "num_attention_heads": 32}
        | {"num_key_value_heads": 8, "vocab_size": 102400, "max_position_embeddings": 32768}
        | {"tie_word_embeddings": True, "eos_token_id": 361},
    ),
    "EXAONE-4.0-32B": (
        32_003_216_384,
        {"model_type": "exaone4", "head_dim": 128, "sliding_window_pattern": "LLLG"}
        | llama_like(5120, 27392, 64, 40, 8, 102400, rope_theta=1000000, sliding_window=4096)
        | {"rope_scaling": {**EXAONE_ROPE, "factor": 16.0}, "max_position_embeddings": 131072},
    ),
    "MiniCPM-2B-sft-bf16": (
        2_724_880_896,
        {"architectures": ["MiniCPMForCausalLM"], "scale_emb": 12, "scale_depth": 1.4}
        | {"dim_model_base": 256, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_scaling": None}
        | sizes(2304, 5760, 40, 36, 36, 122753)
        | {"max_position_embeddings": 2048},
    ),
    "Phi-4-multimodal-instruct": (
        3_836_021_760,  # of 5.6 billion; the others are encoders and adapters
        {"model_type": "phi4mm", "sliding_window": 262144, "embd_layer": {}, "img_processor": None}
        | llama_like(3072, 8192, 32, 24, 8, 200064, max_position_embeddings=131072)
        | {"original_max_position_embeddings": 4096, "rope_scaling": LONG_LISTS}
        | {"partial_rotary_factor": 0.75, "tie_word_embeddings": True, "lm_head_bias": False}
        | {"vision_lora": {"r": 256, "lora_alpha": 512}, "speech_lora": {"r": 320}},
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_config_gives_the_published_size(name: str) -> None:
    count, config = PUBLISHED[name]
    kind = find_family(config)
    assert numbers(kind.plan(kind.read_spec(config), Files())) == count


@pytest.mark.parametrize(
    ("name", "unsaid"),
    [
        ("glm-4-9b-hf", "partial_rotary_factor"),
        ("GLM-4-9B-0414", "attention_bias"),
        ("aya-expanse-8b", "use_qk_norm"),
        ("c4ai-command-r7b-12-2024", "sliding_window_pattern"),
        ("EXAONE-3.5-2.4B-Instruct", "activation_function"),
        ("EXAONE-4.0-32B", "sliding_window_pattern"),
        ("Seed-OSS-36B-Instruct", "attention_out_bias"),
    ],
)
def test_null_means_the_usual_value(name: str, unsaid: str) -> None:
    _, config = PUBLISHED[name]
    kind = find_family(config)
    without = {key: value for key, value in config.items() if key != unsaid}
    assert (
        kind.read_spec(config | {unsaid: None}) == kind.read_spec(without) == kind.read_spec(config)
    )
