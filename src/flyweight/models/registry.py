"""Which families there are: `model_type` of a config.json to its spec and weight plan.

Adding a family is one short file beside this one and a line in `FAMILIES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flyweight.errors import CheckpointError, nearest
from flyweight.models import llama, mistral, qwen2, qwen3
from flyweight.models.plans import decoder_plan
from flyweight.spec import ModelSpec, WeightPlan
from flyweight.untrusted import shown


@dataclass(frozen=True, slots=True)
class Family:
    """How to read a config.json of this `model_type`, and which tensors the model takes."""

    spec: Callable[[Mapping[str, Any]], ModelSpec]
    plan: Callable[[ModelSpec], WeightPlan]


FAMILIES = {
    "llama": Family(llama.spec, decoder_plan),
    "mistral": Family(mistral.spec, decoder_plan),
    "qwen2": Family(qwen2.spec, decoder_plan),
    "qwen3": Family(qwen3.spec, decoder_plan),
}


def family(config: Mapping[str, Any]) -> Family:
    """The family of a config, or `CheckpointError` listing those there are."""
    name = config.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        hint = nearest(str(name)[:80], FAMILIES)
        raise CheckpointError(
            f"model_type = {shown(name)} is not supported; known: {', '.join(FAMILIES)}{hint}"
        )
    if config.get("quantization_config"):
        raise CheckpointError(
            "config: quantization_config is not supported yet; use the unquantised files or a GGUF"
        )
    return FAMILIES[name]
