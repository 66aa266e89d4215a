"""Llama 1, 2 and 3.x (Touvron et al., 2023; Dubey et al., 2024), the plain gated decoder with
grouped queries and llama3 rope; and the models that differ from it in a few settings.

These are Granite 3 (multipliers), MiniCPM (scales), SmolLM3 (no positions on every fourth layer),
Seed-OSS (biased q, k and v, a free head size) and the dense ERNIE 4.5 (heads rotated in adjacent
pairs, a bias on every matrix or on none).
"""

from dataclasses import replace

from flyweight.models.config import (
    Config,
    fill_defaults,
    read_flag,
    read_integer,
    read_layer_switches,
    read_real,
    refuse,
)
from flyweight.models.plans import (
    TensorNames,
    change_layers,
    make_decoder_plan,
    make_gated_spec,
    make_half_split_order,
    make_interleaved_order,
)
from flyweight.models.qwen import add_windows
from flyweight.spec import Files, LayerSpec, ModelSpec, WeightPlan

ERNIE_USUAL = {
    "head_dim": 128,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
}


def read_llama(config: Config) -> ModelSpec:
    """A `LlamaForCausalLM` config.json; `attention_bias` biases q, k, v and o, `mlp_bias` the three
    MLP matrices.
    """
    return add_biases(make_gated_spec(config, "llama"), config)


def add_biases(found: ModelSpec, config: Config) -> ModelSpec:
    """The spec with the biases that its config requests."""
    bias, mlp = read_flag(config, "attention_bias"), read_flag(config, "mlp_bias")

    def change(_: int, layer: LayerSpec) -> LayerSpec:
        return replace(layer, attn_bias=bias, out_bias=bias, mlp_bias=mlp)

    return change_layers(found, change)


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    """GGUF's converters put the rows of q's and k's heads into the interleaved rope order."""
    turn = make_half_split_order(spec.layers[0].head) if files.converted else ()
    return make_decoder_plan(spec, TensorNames(), files, turn)


def read_granite(config: Config) -> ModelSpec:
    """A `GraniteForCausalLM` config.json."""
    found = add_biases(make_gated_spec(config, "granite"), config)
    scale = read_real(config, "attention_multiplier", 1.0)
    return replace(
        change_layers(found, lambda _, layer: replace(layer, scale=scale)),
        embed_scale=read_real(config, "embedding_multiplier", 1.0),
        residual_scale=read_real(config, "residual_multiplier", 1.0),
        logit_scale=1 / read_real(config, "logits_scaling", 1.0),
    )


def read_minicpm(config: Config) -> ModelSpec:
    """A `MiniCPMForCausalLM` config.json, or the multipliers of a GGUF file, which are worked
    out; the mixtures of experts and sparse attention are refused.
    """
    refuse(config, "num_experts", 0)
    refuse(config, "sparse_config")
    found = add_biases(
        make_gated_spec(
            fill_defaults(config, {"tie_word_embeddings": True, "rms_norm_eps": 1e-5}), "minicpm"
        ),
        config,
    )
    depth = read_real(config, "scale_depth", 1.0) / len(found.layers) ** 0.5
    width = found.hidden / read_integer(config, "dim_model_base", 1)
    return replace(
        found,
        embed_scale=read_real(config, "embedding_multiplier", read_real(config, "scale_emb", 1.0)),
        residual_scale=read_real(config, "residual_multiplier", depth),
        logit_scale=1 / read_real(config, "logits_scaling", width),
    )


def read_smollm3(config: Config) -> ModelSpec:
    """A `SmolLM3ForCausalLM` config.json; no_rope_layers has a 1 where positions are."""
    filled = {"tie_word_embeddings": True, **config}
    found = add_biases(make_gated_spec(filled, "smollm3"), config)
    every, count = read_integer(config, "no_rope_layer_interval", 4), len(found.layers)
    turned = read_layer_switches(
        config, "no_rope_layers", [(i + 1) % every != 0 for i in range(count)]
    )
    found = change_layers(found, lambda i, layer: replace(layer, rope=0 if turned[i] else None))
    return add_windows(found, config)


def read_seed_oss(config: Config) -> ModelSpec:
    """A `SeedOssForCausalLM` config.json; o has a bias setting of its own."""
    bias, mlp = read_flag(config, "attention_bias", True), read_flag(config, "mlp_bias")
    out = read_flag(config, "attention_out_bias")
    return change_layers(
        make_gated_spec({"head_dim": 128, "num_key_value_heads": 8, **config}, "seed_oss"),
        lambda _, layer: replace(layer, attn_bias=bias, out_bias=out, mlp_bias=mlp),
    )


def plan_seed_oss(spec: ModelSpec, files: Files) -> WeightPlan:
    """GGUF keeps the order of q and k."""
    return make_decoder_plan(spec, TensorNames(), files)


def read_ernie4_5(config: Config) -> ModelSpec:
    """An `Ernie4_5ForCausalLM` config.json."""
    bias = read_flag(config, "use_bias")
    return change_layers(
        make_gated_spec({**ERNIE_USUAL, **config}, "ernie4_5"),
        lambda _, layer: replace(layer, attn_bias=bias, out_bias=bias, mlp_bias=bias),
    )


def plan_ernie4_5(spec: ModelSpec, files: Files) -> WeightPlan:
    """GGUF keeps the interleaved order of q and k."""
    return make_decoder_plan(spec, TensorNames(), files, make_interleaved_order(spec))
