"""SmolLM3 (2025): a Llama with no positions at all on every fourth layer (SmolLM 2 is a Llama)."""

from dataclasses import replace

from flyweight.models import llama, qwen2
from flyweight.models.config import Config, read_integer, read_layer_switches
from flyweight.models.plans import change_layers, make_gated_spec
from flyweight.spec import ModelSpec

plan = llama.plan


def spec(config: Config) -> ModelSpec:
    """A `SmolLM3ForCausalLM` config.json; no_rope_layers has a 1 where positions are."""
    filled = {"tie_word_embeddings": True, **config}
    found = llama.add_biases(make_gated_spec(filled, "smollm3"), config)
    every, count = read_integer(config, "no_rope_layer_interval", 4), len(found.layers)
    turned = read_layer_switches(
        config, "no_rope_layers", [(i + 1) % every != 0 for i in range(count)]
    )
    found = change_layers(found, lambda i, layer: replace(layer, rope=0 if turned[i] else None))
    return qwen2.add_windows(found, config)
