"""Qwen3 (Yang et al., 2025): heads are RMS-normed before the rotation, and the head size is free of
hidden / heads.
"""

from dataclasses import replace

from flyweight.models import qwen2
from flyweight.models.config import Config, fill_defaults, read_flag
from flyweight.models.plans import change_layers, make_gated_spec
from flyweight.spec import ModelSpec

plan = qwen2.plan


def spec(config: Config, family: str = "qwen3") -> ModelSpec:
    """A `Qwen3ForCausalLM` config.json; a head_dim left out is 128, as published."""
    bias = read_flag(config, "attention_bias")
    whole = fill_defaults(config, {"head_dim": 128})
    found = change_layers(
        make_gated_spec(whole, family),
        lambda _, layer: replace(layer, qk_norm="head", attn_bias=bias, out_bias=bias),
    )
    return qwen2.add_windows(found, config)
