"""A model's description, settings and machine as one of its ranks sees them.

Ranks are numbered stage by stage: rank r is tensor-parallel rank r % t of stage r // t, for t ranks
a stage.

Invariant: ranks of one machine share its cores and its memory evenly, and have a GPU each where
GPUs compute.  Reads no tensor.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module

from flyweight.config import Settings
from flyweight.describe import ModelDescription
from flyweight.errors import ConfigError
from flyweight.model_memory import make_memory_plan, measure_needs
from flyweight.models.shards import Kinds, Shard, check_size, cut_model
from flyweight.models.stages import StageRange, check_stages, cut_stage, divide_layers, list_costs
from flyweight.ops.base import OnDevice, Ops
from flyweight.parallel.numa import Cores, count_threads
from flyweight.plan.machine import Machine
from flyweight.plan.memory import MemoryPlan
from flyweight.spec import ModelSpec
from flyweight.weights.load import list_slot_kinds


@dataclass(frozen=True, slots=True)
class RankPlace:
    """One of the ranks: `tensor` ranks share each of the stages, which have these layers, and have
    whole experts where `by_expert`.
    """

    rank: int
    tensor: int
    stages: tuple[range, ...]
    by_expert: bool = False

    @property
    def size(self) -> int:
        return self.tensor * len(self.stages)

    @property
    def shard(self) -> Shard:
        return Shard(self.rank % self.tensor, self.tensor, self.by_expert)

    @property
    def stage(self) -> StageRange:
        index = self.rank // self.tensor
        return StageRange(index, len(self.stages), self.stages[index])

    @property
    def column(self) -> Sequence[int]:
        """The ranks of all stages that have the same part of their layers."""
        return range(self.rank % self.tensor, self.size, self.tensor)


def list_places(settings: Settings, found: ModelDescription, ops: Ops) -> list[RankPlace]:
    """The places of all ranks.  Raises `ConfigError` where the model has too few layers, or this
    host too few GPUs.
    """
    tensor, count = settings.tensor_parallel_size, settings.pipeline_parallel_size
    check_stages(found.spec, count)
    devices = ops.count_devices() if isinstance(ops, OnDevice) else None
    if devices is not None and settings.local_ranks > devices:
        raise _refuse_ranks(settings, found, devices)
    stages = [range(len(found.spec.layers))]
    if count > 1:
        kinds = list_slot_kinds(found.checkpoint, found.plan)
        stages = divide_layers(*count_layer_bytes(found.spec, kinds, ops), count)
    by_expert = settings.enable_expert_parallel
    return [RankPlace(rank, tensor, tuple(stages), by_expert) for rank in range(tensor * count)]


def _refuse_ranks(settings: Settings, found: ModelDescription, devices: int) -> ConfigError:
    """More ranks of this host than it has `devices`."""
    tensor, stages = settings.tensor_parallel_size, settings.pipeline_parallel_size
    kinds = list_slot_kinds(found.checkpoint, found.plan)
    ways = [
        (t * p, t, p) for t in range(1, tensor + 1) for p in range(1, stages + 1)
        if t * p <= devices * settings.nnodes and t * p % settings.nnodes == 0
        and _can_divide(found.spec, kinds, t)
    ]  # fmt: skip
    _, t, p = max(ways, default=(0, 0, 0))
    options = "tensor_parallel_size", "pipeline_parallel_size"
    near = [f"{option} = {new}" for option, old, new in zip(options, (tensor, stages), (t, p),
            strict=True) if new not in (0, old)]  # fmt: skip
    option, value = (options[0], tensor) if tensor > 1 else (options[1], stages)
    return ConfigError(
        f"needs a GPU for each of {settings.local_ranks} ranks of this host, which has {devices}",
        option, value=value, hint=f"nearest valid: {', '.join(near)}" if near else "",
    )  # fmt: skip


def _can_divide(spec: ModelSpec, kinds: Kinds, size: int) -> bool:
    try:
        check_size(spec, kinds, size)
    except ConfigError:
        return False
    return True


def count_layer_bytes(spec: ModelSpec, kinds: Kinds, ops: Ops) -> tuple[list[float], float]:
    """Bytes of each layer and of the head that a decode step of one token reads.  They represent
    its time, as decoding is bound by memory, and are the same at every start.
    """
    sizes = [
        (name, float(sum(ops.count_packed_bytes((shape[0], shape[1]), kind)
                         for shape, kind in parts if len(shape) == 2)))
        for name, parts in kinds.items()
    ]  # fmt: skip
    return list_costs(spec, sizes)


def cut_description(found: ModelDescription, place: RankPlace) -> ModelDescription:
    """The model with one rank's spec and plan.  Raises `ConfigError` where it cannot be split."""
    if len(place.stages) > 1:
        cut = cut_stage(found.spec, found.plan, place.stage)
        found = replace(found, spec=cut.spec, plan=cut.plan)
    if place.tensor > 1:
        kinds = list_slot_kinds(found.checkpoint, found.plan)
        cut = cut_model(found.spec, found.plan, kinds, place.shard)
        found = replace(found, spec=cut.spec, plan=cut.plan)
    return found


def divide_cores(settings: Settings, cores: int, bound: Sequence[Cores] = ()) -> Settings:
    """Settings with the threads of one rank of this machine; by default, no more than it has cores
    where `bound` are those of each.  Where there are several ranks, torch is imported now, as a
    memory plan counts what the process holds already.  Raises `ConfigError` where it is missing.
    """
    if settings.ranks == 1:
        return settings
    import_collectives()
    each = (settings.threads or cores) // settings.local_ranks
    if not settings.threads:
        each = min(each, count_threads(bound) or each)
    return replace(settings, threads=max(1, each))


def import_collectives() -> None:
    """Imports torch, over whose gloo ranks talk.  Raises `ConfigError` where it is missing."""
    try:
        import_module("flyweight.parallel.comm")
    except ImportError as missing:
        raise ConfigError(
            f"several ranks need torch, which cannot be imported ({missing}): "
            "pip install 'flyweight[distributed]'"
        ) from None


def limit_to_stages(
    memory: MemoryPlan,
    settings: Settings,
    model: tuple[ModelDescription, Sequence[RankPlace]],
    here: Machine,
    ops: Ops,
) -> MemoryPlan:
    """Rank 0's plan, with no more blocks than every other stage has memory for, and no longer
    context.  `model` is the whole one, with the places of its ranks.
    """
    whole, places = model
    for place in places:
        if place.stage.index and not place.shard.rank:
            found = cut_description(whole, place)
            needs = measure_needs(found.checkpoint, found.spec, found.plan, ops)
            other = make_memory_plan(settings, needs, here)
            length = min(memory.sizing.max_model_len, other.sizing.max_model_len)
            sizing = replace(memory.sizing, max_model_len=length)
            memory = replace(memory, blocks=min(memory.blocks, other.blocks), sizing=sizing)
    return memory
