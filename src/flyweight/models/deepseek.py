"""DeepSeek-V2, V3 and R1, and Kimi K2 (2024, 2025): multi-head latent attention, shared and routed
experts after the first layers.

V3 scores experts one by one with a sigmoid, and chooses them with a bias that only chooses; Kimi K2
has the same code. Invariant: slot `k_up.{h}` takes head h's plain query to the latent, `v_up.{h}`
the latent to its value; both come of kv_b_proj, whose rows are each head's keys, then its values.
"""

from dataclasses import dataclass, replace
from itertools import takewhile

from flyweight.errors import CheckpointError
from flyweight.models.config import (
    MAX_LAYERS,
    Config,
    fill_defaults,
    read_choice,
    read_flag,
    read_integer,
    read_real,
    refuse,
)
from flyweight.models.mixture import Experts, MoeNames
from flyweight.models.plans import (
    TensorNames,
    change_layers,
    make_decoder_plan,
    make_gated_spec,
    make_half_split_order,
    plan_linear,
    plan_vector,
)
from flyweight.models.rope import compute_yarn_mscale, read_rope_spec
from flyweight.spec import (
    Files,
    KVGroup,
    LatentSpec,
    LayerSpec,
    ModelSpec,
    MoeSpec,
    RouteSpec,
    SlotPlan,
    Source,
    WeightPlan,
)

NAMES = MoeNames(shared="mlp.shared_experts")
V3_USUAL = {  # what transformers fills in
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "routed_scaling_factor": 2.5,
    "n_group": 8,
    "topk_group": 4,
    "first_k_dense_replace": 3,
    "norm_topk_prob": True,
}
JUDGES = 2  # experts whose scores, added up, are their group's
CHOOSING = {"greedy": "", "group_limited_greedy": "groups"}


def read_deepseek2(config: Config) -> ModelSpec:
    """A `DeepseekV2ForCausalLM` config.json."""
    return make_latent_spec(config, "deepseek_v2", _read_grouped_moe(config))


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
        return replace(layer, scale=_read_scale(config, head), moe=moe if i >= first else None)

    return replace(change_layers(found, change), ropes=(rope,))


def _read_scale(config: Config, head: int) -> float:
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


def _read_grouped_moe(config: Config) -> MoeSpec:
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


def read_deepseek3(config: Config) -> ModelSpec:
    """A `DeepseekV3ForCausalLM` config.json, of model_type deepseek_v3 or kimi_k2."""
    whole = fill_defaults(config, V3_USUAL)
    refuse(whole, "rope_interleave", True)
    return make_latent_spec(whole, "deepseek_v3", _read_sigmoid_moe(whole))


def _read_sigmoid_moe(config: Config) -> MoeSpec:
    refuse(config, "scoring_func", "sigmoid")
    refuse(config, "topk_method", "noaux_tc")
    count, top = (
        read_integer(config, "n_routed_experts"),
        read_integer(config, "num_experts_per_tok"),
    )
    groups, kept = read_integer(config, "n_group"), read_integer(config, "topk_group")
    judge_groups(count, top, groups, kept)
    if groups > 1 and count // groups < JUDGES:
        raise CheckpointError(
            f"config: n_group = {groups} leaves groups of one expert; a group is judged by its "
            f"best {JUDGES}; nearest valid: {max(1, count // JUDGES)}"
        )
    route = RouteSpec(
        count,
        top,
        "sigmoid",
        read_flag(config, "norm_topk_prob"),
        read_real(config, "routed_scaling_factor", 1.0),
        groups,
        kept,
        JUDGES if groups > 1 else 1,
        corrected=True,
    )
    inner = read_integer(config, "moe_intermediate_size")
    return MoeSpec(route, inner, inner * read_integer(config, "n_shared_experts"))


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    """The decoder's tensors; layers that predict further tokens (MTP) are not read."""
    found = make_decoder_plan(spec, TensorNames(), files, blocks=Latent(spec.hidden, NAMES, files))
    after = (f"model.layers.{i}." for i in range(len(spec.layers), MAX_LAYERS))
    carried = takewhile(lambda at: f"{at}eh_proj.weight" in files.names, after)
    return replace(found, ignored=(*found.ignored, *(f"{at}*" for at in carried)))


@dataclass(frozen=True, slots=True)
class Latent(Experts):
    """Slots of latent attention.  The rotated rows, published last of each head and interleaved, go
    first; kv_b's rows are each head's way into the latent, transposed, and out of it.
    """

    def plan_attention(self, at: str, src: str, layer: LayerSpec) -> list[SlotPlan]:
        latent, heads, n = layer.latent, layer.heads, src + "self_attn."
        assert latent is not None
        slots, columns, module = [], self.hidden, "q_proj"
        if latent.q_rank:
            down = ((n + "q_a_proj", latent.q_rank),)
            slots += [
                plan_linear(at + "q_down", self.hidden, down),
                plan_vector(at + "q_down_norm", n + "q_a_layernorm.weight", latent.q_rank),
            ]
            columns, module = latent.q_rank, "q_b_proj"
        query = ((n + module, heads * (latent.rope + latent.plain)),)
        width = ((n + "kv_a_proj_with_mqa", latent.rank + latent.rope),)
        slots += [
            plan_linear(at + "q", columns, query, order=_make_order(latent.plain, latent.rope)),
            plan_linear(
                at + "kv_down", self.hidden, width, order=_make_order(latent.rank, latent.rope)
            ),
            plan_vector(at + "kv_norm", n + "kv_a_layernorm.weight", latent.rank),
            *self._plan_heads(at, n, layer),
            plan_linear(at + "out", heads * latent.value, ((n + "o_proj", self.hidden),)),
        ]
        return slots

    def _plan_heads(self, at: str, n: str, layer: LayerSpec) -> list[SlotPlan]:
        latent, heads = layer.latent, layer.heads
        assert latent is not None
        plain, value, rank = latent.plain, latent.value, latent.rank
        slots = []
        for h in range(heads):
            if f"{n}k_b_proj.weight" in self.files.names:  # converters part and transpose kv_b
                k = Source(f"{n}k_b_proj.weight", (heads, rank, plain), rank, h * rank)
                v = Source(f"{n}v_b_proj.weight", (heads, value, rank), value, h * value)
            else:
                shape, start = (heads * (plain + value), rank), h * (plain + value)
                k = Source(f"{n}kv_b_proj.weight", shape, plain, start, transposed=True)
                v = Source(f"{n}kv_b_proj.weight", shape, value, start + plain)
            slots.append(SlotPlan(f"{at}k_up.{h}", (rank, plain), (k,)))
            slots.append(SlotPlan(f"{at}v_up.{h}", (value, rank), (v,)))
        return slots


def _make_order(plain: int, turned: int) -> tuple[int, ...]:
    """The order that puts the last `turned` rows first, and half-split."""
    return (*(plain + i for i in make_half_split_order(turned)), *range(plain))
