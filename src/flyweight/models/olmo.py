"""OLMo 2 and 3 (Ai2, 2025): norms only after each block, and of all heads of q and k as one vector.

OLMo 3 has a window on three of four layers; context extension (YaRN) applies only to the layers
without a window.
"""

from collections.abc import Mapping
from dataclasses import replace

from flyweight.models.config import Config, fill_defaults, read_flag
from flyweight.models.plans import (
    TensorNames,
    add_sliding_window,
    change_layers,
    make_decoder_plan,
    make_gated_spec,
    read_layer_kinds,
)
from flyweight.models.rope import read_rope_spec
from flyweight.spec import Files, LayerSpec, ModelSpec, WeightPlan

NAMES = TensorNames(
    attn_norm="",
    attn_post="post_attention_layernorm",
    mlp_norm="",
    mlp_post="post_feedforward_layernorm",
)


FULL, SLIDING = "full_attention", "sliding_attention"


def read_olmo2(config: Config) -> ModelSpec:
    """An `Olmo2ForCausalLM` config.json."""
    bias = read_flag(config, "attention_bias")
    return change_layers(
        make_gated_spec(config, "olmo2"),
        lambda _, layer: replace(layer, qk_norm="whole", attn_bias=bias, out_bias=bias),
    )


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    return make_decoder_plan(spec, NAMES, files)


def read_olmo3(config: Config) -> ModelSpec:
    """An `Olmo3ForCausalLM` config.json: rope_scaling as published, or transformers 5's
    rope_parameters with a section for each kind of layer.
    """
    usual = {"rope_theta": 500000.0, "rms_norm_eps": 1e-5, "sliding_window": 4096}
    config = fill_defaults(config, {k: v for k, v in usual.items() if k not in config})
    nested = config.get("rope_parameters")
    flat = {k: v for k, v in config.items() if k not in ("rope_parameters", "rope_scaling")}
    found = read_olmo2(flat)
    head = found.layers[0].head
    if isinstance(nested, Mapping) and (FULL in nested or SLIDING in nested):
        ropes = read_rope_spec(config, head, FULL), read_rope_spec(config, head, SLIDING)
    else:
        base = {"rope_theta": read_rope_spec(config, head).base}
        ropes = read_rope_spec(config, head), read_rope_spec({**flat, **base}, head)
    kinds = read_layer_kinds(found, config, lambda i: (i + 1) % 4 != 0)

    def change(i: int, layer: LayerSpec) -> LayerSpec:
        return replace(layer, rope=int(kinds[i] == SLIDING))

    windowed = add_sliding_window(
        change_layers(found, change), {**config, "layer_types": kinds}, lambda i: True
    )
    return replace(windowed, family="olmo3", ropes=ropes)
