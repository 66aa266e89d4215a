"""Configs as publishers wrote them, of models too large to keep here: each is read, and the tensors
its plan asks for hold as many numbers as the model is published to have.
"""

from math import prod
from typing import Any

import pytest

from flyweight.errors import ConfigError
from flyweight.models.registry import find_family
from flyweight.models.rope import read_rope_spec
from flyweight.quantize.ggml.convert import convert_model
from flyweight.spec import Files, WeightPlan
from flyweight.weights.gguf_names import list_writable

LONG_LISTS = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [1.5] * 48}


def sizes(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, vocab: int) -> Any:
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
    }


def llama_like(*shape: int, **others: Any) -> dict[str, Any]:
    """What transformers 4 wrote next to the sizes."""
    usual = {"hidden_act": "silu", "rms_norm_eps": 1e-5, "attention_dropout": 0.0}
    usual |= {"bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.02, "use_cache": True}
    usual |= {"rope_theta": 1e4, "rope_scaling": None, "torch_dtype": "bfloat16"}
    return {**usual, **sizes(*shape), **others}


LLAMA3_ROPE = dict(
    factor=32.0, high_freq_factor=4.0, low_freq_factor=1.0,
    original_max_position_embeddings=8192, rope_type="llama3",
)  # fmt: skip
DEEPSEEK_ROPE = dict(
    beta_fast=32, beta_slow=1, factor=40, mscale=0.707, mscale_all_dim=0.707,
    original_max_position_embeddings=4096, type="yarn",
)  # fmt: skip
GPT_OSS_ROPE = dict(
    beta_fast=32.0, beta_slow=1.0, factor=32.0, original_max_position_embeddings=4096,
    rope_type="yarn", truncate=False,
)  # fmt: skip
WINDOWS = {"use_sliding_window": False, "sliding_window": 32768, "max_window_layers": 21}
GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh"}
GEMMA |= {"attention_bias": False, "cache_implementation": "hybrid", "rms_norm_eps": 1e-6}

# name: (numbers in its tensors, config.json)
PUBLISHED: dict[str, tuple[int, dict[str, Any]]] = {
    "Llama-3.2-1B": (
        1_235_814_400,
        {"model_type": "llama"}
        | llama_like(2048, 8192, 16, 32, 8, 128256, rope_theta=500000.0, pretraining_tp=1)
        | {"rope_scaling": LLAMA3_ROPE, "max_position_embeddings": 131072, "head_dim": 64}
        | {"attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True},
    ),
    "SmolLM2-135M": (
        134_515_008,
        {"model_type": "llama", "is_llama_config": True, "rope_interleaved": False}
        | llama_like(576, 1536, 30, 9, 3, 49152, rope_theta=100000, tie_word_embeddings=True)
        | {"max_position_embeddings": 8192, "pretraining_tp": 1},
    ),
    "SmolLM3-3B": (
        3_075_098_624,
        {"model_type": "smollm3", "layer_types": ["full_attention"] * 36, "mlp_bias": False}
        | {"no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9}
        | llama_like(2048, 11008, 36, 16, 4, 128256, rope_theta=5000000.0, pretraining_tp=2)
        | {**WINDOWS, "sliding_window": None, "max_position_embeddings": 65536},
    ),
    "Mistral-7B-v0.1": (
        7_241_732_096,
        {"model_type": "mistral", "sliding_window": 4096, "max_position_embeddings": 32768}
        | llama_like(4096, 14336, 32, 32, 8, 32000, tie_word_embeddings=False),
    ),
    "Mistral-7B-v0.3": (
        7_248_023_552,
        {"model_type": "mistral", "sliding_window": None, "max_position_embeddings": 32768}
        | llama_like(4096, 14336, 32, 32, 8, 32768, rope_theta=1000000.0),
    ),
    "Mistral-Nemo-Base-2407": (
        12_247_782_400,
        {"model_type": "mistral", "sliding_window": None, "max_position_embeddings": 1024000}
        | llama_like(5120, 14336, 40, 32, 8, 131072, rope_theta=1000000.0, head_dim=128),
    ),
    "Mixtral-8x7B-v0.1": (
        46_702_792_704,
        {"model_type": "mixtral", "num_experts_per_tok": 2, "num_local_experts": 8}
        | {"output_router_logits": False, "router_aux_loss_coef": 0.02, "sliding_window": None}
        | llama_like(4096, 14336, 32, 32, 8, 32000, rope_theta=1000000.0)
        | {"max_position_embeddings": 32768},
    ),
    "Qwen2.5-0.5B": (
        494_032_768,
        {"model_type": "qwen2", **WINDOWS, "use_mrope": False, "max_position_embeddings": 32768}
        | llama_like(896, 4864, 24, 14, 2, 151936, rope_theta=1000000.0, rms_norm_eps=1e-6)
        | {"tie_word_embeddings": True},
    ),
    "Qwen3-0.6B": (
        596_049_920,
        {"model_type": "qwen3", **WINDOWS, "sliding_window": None, "head_dim": 128}
        | llama_like(1024, 3072, 28, 16, 8, 151936, rope_theta=1000000, rms_norm_eps=1e-6)
        | {"attention_bias": False, "tie_word_embeddings": True, "max_position_embeddings": 40960},
    ),
    "Qwen1.5-MoE-A2.7B": (
        14_315_784_192,
        {"model_type": "qwen2_moe", **WINDOWS, "decoder_sparse_step": 1, "norm_topk_prob": False}
        | {"moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632}
        | {"num_experts": 60, "num_experts_per_tok": 4, "max_position_embeddings": 8192}
        | llama_like(2048, 5632, 24, 16, 16, 151936, rope_theta=1000000.0, rms_norm_eps=1e-6),
    ),
    "Qwen3-30B-A3B": (
        30_532_122_624,
        {"model_type": "qwen3_moe", **WINDOWS, "sliding_window": None, "head_dim": 128}
        | {"decoder_sparse_step": 1, "mlp_only_layers": [], "moe_intermediate_size": 768}
        | {"norm_topk_prob": True, "num_experts": 128, "num_experts_per_tok": 8}
        | llama_like(2048, 6144, 48, 32, 4, 151936, rope_theta=1000000.0, rms_norm_eps=1e-6),
    ),
    "Phi-3-mini-4k-instruct": (
        3_821_079_552,
        {"model_type": "phi3", "sliding_window": 2047, "original_max_position_embeddings": 4096}
        | llama_like(3072, 8192, 32, 32, 32, 32064, max_position_embeddings=4096),
    ),
    "Phi-3.5-mini-instruct": (
        3_821_079_552,
        {"model_type": "phi3", "sliding_window": 262144, "original_max_position_embeddings": 4096}
        | llama_like(3072, 8192, 32, 32, 32, 32064, max_position_embeddings=131072)
        | {"rope_scaling": LONG_LISTS},
    ),
    "Phi-3-medium-4k-instruct": (
        13_960_238_080,
        {"model_type": "phi3", "sliding_window": 2047, "original_max_position_embeddings": 4096}
        | llama_like(5120, 17920, 40, 40, 10, 32064, max_position_embeddings=4096),
    ),
    "phi-4": (
        14_659_507_200,
        {"model_type": "phi3", "sliding_window": None, "original_max_position_embeddings": 16384}
        | llama_like(5120, 17920, 40, 40, 10, 100352, max_position_embeddings=16384)
        | {"rope_theta": 250000},
    ),
    "Phi-4-mini-instruct": (
        3_836_021_760,
        {"model_type": "phi3", "sliding_window": 262144, "original_max_position_embeddings": 4096}
        | llama_like(3072, 8192, 32, 24, 8, 200064, max_position_embeddings=131072)
        | {"rope_scaling": LONG_LISTS, "partial_rotary_factor": 0.75, "tie_word_embeddings": True},
    ),
    "gemma-2b": (
        2_506_172_416,
        {"model_type": "gemma", **sizes(2048, 16384, 18, 8, 1, 256000), "hidden_act": "gelu"}
        | {"rms_norm_eps": 1e-6, "head_dim": 256, "max_position_embeddings": 8192}
        | {"attention_bias": False, "rope_theta": 10000.0, "rope_scaling": None},
    ),
    "gemma-2-2b": (
        2_614_341_888,
        {"model_type": "gemma2", **sizes(2304, 9216, 26, 8, 4, 256000), **GEMMA}
        | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "head_dim": 256}
        | {"query_pre_attn_scalar": 256, "sliding_window": 4096, "max_position_embeddings": 8192},
    ),
    "gemma-3-1b-it": (
        999_885_952,
        {"model_type": "gemma3_text", **sizes(1152, 6912, 26, 4, 1, 262144), **GEMMA}
        | {"attn_logit_softcapping": None, "final_logit_softcapping": None, "head_dim": 256}
        | {"query_pre_attn_scalar": 256, "sliding_window": 512, "sliding_window_pattern": 6}
        | {"rope_local_base_freq": 10000, "rope_theta": 1000000, "rope_scaling": None}
        | {"max_position_embeddings": 32768},
    ),
    "gemma-3-4b-it": (
        3_880_263_168,  # of 4_300_079_472; the others are the pictures'
        {
            "model_type": "gemma3",
            "mm_tokens_per_image": 256,
            "boi_token_index": 255999,
            "eos_token_id": [1, 106],
            "text_config": {
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "model_type": "gemma3_text",
                "num_hidden_layers": 34,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
            "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
        },
    ),
    "granite-3.1-2b-base": (
        2_533_531_648,
        {"model_type": "granite", "attention_multiplier": 0.015625, "logits_scaling": 8.0}
        | {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_bias": False}
        | llama_like(2048, 8192, 40, 32, 8, 49155, rope_theta=5000000.0, mlp_bias=False)
        | {"max_position_embeddings": 131072, "tie_word_embeddings": True},
    ),
    "OLMo-2-1124-7B": (
        7_298_617_344,
        {"model_type": "olmo2", "attention_bias": False, "max_position_embeddings": 4096}
        | llama_like(4096, 11008, 32, 32, 32, 100352, rope_theta=500000, rms_norm_eps=1e-6),
    ),
    "stablelm-2-1_6b": (
        1_644_515_328,
        {"model_type": "stablelm", "layer_norm_eps": 1e-5, "partial_rotary_factor": 0.25}
        | {"rope_theta": 10000, "use_qkv_bias": True, "use_cache": True, "hidden_act": "silu"}
        | sizes(2048, 5632, 24, 32, 32, 100352)
        | {"max_position_embeddings": 4096, "tie_word_embeddings": False},
    ),
    "stablelm-2-12b": (
        12_143_185_920,
        {"model_type": "stablelm", "layer_norm_eps": 1e-5, "partial_rotary_factor": 0.25}
        | {"rope_theta": 10000, "use_qkv_bias": False, "use_cache": True, "hidden_act": "silu"}
        | {"qk_layernorm": True, "use_parallel_residual": True, "max_position_embeddings": 4096}
        | {**sizes(5120, 13824, 40, 32, 8, 100352), "tie_word_embeddings": False},
    ),
    "starcoder2-3b": (
        3_030_371_328,
        {"model_type": "starcoder2", "hidden_act": "gelu_pytorch_tanh", "mlp_type": "default"}
        | {"norm_epsilon": 1e-5, "norm_type": "layer_norm", "use_bias": True}
        | {"rope_theta": 999999.4420358813, "sliding_window": 4096}
        | sizes(3072, 12288, 30, 24, 2, 49152)
        | {"max_position_embeddings": 16384},
    ),
    "pythia-70m": (
        70_426_624,
        {"model_type": "gpt_neox", "hidden_act": "gelu", "rotary_emb_base": 10000}
        | {"rotary_pct": 0.25, "use_parallel_residual": True, "layer_norm_eps": 1e-5}
        | {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6}
        | {"num_attention_heads": 8, "vocab_size": 50304, "max_position_embeddings": 2048}
        | {"tie_word_embeddings": False, "torch_dtype": "float16"},
    ),
    "gpt2": (
        124_439_808,
        {"model_type": "gpt2", "activation_function": "gelu_new", "attn_pdrop": 0.1}
        | {"layer_norm_epsilon": 1e-5, "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12}
        | {"n_positions": 1024, "vocab_size": 50257, "summary_first_dropout": 0.1}
        | {"task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}},
    ),
    "opt-125m": (
        125_239_296,
        {"model_type": "opt", "activation_function": "relu", "do_layer_norm_before": True}
        | {"_remove_final_layer_norm": False, "ffn_dim": 3072, "hidden_size": 768}
        | {"max_position_embeddings": 2048, "num_attention_heads": 12, "num_hidden_layers": 12}
        | {"vocab_size": 50272, "word_embed_proj_dim": 768, "prefix": "</s>"},
    ),
    "opt-350m": (
        331_196_416,
        {"model_type": "opt", "activation_function": "relu", "do_layer_norm_before": False}
        | {"_remove_final_layer_norm": False, "ffn_dim": 4096, "hidden_size": 1024}
        | {"max_position_embeddings": 2048, "num_attention_heads": 16, "num_hidden_layers": 24}
        | {"vocab_size": 50272, "word_embed_proj_dim": 512, "prefix": "</s>"},
    ),
    "gpt-oss-20b": (
        20_914_757_184,
        {"model_type": "gpt_oss", "layer_types": ["sliding_attention", "full_attention"] * 12}
        | {"experts_per_token": 4, "num_experts_per_tok": 4, "num_local_experts": 32}
        | {"head_dim": 64, "attention_bias": True, "sliding_window": 128, "swiglu_limit": 7.0}
        | {"initial_context_length": 4096, "rope_theta": 150000, "rope_scaling": GPT_OSS_ROPE}
        | {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}
        | sizes(2880, 2880, 24, 64, 8, 201088)
        | {"max_position_embeddings": 131072, "tie_word_embeddings": False, "hidden_act": "silu"},
    ),
    "DeepSeek-V2-Lite": (
        15_706_484_224,
        {"model_type": "deepseek_v2", "q_lora_rank": None, "kv_lora_rank": 512, "n_group": 1}
        | {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "topk_group": 1}
        | {"first_k_dense_replace": 1, "moe_intermediate_size": 1408, "moe_layer_freq": 1}
        | {"n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6}
        | {"routed_scaling_factor": 1.0, "scoring_func": "softmax", "topk_method": "greedy"}
        | {"norm_topk_prob": False, "rope_scaling": DEEPSEEK_ROPE, "rms_norm_eps": 1e-6}
        | llama_like(2048, 10944, 27, 16, 16, 102400)
        | {"rope_scaling": DEEPSEEK_ROPE, "max_position_embeddings": 163840},
    ),
}  # fmt: skip


def numbers(plan: WeightPlan) -> int:
    """How many the tensors of a plan hold."""
    shapes = {}
    for slot in plan.slots:
        for source in slot.sources:
            shapes[source.tensor] = source.shape
            if source.bias:
                shapes[source.bias] = source.bias_shape
    return sum(map(prod, shapes.values()))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_gives_the_published_size(name: str) -> None:
    count, config = PUBLISHED[name]
    kind = find_family(config)
    assert numbers(kind.plan(kind.read_spec(config), Files())) == count


@pytest.mark.parametrize("name", PUBLISHED)
def test_gguf_holds_models_of_the_families_that_are_writable(name: str) -> None:
    config = PUBLISHED[name][1]
    kind = find_family(config)
    spec = kind.read_spec(config)
    plan = kind.plan(spec, Files())
    if spec.family in list_writable():
        found = convert_model(config, spec, plan)
        assert found.architecture == list_writable()[spec.family]
        return
    with pytest.raises(ConfigError, match=r"gguf cannot hold a model of type .*: writable: "):
        convert_model(config, spec, plan)


@pytest.mark.parametrize(
    ("name", "unsaid"),
    [
        ("gpt2", "activation_function"),
        ("opt-125m", "activation_function"),
        ("pythia-70m", "hidden_act"),
        ("pythia-70m", "rotary_pct"),
        ("starcoder2-3b", "hidden_act"),
        ("stablelm-2-1_6b", "partial_rotary_factor"),
        ("Mixtral-8x7B-v0.1", "rope_theta"),
        ("gemma-2-2b", "hidden_activation"),
        ("gpt-oss-20b", "head_dim"),
    ],
)
def test_null_means_what_the_family_usually_has(name: str, unsaid: str) -> None:
    """The values these configs give are the usual ones."""
    _, config = PUBLISHED[name]
    kind = find_family(config)
    without = {key: value for key, value in config.items() if key != unsaid}
    assert (
        kind.read_spec(config | {unsaid: None}) == kind.read_spec(without) == kind.read_spec(config)
    )


@pytest.mark.parametrize("head", [52, 64, 80, 96, 112, 128, 160, 256])
def test_a_part_of_a_head_is_counted_exactly(head: int) -> None:
    """GGUF says how many elements turn, a config which part of a head they are."""
    for turned in range(2, head + 1, 2):
        assert read_rope_spec({"partial_rotary_factor": turned / head}, head).dim == turned
