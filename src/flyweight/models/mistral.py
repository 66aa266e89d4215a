"""Mistral (Jiang et al., 2023), from version 0.2 on: a Llama that sees its whole context.

The first version's window of 4,096 positions is refused by name where the context is longer.
"""

from collections.abc import Mapping
from typing import Any

from flyweight.errors import CheckpointError
from flyweight.models.plans import Traits, gated_decoder
from flyweight.spec import ModelSpec
from flyweight.untrusted import shown


def spec(config: Mapping[str, Any]) -> ModelSpec:
    """A `MistralForCausalLM` config.json; no biases anywhere."""
    found = gated_decoder(config, "mistral", Traits())
    window = config.get("sliding_window")
    wide = isinstance(window, int) and window >= found.context
    if window is not None and not wide:
        raise CheckpointError(
            f"config: sliding_window = {shown(window)} is not supported for mistral yet; "
            f"allowed: none, or {found.context} (the context) or more"
        )
    return found
