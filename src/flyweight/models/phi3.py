"""Phi-3 and Phi-4 (Abdin et al., 2024): a Llama with q, k and v in one matrix, gate and up in
another, and longrope for long contexts.
"""

from flyweight.models.config import Config
from flyweight.models.plans import (
    TensorNames,
    add_sliding_window,
    make_decoder_plan,
    make_gated_spec,
)
from flyweight.spec import Files, ModelSpec, WeightPlan

NAMES = TensorNames(qkv=("self_attn.qkv_proj",), up=("mlp.gate_up_proj",))


def spec(config: Config) -> ModelSpec:
    """A `Phi3ForCausalLM` config.json."""
    return add_sliding_window(make_gated_spec(config, "phi3"), config, lambda i: True)


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    return make_decoder_plan(spec, NAMES, files)
