"""GLM-4 (GLM team, 2024): biased q, k and v, half of each head rotated in adjacent pairs, gate and
up in one matrix.  The 0414 models (`glm4`) also norm the output of each block.
"""

from dataclasses import replace

from flyweight.models.config import Config, fill_defaults, read_flag
from flyweight.models.plans import (
    TensorNames,
    change_layers,
    make_decoder_plan,
    make_gated_spec,
    make_interleaved_order,
)
from flyweight.spec import Files, ModelSpec, WeightPlan

NAMES = TensorNames(up=("mlp.gate_up_proj",))
POST_NORMS = replace(NAMES, attn_post="post_self_attn_layernorm", mlp_post="post_mlp_layernorm")
FUSED = "self_attn.qkv_proj"  # in GGUF files made from the first GLM-4's own code
USUAL = {
    "head_dim": 128,
    "num_key_value_heads": 2,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1.5625e-07,
}


def read_glm(config: Config) -> ModelSpec:
    """A `GlmForCausalLM` config.json (glm-4-9b-hf, glm-edge)."""
    return _make_spec(config, "glm")


def read_glm4(config: Config) -> ModelSpec:
    """A `Glm4ForCausalLM` config.json (GLM-4-0414, GLM-Z1)."""
    return _make_spec(config, "glm4")


def _make_spec(config: Config, family: str) -> ModelSpec:
    bias = read_flag(config, "attention_bias", True)
    found = make_gated_spec(fill_defaults(config, USUAL), family)
    return change_layers(found, lambda _, layer: replace(layer, attn_bias=bias))


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    """GGUF keeps the interleaved order of q and k."""
    names = POST_NORMS if spec.family == "glm4" else NAMES
    if any(FUSED in name for name in files.names):
        names = replace(names, qkv=(FUSED,))
    return make_decoder_plan(spec, names, files, make_interleaved_order(spec))
