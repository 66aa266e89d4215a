"""Qwen3 (Yang et al., 2025): heads are RMS-normed before the rotation, and the head size is free of
hidden / heads.
"""

from collections.abc import Mapping
from typing import Any

from flyweight.errors import CheckpointError
from flyweight.models.plans import Traits, gated_decoder
from flyweight.spec import ModelSpec


def spec(config: Mapping[str, Any]) -> ModelSpec:
    """A `Qwen3ForCausalLM` config.json; a head_dim left out is 128, as published."""
    if config.get("use_sliding_window"):
        raise CheckpointError("config: use_sliding_window = true is not supported for qwen3 yet")
    bias = bool(config.get("attention_bias", False))
    filled = {"head_dim": 128, **{k: v for k, v in config.items() if v is not None}}
    return gated_decoder(filled, "qwen3", Traits(qk_norm=True, attn_bias=bias, out_bias=bias))
