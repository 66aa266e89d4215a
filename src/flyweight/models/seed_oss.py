"""Seed-OSS (ByteDance, 2025): a Llama with biased q, k and v, and a head size free of
hidden / heads.
"""

from dataclasses import replace

from flyweight.models import qwen2
from flyweight.models.config import Config, read_flag
from flyweight.models.plans import change_layers, make_gated_spec
from flyweight.spec import ModelSpec

plan = qwen2.plan


def spec(config: Config) -> ModelSpec:
    """A `SeedOssForCausalLM` config.json; o has a bias setting of its own."""
    bias, mlp = read_flag(config, "attention_bias", True), read_flag(config, "mlp_bias")
    out = read_flag(config, "attention_out_bias")
    return change_layers(
        make_gated_spec({"head_dim": 128, "num_key_value_heads": 8, **config}, "seed_oss"),
        lambda _, layer: replace(layer, attn_bias=bias, out_bias=out, mlp_bias=mlp),
    )
