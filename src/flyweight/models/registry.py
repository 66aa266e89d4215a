"""Which families there are: `model_type` of a config.json to its spec and weight plan.

Adding a family is one short file beside this one and a line in `FAMILIES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flyweight.errors import CheckpointError
from flyweight.models import (
    cohere,
    deepseek2,
    deepseek3,
    ernie4_5,
    exaone,
    exaone4,
    gemma,
    gemma2,
    gemma3,
    glm4,
    gpt2,
    gpt_neox,
    gpt_oss,
    granite,
    llama,
    llama4,
    minicpm,
    mistral,
    mixtral,
    olmo2,
    olmo3,
    opt,
    phi3,
    phi4_multimodal,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
    seed_oss,
    smollm3,
    stablelm,
    starcoder2,
)
from flyweight.spec import Files, ModelSpec, WeightPlan
from flyweight.untrusted import shown
from flyweight.weights.refused import explain


@dataclass(frozen=True, slots=True)
class Family:
    """How to read a config.json of this `model_type`, and which tensors the model takes."""

    spec: Callable[[Mapping[str, Any]], ModelSpec]
    plan: Callable[[ModelSpec, Files], WeightPlan]


FAMILIES = {
    "cohere": Family(cohere.spec, cohere.plan),
    "cohere2": Family(cohere.windowed, cohere.plan),
    "deepseek_v2": Family(deepseek2.spec, deepseek2.plan),
    "deepseek_v3": Family(deepseek3.spec, deepseek3.plan),
    "ernie4_5": Family(ernie4_5.spec, ernie4_5.plan),
    "exaone": Family(exaone.spec, exaone.plan),
    "exaone4": Family(exaone4.spec, exaone4.plan),
    "gemma": Family(gemma.spec, gemma.plan),
    "gemma2": Family(gemma2.spec, gemma2.plan),
    "gemma3": Family(gemma3.spec, gemma3.plan),
    "gemma3_text": Family(gemma3.spec, gemma3.plan),
    "glm": Family(glm4.glm, glm4.plan),
    "glm4": Family(glm4.glm4, glm4.plan),
    "gpt2": Family(gpt2.spec, gpt2.plan),
    "gpt_neox": Family(gpt_neox.spec, gpt_neox.plan),
    "gpt_oss": Family(gpt_oss.spec, gpt_oss.plan),
    "granite": Family(granite.spec, granite.plan),
    "kimi_k2": Family(deepseek3.spec, deepseek3.plan),
    "llama": Family(llama.spec, llama.plan),
    "llama4": Family(llama4.spec, llama4.plan),
    "llama4_text": Family(llama4.spec, llama4.plan),
    "minicpm": Family(minicpm.spec, minicpm.plan),
    "mistral": Family(mistral.spec, mistral.plan),
    "mixtral": Family(mixtral.spec, mixtral.plan),
    "olmo2": Family(olmo2.spec, olmo2.plan),
    "olmo3": Family(olmo3.spec, olmo3.plan),
    "opt": Family(opt.spec, opt.plan),
    "phi3": Family(phi3.spec, phi3.plan),
    "phi4_multimodal": Family(phi4_multimodal.spec, phi4_multimodal.plan),
    "phi4mm": Family(phi4_multimodal.spec, phi4_multimodal.plan),
    "qwen2": Family(qwen2.spec, qwen2.plan),
    "qwen2_moe": Family(qwen2_moe.spec, qwen2_moe.plan),
    "qwen3": Family(qwen3.spec, qwen3.plan),
    "qwen3_moe": Family(qwen3_moe.spec, qwen3_moe.plan),
    "seed_oss": Family(seed_oss.spec, seed_oss.plan),
    "smollm3": Family(smollm3.spec, smollm3.plan),
    "stablelm": Family(stablelm.spec, stablelm.plan),
    "starcoder2": Family(starcoder2.spec, starcoder2.plan),
}


NAMELESS = {"MiniCPMForCausalLM": "minicpm"}  # published without a model_type


def family(config: Mapping[str, Any]) -> Family:
    """The family of a config, or `CheckpointError` listing those there are."""
    name = config.get("model_type")
    if name is None:
        name = _by_class(config)
    if not isinstance(name, str) or name not in FAMILIES:
        raise CheckpointError(
            f"model_type = {shown(name)} is not supported{explain(name)}; "
            f"known: {', '.join(FAMILIES)}"
        )
    _judge_quantisation(config, name)
    return FAMILIES[name]


def _by_class(config: Mapping[str, Any]) -> str | None:
    """The family of a config without a model_type, by its class."""
    classes = config.get("architectures")
    first = classes[0] if isinstance(classes, list) and classes else None
    return NAMELESS.get(first) if isinstance(first, str) else None


def _judge_quantisation(config: Mapping[str, Any], name: str) -> None:
    """gpt-oss's MXFP4 alone is read as published."""
    found = config.get("quantization_config")
    method = found.get("quant_method") if isinstance(found, Mapping) else found
    if found and (name, method) != ("gpt_oss", "mxfp4"):
        raise CheckpointError(
            f"config: quantization_config of {shown(method)} is not supported yet for "
            f"{name}; use the unquantised files or a GGUF"
        )
