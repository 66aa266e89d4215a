"""Granite 3 (2024): a Llama with multipliers on the embedding, the scores, the residual and the
logits.
"""

from dataclasses import replace

from flyweight.models import llama
from flyweight.models.config import Config, real
from flyweight.models.plans import each, gated_decoder
from flyweight.spec import ModelSpec

plan = llama.plan


def spec(config: Config) -> ModelSpec:
    """A `GraniteForCausalLM` config.json."""
    found = llama.biased(gated_decoder(config, "granite"), config)
    scale = real(config, "attention_multiplier", 1.0)
    return replace(
        each(found, lambda _, layer: replace(layer, scale=scale)),
        embed_scale=real(config, "embedding_multiplier", 1.0),
        residual_scale=real(config, "residual_multiplier", 1.0),
        logit_scale=1 / real(config, "logits_scaling", 1.0),
    )
