"""Command-R and Aya (Cohere, 2024): attention and MLP of one LayerNorm without biases, heads
rotated in adjacent pairs, scaled logits.  Command-R7B and Command-A (`cohere2`) have a window on
three of four layers and no positions on the others.
"""

from dataclasses import replace

from flyweight.models.config import Config, filled, flag, integer, real
from flyweight.models.plans import (
    TensorNames,
    decoder_plan,
    each,
    gated_decoder,
    interleaved,
    layer_kinds,
    sliding,
)
from flyweight.spec import Files, LayerSpec, ModelSpec, NormSpec, WeightPlan

NAMES = TensorNames(mlp_norm="")


def spec(config: Config) -> ModelSpec:
    """A `CohereForCausalLM` config.json; model_max_length, where it is given, is the context.
    Command-R+ has use_qk_norm: a LayerNorm for each head of q and k.
    """
    found = _parallel(filled(config, {"rope_theta": 500000.0}), "cohere")
    norm = "centred" if flag(config, "use_qk_norm") else ""
    return each(found, lambda _, layer: replace(layer, qk_norm=norm))


def windowed(config: Config) -> ModelSpec:
    """A `Cohere2ForCausalLM` config.json; sliding_window_pattern n makes every nth layer full."""
    config = {"sliding_window": 4096, **config}
    found = _parallel(config, "cohere2")
    every = integer(config, "sliding_window_pattern", 4)
    kinds = layer_kinds(found, config, lambda i: (i + 1) % every != 0)
    found = sliding(found, {**config, "layer_types": kinds}, lambda i: True)
    return each(found, lambda _, layer: replace(layer, rope=0 if layer.kv.window else None))


def _parallel(config: Config, family: str) -> ModelSpec:
    config = filled(config, {"tie_word_embeddings": True})
    if config.get("model_max_length") is not None:
        config["max_position_embeddings"] = config["model_max_length"]
    bias = flag(config, "attention_bias")

    def change(_: int, layer: LayerSpec) -> LayerSpec:
        return replace(layer, attn_bias=bias, out_bias=bias)

    return replace(
        each(gated_decoder(config, family), change),
        norm=NormSpec(real(config, "layer_norm_eps", 1e-5), "layer"),
        logit_scale=real(config, "logit_scale", 0.0625),
        parallel=True,
    )


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    """GGUF keeps the interleaved order of q and k."""
    return decoder_plan(spec, NAMES, files, interleaved(spec))
