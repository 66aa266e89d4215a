"""A model's description, settings and machine as one of its ranks sees them.

Invariant: ranks of one machine share its cores and its memory evenly.  Reads no tensor.
"""

from dataclasses import replace

from flyweight.config import Settings, parse_bytes
from flyweight.describe import ModelDescription
from flyweight.models.shards import Shard, cut_model
from flyweight.plan.machine import Machine
from flyweight.weights.load import list_slot_kinds


def cut_description(found: ModelDescription, shard: Shard) -> ModelDescription:
    """The model with one rank's spec and plan.  Raises `ConfigError` where it cannot be split."""
    kinds = list_slot_kinds(found.checkpoint, found.plan)
    cut = cut_model(found.spec, found.plan, kinds, shard)
    return replace(found, spec=cut.spec, plan=cut.plan)


def divide_cores(settings: Settings, cores: int) -> Settings:
    """Settings with the threads of one rank."""
    each = (settings.threads or cores) // settings.tensor_parallel_size
    return replace(settings, threads=max(1, each))


def divide_memory(settings: Settings, here: Machine) -> tuple[Settings, Machine]:
    """Settings and machine with the memory of one rank."""
    size = settings.tensor_parallel_size
    limit = parse_bytes(str(settings.memory_limit), here.total) // size
    own = replace(here, total=here.total // size, available=here.available // size)
    return replace(settings, memory_limit=limit), own
