"""Granite 3 (2024): a Llama with multipliers on the embedding, the scores, the residual and the
logits.
"""

from dataclasses import replace

from flyweight.models import llama
from flyweight.models.config import Config, read_real
from flyweight.models.plans import change_layers, make_gated_spec
from flyweight.spec import ModelSpec

plan = llama.plan


def spec(config: Config) -> ModelSpec:
    """A `GraniteForCausalLM` config.json."""
    found = llama.add_biases(make_gated_spec(config, "granite"), config)
    scale = read_real(config, "attention_multiplier", 1.0)
    return replace(
        change_layers(found, lambda _, layer: replace(layer, scale=scale)),
        embed_scale=read_real(config, "embedding_multiplier", 1.0),
        residual_scale=read_real(config, "residual_multiplier", 1.0),
        logit_scale=1 / read_real(config, "logits_scaling", 1.0),
    )
