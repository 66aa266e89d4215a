"""Mistral (Jiang et al., 2023): a Llama whose layers may see only the last `sliding_window`
positions; from version 0.2 on, all of them. Mixtral (2024) adds eight experts, two a token.
"""

from dataclasses import replace

from flyweight.models.config import Config, fill_defaults, read_integer
from flyweight.models.mixture import Experts, MoeNames
from flyweight.models.plans import (
    TensorNames,
    add_sliding_window,
    change_layers,
    make_decoder_plan,
    make_gated_spec,
    make_half_split_order,
)
from flyweight.spec import Files, ModelSpec, MoeSpec, RouteSpec, WeightPlan

EXPERT_NAMES = MoeNames("block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2")


def read_mistral(config: Config) -> ModelSpec:
    """A `MistralForCausalLM` config.json; no biases anywhere."""
    return add_sliding_window(make_gated_spec(config, "mistral"), config, lambda i: True)


def read_mixtral(config: Config) -> ModelSpec:
    """A `MixtralForCausalLM` config.json."""
    found = make_gated_spec(fill_defaults(config, {"rope_theta": 1e6}), "mixtral")
    count, top = (
        read_integer(config, "num_local_experts", 8),
        read_integer(config, "num_experts_per_tok", 2),
    )
    moe = MoeSpec(RouteSpec(count, min(top, count), "chosen"), found.layers[0].inner)
    found = change_layers(found, lambda _, layer: replace(layer, moe=moe))
    return add_sliding_window(found, config, lambda i: True)


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    """GGUF calls both a llama, and its converters turn the heads."""
    turn = make_half_split_order(spec.layers[0].head) if files.converted else ()
    return make_decoder_plan(
        spec, TensorNames(), files, turn, blocks=Experts(spec.hidden, EXPERT_NAMES, files)
    )
