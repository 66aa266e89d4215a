"""DeepSeek-V2 and V2-Lite (2024): multi-head latent attention, shared and routed experts after the
first layers.
"""

from dataclasses import replace

from flyweight.errors import CheckpointError
from flyweight.models.config import Config, read_choice, read_flag, read_integer, read_real, refuse
from flyweight.models.latent import Latent
from flyweight.models.mixture import MoeNames
from flyweight.models.plans import TensorNames, change_layers, make_decoder_plan, make_gated_spec
from flyweight.models.rope import compute_yarn_mscale, read_rope_spec
from flyweight.spec import (
    Files,
    KVGroup,
    LatentSpec,
    LayerSpec,
    ModelSpec,
    MoeSpec,
    RouteSpec,
    WeightPlan,
)

NAMES = MoeNames(shared="mlp.shared_experts")
CHOOSING = {"greedy": "", "group_limited_greedy": "groups"}


def spec(config: Config) -> ModelSpec:
    """A `DeepseekV2ForCausalLM` config.json."""
    return make_latent_spec(config, "deepseek_v2", _read_moe(config))


def make_latent_spec(config: Config, family: str, moe: MoeSpec) -> ModelSpec:
    """A decoder with latent attention, and the mixture after its first layers."""
    refuse(config, "moe_layer_freq", 1)
    refuse(config, "attention_bias", False)
    latent = LatentSpec(
        rank=read_integer(config, "kv_lora_rank", 512),
        rope=read_integer(config, "qk_rope_head_dim", 64),
        plain=read_integer(config, "qk_nope_head_dim", 128),
        value=read_integer(config, "v_head_dim", 128),
        q_rank=read_integer(config, "q_lora_rank") if config.get("q_lora_rank") else 0,
    )
    head = latent.rope + latent.plain
    found = make_gated_spec({**config, "head_dim": head}, family)
    rope = read_rope_spec(config, latent.rope)
    first = read_integer(config, "first_k_dense_replace", 0, least=0)
    width = latent.rank + latent.rope

    def change(i: int, layer: LayerSpec) -> LayerSpec:
        layer = replace(layer, kv=KVGroup(1, width, latent.rank, v_in_k=True), latent=latent)
        return replace(layer, scale=_scale(config, head), moe=moe if i >= first else None)

    return replace(change_layers(found, change), ropes=(rope,))


def _scale(config: Config, head: int) -> float:
    """YaRN's correction of the scores is here, where both mscales are given."""
    nested = config.get("rope_parameters") or config.get("rope_scaling") or {}
    scale = float(head**-0.5)
    if nested.get("mscale_all_dim"):
        stretch, all_dim = (
            read_real(nested, "factor", 1.0),
            read_real(nested, "mscale_all_dim", 1.0),
        )
        scale *= compute_yarn_mscale(stretch, all_dim) ** 2
    return scale


def _read_moe(config: Config) -> MoeSpec:
    refuse(config, "scoring_func", "softmax")
    count, top = (
        read_integer(config, "n_routed_experts", 64),
        read_integer(config, "num_experts_per_tok", 6),
    )
    inner = read_integer(config, "moe_intermediate_size", 1408)
    grouped = read_choice(config, "topk_method", CHOOSING, "greedy")
    groups = read_integer(config, "n_group", 1) if grouped else 1
    kept = read_integer(config, "topk_group", 1) if grouped else 1
    judge_groups(count, top, groups, kept)
    scale = read_real(config, "routed_scaling_factor", 1.0)
    route = RouteSpec(
        count, top, "softmax", read_flag(config, "norm_topk_prob"), scale, groups, kept
    )
    return MoeSpec(route, inner, inner * read_integer(config, "n_shared_experts", 2))


def judge_groups(count: int, top: int, groups: int, kept: int) -> None:
    """`CheckpointError` where the kept groups do not hold the experts to be chosen."""
    if count % groups or kept > groups or top > count // groups * kept:
        raise CheckpointError(
            f"config: {top} of {count} experts cannot be chosen from {kept} of {groups} groups"
        )


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    return make_decoder_plan(spec, TensorNames(), files, blocks=Latent(spec.hidden, NAMES, files))
