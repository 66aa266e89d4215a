"""SmolLM3 (2025): a Llama with no positions at all on every fourth layer (SmolLM 2 is a Llama)."""

from dataclasses import replace

from flyweight.errors import CheckpointError
from flyweight.models import llama, qwen2
from flyweight.models.config import Config, integer
from flyweight.models.plans import each, gated_decoder
from flyweight.spec import ModelSpec
from flyweight.untrusted import shown

plan = llama.plan


def spec(config: Config) -> ModelSpec:
    """A `SmolLM3ForCausalLM` config.json; no_rope_layers has a 1 where positions are."""
    filled = {"tie_word_embeddings": True, **config}
    found = llama.biased(gated_decoder(filled, "smollm3"), config)
    every, count = integer(config, "no_rope_layer_interval", 4), len(found.layers)
    turned = config.get("no_rope_layers") or [(i + 1) % every != 0 for i in range(count)]
    if not isinstance(turned, list) or len(turned) != count:
        raise CheckpointError(
            f"config: no_rope_layers = {shown(turned)}; a list of {count} is needed"
        )
    found = each(found, lambda i, layer: replace(layer, rope=0 if turned[i] else None))
    return qwen2.windows(found, config)
