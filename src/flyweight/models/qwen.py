"""Qwen2 and 2.5, Qwen3, and the mixtures Qwen2-MoE (also Qwen1.5-MoE) and Qwen3-MoE (Alibaba, 2024
and 2025).

Qwen2 is a Llama with biased queries, keys and values; Qwen3 norms each head before the rotation,
and its head size is free of hidden / heads. The mixtures have experts on most layers.
"""

from dataclasses import replace

from flyweight.errors import CheckpointError
from flyweight.models.config import Config, fill_defaults, read_flag, read_integer
from flyweight.models.mixture import Experts, MoeNames
from flyweight.models.plans import (
    TensorNames,
    add_sliding_window,
    change_layers,
    make_decoder_plan,
    make_gated_spec,
)
from flyweight.spec import Files, LayerSpec, ModelSpec, MoeSpec, RouteSpec, WeightPlan
from flyweight.validation.untrusted import shown


def read_qwen2(config: Config) -> ModelSpec:
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


def read_qwen3(config: Config, family: str = "qwen3") -> ModelSpec:
    """A `Qwen3ForCausalLM` config.json; a head_dim left out is 128, as published."""
    bias = read_flag(config, "attention_bias")
    whole = fill_defaults(config, {"head_dim": 128})
    found = change_layers(
        make_gated_spec(whole, family),
        lambda _, layer: replace(layer, qk_norm="head", attn_bias=bias, out_bias=bias),
    )
    return add_windows(found, config)


def read_qwen3_moe(config: Config) -> ModelSpec:
    """A `Qwen3MoeForCausalLM` config.json."""
    count = read_integer(config, "num_experts", read_integer(config, "num_local_experts", 128))
    route = read_routing(config, count, 8)
    moe = MoeSpec(route, read_integer(config, "moe_intermediate_size", 768))
    return add_moe(read_qwen3(config, "qwen3_moe"), config, moe)


def read_routing(config: Config, count: int, usual: int) -> RouteSpec:
    """Softmax over all experts, of which the best take part."""
    top = read_integer(config, "num_experts_per_tok", usual)
    if top > count:
        raise CheckpointError(
            f"config: num_experts_per_tok = {top} of {count} experts; nearest valid: {count}"
        )
    return RouteSpec(count, top, "softmax", read_flag(config, "norm_topk_prob"))


def add_moe(found: ModelSpec, config: Config, moe: MoeSpec) -> ModelSpec:
    """The spec with experts on every decoder_sparse_step-th layer that mlp_only_layers spares."""
    step, dense = (
        read_integer(config, "decoder_sparse_step", 1),
        config.get("mlp_only_layers") or [],
    )
    if not isinstance(dense, list):
        raise CheckpointError(f"config: mlp_only_layers = {shown(dense)}; a list is needed")

    def change(i: int, layer: LayerSpec) -> LayerSpec:
        return layer if i in dense or (i + 1) % step else replace(layer, moe=moe)

    return change_layers(found, change)


def read_qwen2_moe(config: Config) -> ModelSpec:
    """A `Qwen2MoeForCausalLM` config.json."""
    bias = read_flag(config, "qkv_bias", True)
    found = make_gated_spec(config, "qwen2_moe")
    found = add_windows(change_layers(found, lambda _, x: replace(x, attn_bias=bias)), config)
    moe = MoeSpec(
        read_routing(config, read_integer(config, "num_experts", 60), 4),
        read_integer(config, "moe_intermediate_size", 1408),
        read_integer(config, "shared_expert_intermediate_size", 5632),
        shared_gate=True,
    )
    return add_moe(found, config, moe)


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    blocks = Experts(spec.hidden, MoeNames(), files)
    return make_decoder_plan(spec, TensorNames(), files, blocks=blocks)
