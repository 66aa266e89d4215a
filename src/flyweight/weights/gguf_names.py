"""GGUF's tensor names to Hugging Face's, per architecture.

Invariant: a name not in an architecture's table stays as it is, so that no tensor is lost.  Key
names: ggml's docs/gguf.md.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flyweight.errors import CheckpointError
from flyweight.validation.untrusted import shown
from flyweight.weights.refused import explain

TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
}
GATED = ATTENTION | {
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
EXPERTS = {  # models/mixture.py's STACKED
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "exp_probs_b": "mlp.gate.e_score_correction_bias",
}
AROUND = GATED | {  # norms before and after each block
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
FUSED = GATED | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
LATENT = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
}
BLOCK = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.(.+)")
BARE = ("attn_sinks", "exp_probs_b")  # published without ".weight" or ".bias"


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """`layer` maps the names under blk.N to those under `prefix` and N; `fixed` are config entries
    the architecture means, `renamed` config keys the family calls otherwise.
    """

    model_type: str
    layer: Mapping[str, str] = field(default_factory=lambda: GATED)
    top: Mapping[str, str] = field(default_factory=lambda: TOP)
    prefix: str = "model.layers."
    fixed: Mapping[str, Any] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)


ARCHITECTURES = {
    "llama": GgufArchitecture("llama", GATED | EXPERTS),
    "llama4": GgufArchitecture(
        "llama4_text",
        ATTENTION
        | EXPERTS
        | {f"ffn_{name}": f"feed_forward.{name}_proj" for name in ("gate", "up", "down")},
        renamed={
            "intermediate_size": "intermediate_size_mlp",
            "moe_intermediate_size": "intermediate_size",
        },
    ),
    "qwen2": GgufArchitecture("qwen2"),
    "qwen2moe": GgufArchitecture("qwen2_moe", GATED | EXPERTS),
    "qwen3": GgufArchitecture("qwen3"),
    "qwen3moe": GgufArchitecture("qwen3_moe", GATED | EXPERTS, fixed={"norm_topk_prob": True}),
    "phi3": GgufArchitecture("phi3", FUSED),
    "gemma": GgufArchitecture("gemma", fixed={"hidden_act": "gelu_pytorch_tanh"}),
    "gemma2": GgufArchitecture("gemma2", AROUND),
    "gemma3": GgufArchitecture("gemma3_text", AROUND),
    "granite": GgufArchitecture("granite"),
    "smollm3": GgufArchitecture("smollm3"),
    "olmo2": GgufArchitecture("olmo2", AROUND),
    "glm4": GgufArchitecture(
        "glm4",
        FUSED
        | {
            "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
        },
    ),
    "chatglm": GgufArchitecture("glm", FUSED),
    "ernie4_5": GgufArchitecture("ernie4_5"),
    "seed_oss": GgufArchitecture(
        "seed_oss",
        {k: v for k, v in GATED.items() if k != "ffn_norm"}
        | {"post_attention_norm": "post_attention_layernorm"},
    ),
    "command-r": GgufArchitecture("cohere", renamed={"logits_scaling": "logit_scale"}),
    "cohere2": GgufArchitecture("cohere2", renamed={"logits_scaling": "logit_scale"}),
    "exaone": GgufArchitecture(
        "exaone",
        {
            "attn_norm": "ln_1",
            "attn_q": "attn.attention.q_proj",
            "attn_k": "attn.attention.k_proj",
            "attn_v": "attn.attention.v_proj",
            "attn_output": "attn.attention.out_proj",
            "ffn_norm": "ln_2",
            "ffn_gate": "mlp.c_fc_0",
            "ffn_up": "mlp.c_fc_1",
            "ffn_down": "mlp.c_proj",
        },
        {
            "token_embd": "transformer.wte",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
        },
        "transformer.h.",
    ),
    "exaone4": GgufArchitecture("exaone4", AROUND),
    "minicpm": GgufArchitecture(  # files of before November 2024 leave the multipliers out
        "minicpm", fixed={"scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 256}
    ),
    "stablelm": GgufArchitecture("stablelm"),
    "starcoder2": GgufArchitecture(
        "starcoder2",
        ATTENTION | {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
        fixed={"hidden_act": "gelu_pytorch_tanh"},
    ),
    "gptneox": GgufArchitecture(
        "gpt_neox",
        {
            "attn_norm": "input_layernorm",
            "attn_qkv": "attention.query_key_value",
            "attn_output": "attention.dense",
            "ffn_norm": "post_attention_layernorm",
            "ffn_up": "mlp.dense_h_to_4h",
            "ffn_down": "mlp.dense_4h_to_h",
        },
        {
            "token_embd": "gpt_neox.embed_in",
            "output_norm": "gpt_neox.final_layer_norm",
            "output": "embed_out",
        },
        "gpt_neox.layers.",
        {"hidden_act": "gelu"},
    ),
    "gpt2": GgufArchitecture(
        "gpt2",
        {
            "attn_norm": "ln_1",
            "attn_qkv": "attn.c_attn",
            "attn_output": "attn.c_proj",
            "ffn_norm": "ln_2",
            "ffn_up": "mlp.c_fc",
            "ffn_down": "mlp.c_proj",
        },
        {
            "token_embd": "transformer.wte",
            "position_embd": "transformer.wpe",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
        },
        "transformer.h.",
        renamed={
            "hidden_size": "n_embd",
            "num_attention_heads": "n_head",
            "num_hidden_layers": "n_layer",
            "intermediate_size": "n_inner",
            "max_position_embeddings": "n_positions",
        },
    ),
    "gpt-oss": GgufArchitecture(
        "gpt_oss",
        {k: v for k, v in GATED.items() if k != "ffn_norm"}
        | EXPERTS
        | {
            "post_attention_norm": "post_attention_layernorm",
            "attn_sinks": "self_attn.sinks",
        },
    ),
    "deepseek2": GgufArchitecture("deepseek_v2", GATED | EXPERTS | LATENT),
}

# Families that share the architecture of another in GGUF.
SHARED = {"mistral": "llama", "mixtral": "llama", "olmo3": "olmo2", "phi4_multimodal": "phi3"}
SHARED |= {"phi4mm": "phi3", "deepseek_v3": "deepseek2", "kimi_k2": "deepseek2"}
SHARED |= {"llama4": "llama4", "gemma3": "gemma3"}


def list_writable() -> dict[str, str]:
    """The families whose models are written as GGUF (`quantize.ggml.convert`), each with the name
    of its architecture there.
    """
    return {arch.model_type: name for name, arch in ARCHITECTURES.items()} | SHARED


def find_architecture(metadata: Mapping[str, object], where: str) -> GgufArchitecture:
    """The architecture a file names, or `CheckpointError` listing those there are."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        found = f"= {shown(name)} is not supported{explain(name)}"
        found = "is missing" if name is None else found
        raise CheckpointError(f"{where}: general.architecture {found}; known: {known}")
    return ARCHITECTURES[name]


def translate(arch: GgufArchitecture, name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; a name not in the table
    stays as it is.
    """
    stem, _, part = name.rpartition(".")
    if part not in ("weight", "bias"):
        return name
    numbered = BLOCK.fullmatch(stem)
    if numbered and numbered[2] in arch.layer:
        full = f"{arch.prefix}{numbered[1]}.{arch.layer[numbered[2]]}"
        return full if numbered[2] in BARE else f"{full}.{part}"
    return f"{arch.top[stem]}.{part}" if stem in arch.top else name


def spell(arch: GgufArchitecture, name: str) -> str:
    """The inverse of `translate`; a name not in the table stays as it is."""
    stem, _, part = name.rpartition(".")
    bare = {arch.layer[key]: key for key in BARE if key in arch.layer}
    if name.startswith(arch.prefix):
        number, _, rest = name.removeprefix(arch.prefix).partition(".")
        if rest in bare:
            kind = "bias" if bare[rest] == "exp_probs_b" else "weight"
            return f"blk.{number}.{bare[rest]}.{kind}"
        found = {known: key for key, known in arch.layer.items() if key not in BARE}
        short = found.get(rest.removesuffix(f".{part}"))
        return f"blk.{number}.{short}.{part}" if short else name
    tops = {known: key for key, known in arch.top.items()}
    return f"{tops[stem]}.{part}" if stem in tops else name
