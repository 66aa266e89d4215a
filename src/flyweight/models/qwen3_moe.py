"""Qwen3-MoE (Yang et al., 2025): Qwen3 with experts on most layers."""

from dataclasses import replace

from flyweight.errors import CheckpointError
from flyweight.models import qwen3
from flyweight.models.config import Config, read_flag, read_integer
from flyweight.models.mixture import Experts, MoeNames
from flyweight.models.plans import TensorNames, change_layers, make_decoder_plan
from flyweight.spec import Files, LayerSpec, ModelSpec, MoeSpec, RouteSpec, WeightPlan
from flyweight.validation.untrusted import shown


def spec(config: Config) -> ModelSpec:
    """A `Qwen3MoeForCausalLM` config.json."""
    count = read_integer(config, "num_experts", read_integer(config, "num_local_experts", 128))
    route = read_routing(config, count, 8)
    moe = MoeSpec(route, read_integer(config, "moe_intermediate_size", 768))
    return add_moe(qwen3.spec(config, "qwen3_moe"), config, moe)


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


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    blocks = Experts(spec.hidden, MoeNames(), files)
    return make_decoder_plan(spec, TensorNames(), files, blocks=blocks)
