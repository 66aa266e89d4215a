"""Makes the drafter of a method, which the method's row in `speculation.METHODS` names.

Invariant: a drafter's module has `make_drafter(config, parts)`, and is imported when it is wanted.
Knows no drafter.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import cast

from flyweight.config import Limits
from flyweight.draft.drafter import Drafter
from flyweight.speculation import METHODS, SpeculationConfig


@dataclass(frozen=True, slots=True)
class DrafterParts:
    """What a drafter may be made of: the engine's limits, and tokens in the target's vocabulary."""

    limits: Limits
    vocab: int


def make_drafter(config: SpeculationConfig, parts: DrafterParts) -> Drafter:
    """Raises `ConfigError` or `CheckpointError`."""
    module = import_module(METHODS[config.method].module)
    return cast(Drafter, module.make_drafter(config, parts))
