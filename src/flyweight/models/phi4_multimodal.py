"""Phi-4-multimodal (2025), its text part: a Phi-4-mini in a checkpoint that holds a vision and an
audio encoder, and a LoRA adapter for each, which text alone does not use.
"""

from dataclasses import replace

from flyweight.models import phi3
from flyweight.models.config import Config, refuse
from flyweight.models.plans import make_decoder_plan
from flyweight.spec import Files, ModelSpec, WeightPlan

ADAPTED = ".base_layer.weight"
BASES = replace(  # where adapters lie beside the matrices
    phi3.NAMES,
    qkv=("self_attn.qkv_proj.base_layer",),
    out="self_attn.o_proj.base_layer",
    up=("mlp.gate_up_proj.base_layer",),
    down="mlp.down_proj.base_layer",
)
OTHERS = ("model.embed_tokens_extend.*", "*.lora_A.*", "*.lora_B.*")


def spec(config: Config) -> ModelSpec:
    """A `Phi4MMForCausalLM` config.json, as published, or transformers' own
    `Phi4MultimodalForCausalLM`.
    """
    for key in ("attention_bias", "mlp_bias", "lm_head_bias"):
        refuse(config, key, False)
    return phi3.spec(config)


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    """The text model's tensors; encoders and adapters are not read."""
    adapted = any(name.endswith(ADAPTED) for name in files.names)
    found = make_decoder_plan(spec, BASES if adapted else phi3.NAMES, files)
    return replace(found, ignored=found.ignored + OTHERS)
