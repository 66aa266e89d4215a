"""Qwen2-MoE and Qwen1.5-MoE (2024): Qwen2 with experts, and a shared one behind a gate."""

from dataclasses import replace

from flyweight.models import qwen2, qwen3_moe
from flyweight.models.config import Config, read_flag, read_integer
from flyweight.models.plans import change_layers, make_gated_spec
from flyweight.spec import ModelSpec, MoeSpec

plan = qwen3_moe.plan


def spec(config: Config) -> ModelSpec:
    """A `Qwen2MoeForCausalLM` config.json."""
    bias = read_flag(config, "qkv_bias", True)
    found = make_gated_spec(config, "qwen2_moe")
    found = qwen2.add_windows(change_layers(found, lambda _, x: replace(x, attn_bias=bias)), config)
    moe = MoeSpec(
        qwen3_moe.read_routing(config, read_integer(config, "num_experts", 60), 4),
        read_integer(config, "moe_intermediate_size", 1408),
        read_integer(config, "shared_expert_intermediate_size", 5632),
        shared_gate=True,
    )
    return qwen3_moe.add_moe(found, config, moe)
