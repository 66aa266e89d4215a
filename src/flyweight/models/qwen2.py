"""Qwen2 and Qwen2.5 (Yang et al., 2024): a Llama whose queries, keys and values are biased."""

from collections.abc import Mapping
from typing import Any

from flyweight.errors import CheckpointError
from flyweight.models.plans import Traits, gated_decoder
from flyweight.spec import ModelSpec


def spec(config: Mapping[str, Any]) -> ModelSpec:
    """A `Qwen2ForCausalLM` config.json; the biases are always there, and the output has none."""
    if config.get("use_sliding_window"):
        raise CheckpointError("config: use_sliding_window = true is not supported for qwen2 yet")
    return gated_decoder(config, "qwen2", Traits(attn_bias=True))
