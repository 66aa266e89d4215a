"""Which families there are: `model_type` of a config.json to its spec and weight plan.

Adding a family is one short file next to this one, or a function in its vendor's file, and a line
in `FAMILIES`.  A file is imported when a model of it is read: importing all of them takes a tenth
of a second.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from flyweight.errors import CheckpointError, nearest
from flyweight.spec import Files, ModelSpec, WeightPlan
from flyweight.validation.untrusted import shown, spell
from flyweight.weights.formats.joined import METHODS
from flyweight.weights.refused import explain


@dataclass(frozen=True, slots=True)
class Family:
    """A file of `flyweight.models`, its function that reads a config.json of this `model_type`, and
    its function that plans the tensors a model takes.  A checkpoint of one that `predicts` may
    carry a layer after the last (`predictor`).
    """

    module: str
    reader: str = "read_spec"
    planner: str = "plan"
    predicts: bool = False

    def read_spec(self, config: Mapping[str, Any]) -> ModelSpec:
        found: ModelSpec = getattr(self._import_module(), self.reader)(config)
        return found

    def plan(self, spec: ModelSpec, files: Files) -> WeightPlan:
        found: WeightPlan = getattr(self._import_module(), self.planner)(spec, files)
        return found

    def _import_module(self) -> Any:
        return import_module(f"flyweight.models.{self.module}")


FAMILIES = {
    "cohere": Family("cohere", "read_cohere"),
    "cohere2": Family("cohere", "read_cohere2"),
    "deepseek_v2": Family("deepseek", "read_deepseek2"),
    "deepseek_v3": Family("deepseek", "read_deepseek3", predicts=True),
    "ernie4_5": Family("llama", "read_ernie4_5", "plan_ernie4_5"),
    "exaone": Family("exaone", "read_exaone"),
    "exaone4": Family("exaone", "read_exaone4", "plan_exaone4"),
    "gemma": Family("gemma", "read_gemma"),
    "gemma2": Family("gemma", "read_gemma2", "plan_gemma2"),
    "gemma3": Family("gemma", "read_gemma3", "plan_gemma3"),
    "gemma3_text": Family("gemma", "read_gemma3", "plan_gemma3"),
    "glm": Family("glm4", "read_glm"),
    "glm4": Family("glm4", "read_glm4"),
    "gpt2": Family("gpt2"),
    "gpt_neox": Family("gpt_neox"),
    "gpt_oss": Family("gpt_oss"),
    "granite": Family("llama", "read_granite"),
    "kimi_k2": Family("deepseek", "read_deepseek3", predicts=True),
    "llama": Family("llama", "read_llama"),
    "llama4": Family("llama4"),
    "llama4_text": Family("llama4"),
    "minicpm": Family("llama", "read_minicpm"),
    "mistral": Family("mistral", "read_mistral"),
    "mixtral": Family("mistral", "read_mixtral"),
    "olmo2": Family("olmo", "read_olmo2"),
    "olmo3": Family("olmo", "read_olmo3"),
    "opt": Family("opt"),
    "phi3": Family("phi", "read_phi3"),
    "phi4_multimodal": Family("phi", "read_phi4_multimodal", "plan_phi4_multimodal"),
    "phi4mm": Family("phi", "read_phi4_multimodal", "plan_phi4_multimodal"),
    "qwen2": Family("qwen", "read_qwen2"),
    "qwen2_moe": Family("qwen", "read_qwen2_moe"),
    "qwen3": Family("qwen", "read_qwen3"),
    "qwen3_moe": Family("qwen", "read_qwen3_moe"),
    "seed_oss": Family("llama", "read_seed_oss", "plan_seed_oss"),
    "smollm3": Family("llama", "read_smollm3"),
    "stablelm": Family("stablelm"),
    "starcoder2": Family("starcoder2"),
}


NAMELESS = {"MiniCPMForCausalLM": "minicpm"}  # published without a model_type


def find_family(config: Mapping[str, Any]) -> Family:
    """The family of a config, or `CheckpointError` listing those there are."""
    name = config.get("model_type")
    if name is None:
        name = _find_by_class(config)
    if not isinstance(name, str) or name not in FAMILIES:
        raise CheckpointError(
            f"model_type = {shown(name)} is not supported{explain(name)}; "
            f"known: {', '.join(FAMILIES)}"
        )
    _judge_quantisation(config)
    return FAMILIES[name]


def _find_by_class(config: Mapping[str, Any]) -> str | None:
    """The family of a config without a model_type, by its class."""
    classes = config.get("architectures")
    first = classes[0] if isinstance(classes, list) and classes else None
    return NAMELESS.get(first) if isinstance(first, str) else None


def _judge_quantisation(config: Mapping[str, Any]) -> None:
    """Formats that are read are those of `weights.formats.joined`."""
    found = config.get("quantization_config")
    method = found.get("quant_method") if isinstance(found, Mapping) else found
    if found and not (isinstance(method, str) and method in METHODS):
        near = nearest(method.lower(), METHODS) if isinstance(method, str) else ""
        raise CheckpointError(
            f"config: quantization_config.quant_method = {spell(method)} is not supported; known: "
            f"{', '.join(METHODS)}{near}; use the unquantised files or a GGUF"
        )
