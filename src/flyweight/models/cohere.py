"""Command-R and Aya (Cohere, 2024): attention and MLP of one LayerNorm without biases, heads
rotated in adjacent pairs, scaled logits.  Command-R7B and Command-A (`cohere2`) have a window on
three of four layers and no positions on the others.
"""

from dataclasses import replace

from flyweight.models.config import Config, fill_defaults, read_flag, read_integer, read_real
from flyweight.models.plans import (
    TensorNames,
    add_sliding_window,
    change_layers,
    make_decoder_plan,
    make_gated_spec,
    make_interleaved_order,
    read_layer_kinds,
)
from flyweight.spec import Files, LayerSpec, ModelSpec, NormSpec, WeightPlan

NAMES = TensorNames(mlp_norm="")


def read_cohere(config: Config) -> ModelSpec:
    """A `CohereForCausalLM` config.json; model_max_length, where it is given, is the context.
    Command-R+ has use_qk_norm: a LayerNorm for each head of q and k.
    """
    found = _make_parallel_spec(fill_defaults(config, {"rope_theta": 500000.0}), "cohere")
    norm = "centred" if read_flag(config, "use_qk_norm") else ""
    return change_layers(found, lambda _, layer: replace(layer, qk_norm=norm))


def read_cohere2(config: Config) -> ModelSpec:
    """A `Cohere2ForCausalLM` config.json; sliding_window_pattern n makes every nth layer full."""
    config = {"sliding_window": 4096, **config}
    found = _make_parallel_spec(config, "cohere2")
    every = read_integer(config, "sliding_window_pattern", 4)
    kinds = read_layer_kinds(found, config, lambda i: (i + 1) % every != 0)
    found = add_sliding_window(found, {**config, "layer_types": kinds}, lambda i: True)
    return change_layers(
        found, lambda _, layer: replace(layer, rope=0 if layer.kv.window else None)
    )


def _make_parallel_spec(config: Config, family: str) -> ModelSpec:
    config = fill_defaults(config, {"tie_word_embeddings": True})
    if config.get("model_max_length") is not None:
        config["max_position_embeddings"] = config["model_max_length"]
    bias = read_flag(config, "attention_bias")

    def change(_: int, layer: LayerSpec) -> LayerSpec:
        return replace(layer, attn_bias=bias, out_bias=bias)

    return replace(
        change_layers(make_gated_spec(config, family), change),
        norm=NormSpec(read_real(config, "layer_norm_eps", 1e-5), "layer"),
        logit_scale=read_real(config, "logit_scale", 0.0625),
        parallel=True,
    )


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    """GGUF keeps the interleaved order of q and k."""
    return make_decoder_plan(spec, NAMES, files, make_interleaved_order(spec))
