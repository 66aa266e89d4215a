"""DeepSeek-V3 and R1 (2024, 2025) and Kimi K2, which has the same code: DeepSeek-V2's latent
attention, and experts scored one by one with a sigmoid, chosen with a bias that only chooses.
"""

from dataclasses import replace

from flyweight.errors import CheckpointError
from flyweight.models import deepseek2
from flyweight.models.config import (
    Config,
    fill_defaults,
    read_flag,
    read_integer,
    read_real,
    refuse,
)
from flyweight.spec import Files, ModelSpec, MoeSpec, RouteSpec, WeightPlan

USUAL = {  # what transformers fills in
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


def spec(config: Config) -> ModelSpec:
    """A `DeepseekV3ForCausalLM` config.json, of model_type deepseek_v3 or kimi_k2."""
    whole = fill_defaults(config, USUAL)
    refuse(whole, "rope_interleave", True)
    return deepseek2.make_latent_spec(whole, "deepseek_v3", _read_moe(whole))


def _read_moe(config: Config) -> MoeSpec:
    refuse(config, "scoring_func", "sigmoid")
    refuse(config, "topk_method", "noaux_tc")
    count, top = (
        read_integer(config, "n_routed_experts"),
        read_integer(config, "num_experts_per_tok"),
    )
    groups, kept = read_integer(config, "n_group"), read_integer(config, "topk_group")
    deepseek2.judge_groups(count, top, groups, kept)
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
    """The decoder's tensors; the layer that predicts a second token (MTP) is not read."""
    found = deepseek2.plan(spec, files)
    after = f"model.layers.{len(spec.layers)}."
    if f"{after}eh_proj.weight" in files.names:
        found = replace(found, ignored=(*found.ignored, f"{after}*"))
    return found
