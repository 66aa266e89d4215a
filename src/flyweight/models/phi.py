"""Phi-3 and Phi-4 (Abdin et al., 2024): a Llama with q, k and v in one matrix, gate and up in
another, and longrope for long contexts.

Of Phi-4-multimodal (2025) the text part: a Phi-4-mini in a checkpoint that holds a vision and an
audio encoder, and a LoRA adapter for each, which text alone does not use.
"""

from dataclasses import replace

from flyweight.models.config import Config, refuse
from flyweight.models.plans import (
    TensorNames,
    add_sliding_window,
    make_decoder_plan,
    make_gated_spec,
)
from flyweight.spec import Files, ModelSpec, WeightPlan

NAMES = TensorNames(qkv=("self_attn.qkv_proj",), up=("mlp.gate_up_proj",))


ADAPTED = ".base_layer.weight"
BASES = replace(  # where adapters are next to the matrices
    NAMES,
    qkv=("self_attn.qkv_proj.base_layer",),
    out="self_attn.o_proj.base_layer",
    up=("mlp.gate_up_proj.base_layer",),
    down="mlp.down_proj.base_layer",
)
OTHERS = ("model.embed_tokens_extend.*", "*.lora_A.*", "*.lora_B.*")


def read_phi3(config: Config) -> ModelSpec:
    """A `Phi3ForCausalLM` config.json."""
    return add_sliding_window(make_gated_spec(config, "phi3"), config, lambda i: True)


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    return make_decoder_plan(spec, NAMES, files)


def read_phi4_multimodal(config: Config) -> ModelSpec:
    """A `Phi4MMForCausalLM` config.json, as published, or transformers' own
    `Phi4MultimodalForCausalLM`.
    """
    for key in ("attention_bias", "mlp_bias", "lm_head_bias"):
        refuse(config, key, False)
    return read_phi3(config)


def plan_phi4_multimodal(spec: ModelSpec, files: Files) -> WeightPlan:
    """The text model's tensors; encoders and adapters are not read."""
    adapted = any(name.endswith(ADAPTED) for name in files.names)
    found = make_decoder_plan(spec, BASES if adapted else NAMES, files)
    return replace(found, ignored=found.ignored + OTHERS)
