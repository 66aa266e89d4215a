"""Llama 1, 2 and 3.x (Touvron et al., 2023; Dubey et al., 2024): the plain gated decoder, grouped
queries, llama3 rope.
"""

from collections.abc import Mapping
from typing import Any

from flyweight.models.plans import Traits, gated_decoder
from flyweight.spec import ModelSpec


def spec(config: Mapping[str, Any]) -> ModelSpec:
    """A `LlamaForCausalLM` config.json; `attention_bias` biases q, k, v and o, `mlp_bias` the three
    MLP matrices.
    """
    bias = bool(config.get("attention_bias", False))
    traits = Traits(attn_bias=bias, out_bias=bias, mlp_bias=bool(config.get("mlp_bias", False)))
    return gated_decoder(config, "llama", traits)
