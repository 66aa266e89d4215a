"""Mistral (Jiang et al., 2023): a Llama whose layers may see only the last `sliding_window`
positions; from version 0.2 on, all of them.
"""

from flyweight.models import llama
from flyweight.models.config import Config
from flyweight.models.plans import add_sliding_window, make_gated_spec
from flyweight.spec import ModelSpec

plan = llama.plan


def spec(config: Config) -> ModelSpec:
    """A `MistralForCausalLM` config.json; no biases anywhere."""
    return add_sliding_window(make_gated_spec(config, "mistral"), config, lambda i: True)
