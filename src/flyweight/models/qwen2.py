"""Qwen2 and Qwen2.5 (Yang et al., 2024): a Llama whose queries, keys and values are biased."""

from dataclasses import replace

from flyweight.models.config import Config, read_flag, read_integer
from flyweight.models.plans import (
    TensorNames,
    add_sliding_window,
    change_layers,
    make_decoder_plan,
    make_gated_spec,
)
from flyweight.spec import Files, ModelSpec, WeightPlan


def spec(config: Config) -> ModelSpec:
    """A `Qwen2ForCausalLM` config.json; the biases are always there, and the output has none."""
    found = change_layers(
        make_gated_spec(config, "qwen2"), lambda _, layer: replace(layer, attn_bias=True)
    )
    return add_windows(found, config)


def add_windows(found: ModelSpec, config: Config) -> ModelSpec:
    """With use_sliding_window, the layers from max_window_layers on see a window."""
    if not read_flag(config, "use_sliding_window"):
        return found
    first = read_integer(config, "max_window_layers", 28)
    return add_sliding_window(found, config, lambda i: i >= first)


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    return make_decoder_plan(spec, TensorNames(), files)
