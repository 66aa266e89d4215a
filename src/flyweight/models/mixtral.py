"""Mixtral (Jiang et al., 2024): Mistral with eight experts, two a token."""

from dataclasses import replace

from flyweight.models.config import Config, filled, integer
from flyweight.models.mixture import Experts, MoeNames
from flyweight.models.plans import (
    TensorNames,
    decoder_plan,
    each,
    gated_decoder,
    half_split,
    sliding,
)
from flyweight.spec import Files, ModelSpec, MoeSpec, RouteSpec, WeightPlan

NAMES = MoeNames("block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2")


def spec(config: Config) -> ModelSpec:
    """A `MixtralForCausalLM` config.json."""
    found = gated_decoder(filled(config, {"rope_theta": 1e6}), "mixtral")
    count, top = integer(config, "num_local_experts", 8), integer(config, "num_experts_per_tok", 2)
    moe = MoeSpec(RouteSpec(count, min(top, count), "chosen"), found.layers[0].inner)
    found = each(found, lambda _, layer: replace(layer, moe=moe))
    return sliding(found, config, lambda i: True)


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    """GGUF calls it a llama, and turns its heads."""
    turn = half_split(spec.layers[0].head) if files.converted else ()
    return decoder_plan(spec, TensorNames(), files, turn, blocks=Experts(spec.hidden, NAMES, files))
