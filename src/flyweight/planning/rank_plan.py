"""`plan parallel --ranks`: ways to divide a model over processes of this machine, and what they
cost.

Invariant: only sizes that the engine accepts.  Nothing of the model is read but its outline.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from flyweight.bench.rank_link import ASSUMED, LinkSpeed, measure_link
from flyweight.errors import ConfigError
from flyweight.models.shards import MOST_RANKS, check_size
from flyweight.models.stages import StageRange, check_stages, cut_stage, divide_layers
from flyweight.parallel.sharding import count_layer_bytes
from flyweight.plan.machine import list_nodes
from flyweight.plan.memory import SlotKinds
from flyweight.plan.roofline import LAYER, StepShape, sum_work
from flyweight.planning.calibration import LocalEngine, check_positions
from flyweight.planning.outline import ModelOutline
from flyweight.planning.rank_cost import DividedModel, RankCost, RankMachine, StageShape
from flyweight.planning.rank_limits import sample_shared_limits
from flyweight.planning.speed import (
    SpeedQuestion,
    count_bytes,
    make_decode,
    make_planned_shape,
)

Way = tuple[int, int]  # ranks of a stage, stages
ALONE: Way = (1, 1)


@dataclass(frozen=True, slots=True)
class RankedWork:
    """Steps that are compared: of a prompt, or one of decoding.  `key` is its name in JSON."""

    key: str
    name: str
    steps: Sequence[StepShape]


@dataclass(frozen=True, slots=True)
class RankAnswer:
    """What `work` takes: in one process, then divided in each way."""

    work: RankedWork
    costs: Sequence[tuple[DividedModel, RankCost]]

    @property
    def speeds(self) -> list[float]:
        """How many times as fast as one process."""
        alone = self.costs[0][1].seconds
        return [alone / cost.seconds for _, cost in self.costs]


@dataclass(frozen=True, slots=True)
class RankPlan:
    """Answers for each work, with what they are computed from: `nodes` is the number of NUMA nodes,
    and `source` where the link's speed comes from.
    """

    machine: RankMachine
    nodes: int
    source: str
    answers: Sequence[RankAnswer]


def list_work(asked: SpeedQuestion) -> list[RankedWork]:
    """A decode step, and the prompt."""
    (batch,) = asked.batches
    return [
        RankedWork("decode", f"decode × {batch}", [make_decode(batch, asked.context)]),
        RankedWork("prompt", f"prefill {asked.prompt}", asked.list_chunks()),
    ]


def plan_ranks(
    outline: ModelOutline,
    engine: LocalEngine,
    ways: Sequence[Way],
    asked: SpeedQuestion,
    link: LinkSpeed | None = None,
) -> RankPlan:
    """With limits measured now, for ways of as many ranks each.  A `link` that is not given is
    measured where torch is installed, else assumed.
    """
    check_positions(outline, prompt_tokens=asked.prompt, context=asked.context)
    nodes = list_nodes()
    limits = sample_shared_limits(engine, ways[0][0] * ways[0][1], nodes)
    speed, source = (link, "as given") if link else find_link()
    machine = RankMachine(limits, speed)
    divided = [divide_model(outline, engine, way) for way in (ALONE, *ways)]
    answers = [answer_ranks(work, engine, machine, divided) for work in list_work(asked)]
    return RankPlan(machine, len(nodes), source, answers)


def find_link() -> tuple[LinkSpeed, str]:
    """Measured, or assumed where torch is not installed; and which of both."""
    with suppress(ConfigError):
        return measure_link(), "measured now"
    return ASSUMED, "assumed, as torch is not installed"


def answer_ranks(
    work: RankedWork, engine: LocalEngine, machine: RankMachine, divided: Sequence[DividedModel]
) -> RankAnswer:
    """The first of `divided` is the model in one process, with all threads."""
    whole, *others = divided
    alone = RankCost(sum_work(engine.shape, work.steps, machine.limits.whole).seconds, 0.0)
    costs = [(model, machine.compute_cost(model, work.steps)) for model in others]
    return RankAnswer(work, [(whole, alone), *costs])


def list_ways(outline: ModelOutline, ranks: int) -> list[Way]:
    """All that use every rank, and that the engine accepts."""
    found = []
    for tensor in range(ranks, 0, -1):
        if ranks % tensor == 0:
            with suppress(ConfigError):
                check_size(outline.spec, outline.kinds, tensor)
                check_stages(outline.spec, ranks // tensor)
                found.append((tensor, ranks // tensor))
    return found


def choose_ways(outline: ModelOutline, ranks: int, tensor: int | None) -> list[Way]:
    """Those with `tensor` ranks a stage (None: all).  Raises `ConfigError` where there is none."""
    ways = list_ways(outline, ranks)
    if not ways:
        lower = next((n for n in range(min(ranks, MOST_RANKS) - 1, 1, -1)
                      if list_ways(outline, n)), 1)  # fmt: skip
        raise ConfigError(
            "divides neither the model's heads nor its layers", "ranks", value=ranks,
            hint=f"nearest valid: {lower}",
        )  # fmt: skip
    sizes = [way[0] for way in ways]
    if tensor is None or tensor in sizes:
        return [way for way in ways if tensor in (None, way[0])]
    raise ConfigError(
        f"is no way to divide the model over {ranks} ranks", "tp", value=tensor,
        allowed=", ".join(map(str, sorted(sizes))),
        hint=f"nearest valid: {min(sizes, key=lambda size: abs(size - tensor))}",
    )  # fmt: skip


def divide_model(outline: ModelOutline, engine: LocalEngine, way: Way) -> DividedModel:
    """A model as the engine divides it."""
    tensor, count = way
    spec = outline.spec
    layers = [range(len(spec.layers))]
    if count > 1:
        layers = divide_layers(*count_layer_bytes(spec, outline.kinds, engine.ops), count)
    stages = [
        make_stage(outline, engine, StageRange(i, count, own)) for i, own in enumerate(layers)
    ]
    return DividedModel(tensor, tuple(stages), spec.hidden, spec.vocab)


def make_stage(outline: ModelOutline, engine: LocalEngine, stage: StageRange) -> StageShape:
    """What a stage requires; its layers are numbered from 0, as `cut_stage` does."""
    spec, kinds, count = outline.spec, outline.kinds, engine.ops.count_packed_bytes
    if stage.count > 1:
        cut = cut_stage(spec, outline.plan, stage)
        spec = cut.spec
        kinds = take_kinds(kinds, [slot.name for slot in cut.plan.slots], stage.layers.start)
    shape = make_planned_shape(spec, kinds, engine.ops.activations, engine.kv_dtype, count)
    nbytes = sum(
        count_bytes((size[0], size[1]), kind, count)
        for parts in kinds.values()
        for size, kind in parts
        if len(size) == 2
    )
    return StageShape(shape, len(spec.layers), nbytes)


def take_kinds(kinds: SlotKinds, names: Sequence[str], first: int) -> SlotKinds:
    """The kinds of a stage's slots, whose layer 0 is the model's layer `first`."""

    def find_name(name: str) -> str:
        found = LAYER.match(name)
        return f"layers.{int(found[1]) + first}.{name[found.end() :]}" if found else name

    return {name: kinds[find_name(name)] for name in names}
