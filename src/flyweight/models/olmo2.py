"""OLMo 2 (2025): norms only after each block, and of all heads of q and k as one vector."""

from dataclasses import replace

from flyweight.models.config import Config, read_flag
from flyweight.models.plans import TensorNames, change_layers, make_decoder_plan, make_gated_spec
from flyweight.spec import Files, ModelSpec, WeightPlan

NAMES = TensorNames(
    attn_norm="",
    attn_post="post_attention_layernorm",
    mlp_norm="",
    mlp_post="post_feedforward_layernorm",
)


def spec(config: Config) -> ModelSpec:
    """An `Olmo2ForCausalLM` config.json."""
    bias = read_flag(config, "attention_bias")
    return change_layers(
        make_gated_spec(config, "olmo2"),
        lambda _, layer: replace(layer, qk_norm="whole", attn_bias=bias, out_bias=bias),
    )


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    return make_decoder_plan(spec, NAMES, files)
