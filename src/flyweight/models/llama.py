"""Llama 1, 2 and 3.x (Touvron et al., 2023; Dubey et al., 2024): the plain gated decoder, grouped
queries, llama3 rope.
"""

from dataclasses import replace

from flyweight.models.config import Config, read_flag
from flyweight.models.plans import (
    TensorNames,
    change_layers,
    make_decoder_plan,
    make_gated_spec,
    make_half_split_order,
)
from flyweight.spec import Files, LayerSpec, ModelSpec, WeightPlan


def spec(config: Config) -> ModelSpec:
    """A `LlamaForCausalLM` config.json; `attention_bias` biases q, k, v and o, `mlp_bias` the three
    MLP matrices.
    """
    return add_biases(make_gated_spec(config, "llama"), config)


def add_biases(found: ModelSpec, config: Config) -> ModelSpec:
    """The spec with the biases its config asks for."""
    bias, mlp = read_flag(config, "attention_bias"), read_flag(config, "mlp_bias")

    def change(_: int, layer: LayerSpec) -> LayerSpec:
        return replace(layer, attn_bias=bias, out_bias=bias, mlp_bias=mlp)

    return change_layers(found, change)


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    """GGUF's converters put the rows of q's and k's heads into the interleaved rope order."""
    turn = make_half_split_order(spec.layers[0].head) if files.converted else ()
    return make_decoder_plan(spec, TensorNames(), files, turn)
