"""Qwen2-MoE and Qwen1.5-MoE (2024): Qwen2 with experts, and a shared one behind a gate."""

from dataclasses import replace

from flyweight.models import qwen2, qwen3_moe
from flyweight.models.config import Config, flag, integer
from flyweight.models.plans import each, gated_decoder
from flyweight.spec import ModelSpec, MoeSpec

plan = qwen3_moe.plan


def spec(config: Config) -> ModelSpec:
    """A `Qwen2MoeForCausalLM` config.json."""
    bias = flag(config, "qkv_bias", True)
    found = gated_decoder(config, "qwen2_moe")
    found = qwen2.windows(each(found, lambda _, x: replace(x, attn_bias=bias)), config)
    moe = MoeSpec(
        qwen3_moe.routing(config, integer(config, "num_experts", 60), 4),
        integer(config, "moe_intermediate_size", 1408),
        integer(config, "shared_expert_intermediate_size", 5632),
        shared_gate=True,
    )
    return qwen3_moe.mixed(found, config, moe)
