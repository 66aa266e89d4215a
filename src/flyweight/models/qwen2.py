"""Qwen2 and Qwen2.5 (Yang et al., 2024): a Llama whose queries, keys and values are biased."""

from dataclasses import replace

from flyweight.models.config import Config, flag, integer
from flyweight.models.plans import TensorNames, decoder_plan, each, gated_decoder, sliding
from flyweight.spec import Files, ModelSpec, WeightPlan


def spec(config: Config) -> ModelSpec:
    """A `Qwen2ForCausalLM` config.json; the biases are always there, and the output has none."""
    found = each(gated_decoder(config, "qwen2"), lambda _, layer: replace(layer, attn_bias=True))
    return windows(found, config)


def windows(found: ModelSpec, config: Config) -> ModelSpec:
    """With use_sliding_window, the layers from max_window_layers on see a window."""
    if not flag(config, "use_sliding_window"):
        return found
    first = integer(config, "max_window_layers", 28)
    return sliding(found, config, lambda i: i >= first)


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    return decoder_plan(spec, TensorNames(), files)
