"""Qwen3 (Yang et al., 2025): heads are RMS-normed before the rotation, and the head size is free of
hidden / heads.
"""

from dataclasses import replace

from flyweight.models import qwen2
from flyweight.models.config import Config, filled, flag
from flyweight.models.plans import each, gated_decoder
from flyweight.spec import ModelSpec

plan = qwen2.plan


def spec(config: Config, family: str = "qwen3") -> ModelSpec:
    """A `Qwen3ForCausalLM` config.json; a head_dim left out is 128, as published."""
    bias = flag(config, "attention_bias")
    whole = filled(config, {"head_dim": 128})
    found = each(
        gated_decoder(whole, family),
        lambda _, layer: replace(layer, qk_norm="head", attn_bias=bias, out_bias=bias),
    )
    return qwen2.windows(found, config)
