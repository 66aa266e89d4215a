"""Configs as publishers wrote them, of models too large to keep here: each is read, and the tensors
its plan asks for hold as many numbers as the model is published to have.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import MODELS, decoder, logits

from filewriters import encode, write_folder
from flyweight.errors import CheckpointError
from flyweight.models.registry import family
from flyweight.ops.base import Ops
from flyweight.spec import Files, WeightPlan
from flyweight.untrusted import read_json
from flyweight.weights.checkpoint import open_checkpoint
from flyweight.weights.formats.dense import to_f32
from flyweight.weights.survey import value_faults

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
    """What transformers 4 wrote beside the sizes."""
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
    kind = family(config)
    assert numbers(kind.plan(kind.spec(config), Files())) == count


# --- files as they were published ---

OLD_GEMMA3 = {  # what transformers 4 called the rope of the fixture
    "rope_theta": 50000.0,
    "rope_local_base_freq": 1000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}


def tensors_of(name: str) -> dict[str, Any]:
    source = open_checkpoint(MODELS / name)
    found = {
        key: encode(np.asarray(to_f32(source.read(key, 0, info.shape[0]))), "f32")
        for key, info in source.tensors.items()
    }
    source.close()
    return found


def same(name: str, folder: Path, ops: Ops) -> bool:
    """Whether the model in a folder answers as the fixture does."""
    expected = np.load(MODELS / name / "expected.npz")
    got = logits(decoder(folder, ops), expected["prompt"], expected["rows"])
    return bool(np.abs(got - expected["logits"]).max() < 1e-3)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_of_a_gemma_that_sees_pictures(prefix: str, native: Ops, tmp_path: Path) -> None:
    config = read_json(MODELS / "gemma3" / "config.json")
    del config["rope_parameters"]
    tensors = {prefix + k.removeprefix("model."): v for k, v in tensors_of("gemma3").items()}
    for other in ("vision_tower.embeddings.patch.weight", "multi_modal_projector.mm_weight"):
        tensors[other] = encode(np.ones((2, 2)), "f32")
    whole = {"model_type": "gemma3", "text_config": config | OLD_GEMMA3, "vision_config": {}}
    write_folder(tmp_path, whole, tensors)
    assert same("gemma3", tmp_path, native)


def test_the_masks_of_older_files_are_passed_over(native: Ops, tmp_path: Path) -> None:
    """Truth values, a single number and frequencies, as Pythia's files hold them."""
    tensors = tensors_of("gpt-neox")
    at = "gpt_neox.layers.0.attention."
    tensors |= {
        at + "bias": ("bool", (1, 1, 8, 8), bytes(64)),
        at + "masked_bias": encode(np.array(-np.inf), "f32"),
        at + "rotary_emb.inv_freq": encode(np.ones(2), "f32"),
    }
    config = read_json(MODELS / "gpt-neox" / "config.json")
    write_folder(tmp_path, config, tensors)
    assert same("gpt-neox", tmp_path, native)
    checkpoint, kind = open_checkpoint(tmp_path), family(config)
    files = Files(False, frozenset(checkpoint.tensors))
    assert not list(value_faults(checkpoint, None, kind.plan(kind.spec(config), files).ignored))
    tensors["gpt_neox.final_layer_norm.weight"] = ("bool", (64,), bytes(64))
    write_folder(tmp_path, config, tensors)
    with pytest.raises(CheckpointError, match=r"final_layer_norm.weight' holds bytes"):
        decoder(tmp_path, native)


# --- configs that lie ---

WILD: list[Any] = [
    None, True, False, 0, -1, 3, 1 << 20, 1 << 31, 10**400, -0.5, 1e-30, 1e29, 1e300, {},
    float("nan"), float("inf"), "", "false", "3", "\x1b[2J\n", [], [[]], [1e29] * 6, [0] * 6,
    [None], {"rope_type": []}, {"rope_type": "yarn"}, {"rope_type": "longrope"},
    {"rope_type": "dynamic", "factor": 1e29}, {"full_attention": 1}, {"type": "linear"},
]  # fmt: skip
UNSAID = (
    "attention_bias", "head_dim", "layer_types", "mlp_only_layers", "no_rope_layers",
    "partial_rotary_factor", "quantization_config", "rope_parameters", "rope_scaling",
    "rope_theta", "sliding_window", "sliding_window_pattern", "text_config",
)  # fmt: skip


def places(config: Mapping[str, Any], at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The way to every key, also those of objects inside."""
    for key, value in config.items():
        yield (*at, key)
        if isinstance(value, dict):
            yield from places(value, (*at, key))


@pytest.mark.parametrize("name", sorted(p.name for p in MODELS.iterdir()))
def test_every_key_given_every_kind_of_value(name: str) -> None:
    """A spec and its plans, or an error of one line; never another exception, nor much memory."""
    config = read_json(MODELS / name / "config.json")
    refused = 0
    for way in (*places(config), *((key,) for key in UNSAID if key not in config)):
        for value in WILD:
            changed = deepcopy(config)
            inner = changed
            for key in way[:-1]:
                inner = inner[key]
            inner[way[-1]] = value
            try:
                kind = family(changed)
                spec = kind.spec(changed)
                for converted in (False, True):
                    kind.plan(spec, Files(converted))
            except CheckpointError as error:
                refused += 1
                assert str(error).isprintable() and len(str(error)) < 500
    assert refused > 100


@pytest.mark.parametrize("model_type", ["mixtral", "deepseek_v2"])
def test_a_plan_is_not_sized_by_a_lie(model_type: str) -> None:
    name = {"mixtral": "mixtral", "deepseek_v2": "deepseek-v2"}[model_type]
    config = read_json(MODELS / name / "config.json")
    lies = {"num_local_experts": 1 << 20, "n_routed_experts": 1 << 20, "num_hidden_layers": 1024}
    kind = family(config)
    with pytest.raises(CheckpointError, match=r"experts and .* in 1024 layers; at most 32768"):
        kind.plan(kind.spec(config | lies), Files())
