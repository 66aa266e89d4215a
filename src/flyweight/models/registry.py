"""Which families there are: `model_type` of a config.json to its spec and weight plan.

Adding a family is one short file beside this one and a line in `FAMILIES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flyweight.errors import CheckpointError
from flyweight.models import (
    deepseek2,
    gemma,
    gemma2,
    gemma3,
    gpt2,
    gpt_neox,
    gpt_oss,
    granite,
    llama,
    mistral,
    mixtral,
    olmo2,
    opt,
    phi3,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
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
    "deepseek_v2": Family(deepseek2.spec, deepseek2.plan),
    "gemma": Family(gemma.spec, gemma.plan),
    "gemma2": Family(gemma2.spec, gemma2.plan),
    "gemma3": Family(gemma3.spec, gemma3.plan),
    "gemma3_text": Family(gemma3.spec, gemma3.plan),
    "gpt2": Family(gpt2.spec, gpt2.plan),
    "gpt_neox": Family(gpt_neox.spec, gpt_neox.plan),
    "gpt_oss": Family(gpt_oss.spec, gpt_oss.plan),
    "granite": Family(granite.spec, granite.plan),
    "llama": Family(llama.spec, llama.plan),
    "mistral": Family(mistral.spec, mistral.plan),
    "mixtral": Family(mixtral.spec, mixtral.plan),
    "olmo2": Family(olmo2.spec, olmo2.plan),
    "opt": Family(opt.spec, opt.plan),
    "phi3": Family(phi3.spec, phi3.plan),
    "qwen2": Family(qwen2.spec, qwen2.plan),
    "qwen2_moe": Family(qwen2_moe.spec, qwen2_moe.plan),
    "qwen3": Family(qwen3.spec, qwen3.plan),
    "qwen3_moe": Family(qwen3_moe.spec, qwen3_moe.plan),
    "smollm3": Family(smollm3.spec, smollm3.plan),
    "stablelm": Family(stablelm.spec, stablelm.plan),
    "starcoder2": Family(starcoder2.spec, starcoder2.plan),
}


def family(config: Mapping[str, Any]) -> Family:
    """The family of a config, or `CheckpointError` listing those there are."""
    name = config.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise CheckpointError(
            f"model_type = {shown(name)} is not supported{explain(name)}; "
            f"known: {', '.join(FAMILIES)}"
        )
    _judge_quantisation(config)
    return FAMILIES[name]


def _judge_quantisation(config: Mapping[str, Any]) -> None:
    """gpt-oss's MXFP4 alone is read as published."""
    found = config.get("quantization_config")
    method = found.get("quant_method") if isinstance(found, Mapping) else found
    if found and (config["model_type"], method) != ("gpt_oss", "mxfp4"):
        raise CheckpointError(
            f"config: quantization_config of {shown(method)} is not supported yet for "
            f"{config['model_type']}; use the unquantised files or a GGUF"
        )
