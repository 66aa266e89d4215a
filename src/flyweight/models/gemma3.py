"""Gemma 3 (2025): Gemma 2 with head norms in place of caps, and five layers with a window and a
rope base of their own to each that sees everything.
"""

from dataclasses import replace

from flyweight.models import gemma2
from flyweight.models.config import Config, integer, real
from flyweight.models.plans import each, sliding
from flyweight.models.rope import rope_spec
from flyweight.spec import LayerSpec, ModelSpec

plan = gemma2.plan


def spec(config: Config) -> ModelSpec:
    """A `Gemma3ForCausalLM` (text) config.json, as transformers 4 and 5 write it."""
    nested = config.get("rope_parameters") or {}
    if "full_attention" in nested:
        everywhere, near = config, "sliding_attention"
        section = "full_attention"
    else:
        everywhere = {**config, "rope_theta": real(config, "rope_theta", 1e6)}
        section = near = ""
    flat = {k: v for k, v in config.items() if k not in ("rope_parameters", "rope_scaling")}
    found = gemma2.gemma(flat, "gemma3_text")
    head = found.layers[0].head
    local = {**flat, "rope_theta": real(config, "rope_local_base_freq", 10000.0)}
    ropes = rope_spec(everywhere, head, section), rope_spec(config if near else local, head, near)
    every = integer(config, "sliding_window_pattern", 6)
    found = sliding(found, {"sliding_window": 4096, **config}, lambda i: (i + 1) % every != 0)

    def change(_: int, layer: LayerSpec) -> LayerSpec:
        return replace(layer, qk_norm="head", rope=1 if layer.kv.window else 0)

    return replace(each(found, change), ropes=ropes)
