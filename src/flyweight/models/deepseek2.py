"""DeepSeek-V2 and V2-Lite (2024): multi-head latent attention, shared and routed experts after the
first layers.
"""

from dataclasses import replace

from flyweight.errors import CheckpointError
from flyweight.models.config import Config, flag, integer, known, real, refuse
from flyweight.models.latent import Latent
from flyweight.models.mixture import MoeNames
from flyweight.models.plans import TensorNames, decoder_plan, each, gated_decoder
from flyweight.models.rope import rope_spec, yarn_mscale
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
    return latent_decoder(config, "deepseek_v2", _mixture(config))


def latent_decoder(config: Config, family: str, moe: MoeSpec) -> ModelSpec:
    """A decoder with latent attention, and the mixture after its first layers."""
    refuse(config, "moe_layer_freq", 1)
    refuse(config, "attention_bias", False)
    latent = LatentSpec(
        rank=integer(config, "kv_lora_rank", 512),
        rope=integer(config, "qk_rope_head_dim", 64),
        plain=integer(config, "qk_nope_head_dim", 128),
        value=integer(config, "v_head_dim", 128),
        q_rank=integer(config, "q_lora_rank") if config.get("q_lora_rank") else 0,
    )
    head = latent.rope + latent.plain
    found = gated_decoder({**config, "head_dim": head}, family)
    rope = rope_spec(config, latent.rope)
    first = integer(config, "first_k_dense_replace", 0, least=0)
    width = latent.rank + latent.rope

    def change(i: int, layer: LayerSpec) -> LayerSpec:
        layer = replace(layer, kv=KVGroup(1, width, latent.rank, v_in_k=True), latent=latent)
        return replace(layer, scale=_scale(config, head), moe=moe if i >= first else None)

    return replace(each(found, change), ropes=(rope,))


def _scale(config: Config, head: int) -> float:
    """YaRN's correction of the scores is here, where both mscales are given."""
    nested = config.get("rope_parameters") or config.get("rope_scaling") or {}
    scale = float(head**-0.5)
    if nested.get("mscale_all_dim"):
        stretch, all_dim = real(nested, "factor", 1.0), real(nested, "mscale_all_dim", 1.0)
        scale *= yarn_mscale(stretch, all_dim) ** 2
    return scale


def _mixture(config: Config) -> MoeSpec:
    refuse(config, "scoring_func", "softmax")
    count, top = integer(config, "n_routed_experts", 64), integer(config, "num_experts_per_tok", 6)
    inner = integer(config, "moe_intermediate_size", 1408)
    grouped = known(config, "topk_method", CHOOSING, "greedy")
    groups = integer(config, "n_group", 1) if grouped else 1
    kept = integer(config, "topk_group", 1) if grouped else 1
    judge_groups(count, top, groups, kept)
    scale = real(config, "routed_scaling_factor", 1.0)
    route = RouteSpec(count, top, "softmax", flag(config, "norm_topk_prob"), scale, groups, kept)
    return MoeSpec(route, inner, inner * integer(config, "n_shared_experts", 2))


def judge_groups(count: int, top: int, groups: int, kept: int) -> None:
    """`CheckpointError` where the kept groups do not hold the experts to be chosen."""
    if count % groups or kept > groups or top > count // groups * kept:
        raise CheckpointError(
            f"config: {top} of {count} experts cannot be chosen from {kept} of {groups} groups"
        )


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    return decoder_plan(spec, TensorNames(), files, blocks=Latent(spec.hidden, NAMES, files))
