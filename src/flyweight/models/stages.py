"""A range of a model's layers under pipeline parallelism (Huang et al., 2019, GPipe): what a stage
holds, as data, and how it computes.

The first stage also has the embedding, and the head: the last stage sends it the final hidden
states.  Between stages goes the residual with all that is to be added.

Invariant: the stages of a model one after another give the bits of the whole.  Knows no processes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from flyweight.errors import ConfigError
from flyweight.models import layer, norms
from flyweight.models.decoder import compute_logits, embed_tokens, make_ropes
from flyweight.models.linear import Parts
from flyweight.models.shards import ModelShard, list_ignored
from flyweight.ops.operands import KVLayer
from flyweight.spec import ModelSpec, WeightPlan
from flyweight.wire import I32, Batch, Tensor

OPTION = "pipeline_parallel_size"
FIRST_SLOTS = ("embed", "project_in", "positions", "head", "project_out")


@dataclass(frozen=True, slots=True)
class StageRange:
    """Stage `index` of `count`, with these layers."""

    index: int
    count: int
    layers: range

    @property
    def last(self) -> bool:
        return self.index == self.count - 1


def divide_layers(costs: Sequence[float], head: float, count: int) -> list[range]:
    """Consecutive layers for each stage, so that the most expensive stage costs least; the first
    also pays for the `head`.
    """
    sums = [0.0, *accumulate(costs)]
    layers = len(costs)
    # best[i], of the stages so far: what the dearest costs for the first i layers, and where the
    # last of them begins
    best = [(head + total, 0) for total in sums]
    ends: list[list[int]] = []
    for stage in range(1, count):
        found: list[tuple[float, int]] = []
        for i in range(layers + 1):
            tried = [
                (max(best[at][0], sums[i] - sums[at]), at) for at in range(stage, i)
            ] or [(float("inf"), 0)]  # fmt: skip
            found.append(min(tried))
        ends.append([at for _, at in found])
        best = found
    stop, ranges = layers, []
    for starts in reversed(ends):
        ranges.append(range(starts[stop], stop))
        stop = starts[stop]
    return [range(stop), *reversed(ranges)]


def check_stages(spec: ModelSpec, count: int) -> None:
    """Raises `ConfigError` where a model cannot have so many stages."""
    layers = len(spec.layers)
    if count > layers:
        raise ConfigError(
            f"is above the model's {layers} layers", OPTION, value=count,
            hint=f"nearest valid: {layers}",
        )  # fmt: skip
    if count > 1 and spec.norm.post:
        raise ConfigError(
            f": {spec.family} norms its residual between layers", OPTION, value=count, allowed="1"
        )


def cut_stage(spec: ModelSpec, plan: WeightPlan, stage: StageRange) -> ModelShard:
    """The spec and plan of one stage; its layers are numbered from 0."""
    slots = []
    for slot in plan.slots:
        if slot.name.startswith("layers."):
            _, i, part = slot.name.split(".", 2)
            if int(i) in stage.layers:
                slots.append(replace(slot, name=f"layers.{int(i) - stage.layers.start}.{part}"))
        elif (stage.index == 0) if slot.name in FIRST_SLOTS else stage.last:
            slots.append(slot)
    layers = spec.layers[stage.layers.start : stage.layers.stop]
    ignored = list_ignored(plan, slots)
    return ModelShard(replace(spec, layers=layers), WeightPlan(tuple(slots), ignored))


class DecoderStage:
    """The layers of a stage.  `parts` are of its own spec and weights."""

    def __init__(self, parts: Parts, length: int, stage: StageRange) -> None:
        self.parts, self.ops, self.spec, self.stage = parts, parts.ops, parts.spec, stage
        self.layers = [layer.make_layer(parts, i) for i in range(len(parts.spec.layers))]
        self.stack = self.ops.stack(self.layers)
        self.ropes = make_ropes(self.spec, length)
        self.final_norm = norms.make_norm(parts, "norm")

    def embed(self, batch: Batch) -> Tensor:
        """The residual before the first layer, [T, H]."""
        return embed_tokens(self.parts, batch)

    def run_layers(self, residual: Tensor, batch: Batch, kv: Sequence[KVLayer]) -> None:
        """Adds what the layers compute to the residual, [T, H], and writes K and V."""
        self.ops.begin(batch)
        ropes = [self.ops.rotation(batch.positions, *rope) for rope in self.ropes]
        x = self.stack(residual, kv, batch, ropes)
        self.ops.add(x, residual)
        self.ops.end()

    def norm_rows(self, residual: Tensor, rows: I32) -> Tensor:
        """Final hidden states of some rows: [T, H] -> [R, H]."""
        return self.final_norm(self.ops.take(residual, rows))

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[R, H] -> [R, V]."""
        return compute_logits(self.parts, hidden)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A part of a step's tokens.  `rows` index its tokens, `places` where their results go in the
    step's.
    """

    batch: Batch
    rows: I32
    places: I32


def split_batch(batch: Batch, rows: I32, count: int) -> list[MicroBatch]:
    """A step in `count` parts of about equal numbers of tokens, in order.  A sequence that is
    split attends in its second part to what the first has stored, as it would in two steps.
    """
    tokens = len(batch.tokens)
    ends = [tokens * (i + 1) // count for i in range(count)]
    return [
        _take_tokens(batch, rows, range(start, stop))
        for start, stop in zip([0, *ends], ends, strict=False)
        if start < stop
    ]


def _take_tokens(batch: Batch, rows: I32, own: range) -> MicroBatch:
    part = slice(own.start, own.stop)
    owners = np.repeat(np.arange(len(batch.contexts)), np.diff(batch.starts))[part]
    seqs, counts = np.unique(owners, return_counts=True)
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    positions = batch.positions[part]
    places = np.flatnonzero((rows >= own.start) & (rows < own.stop)).astype(np.int32)
    mine = (rows[places] - own.start).astype(np.int32)
    cut = replace(
        batch,
        tokens=batch.tokens[part],
        positions=positions,
        slots=batch.slots[part],
        starts=starts,
        contexts=positions[starts[1:] - 1] + 1,
        tables=np.ascontiguousarray(batch.tables[seqs]),
        rows=mine,
        adapters=None if batch.adapters is None else batch.adapters[seqs],
        hidden=None,
    )
    return MicroBatch(cut, mine, places)


def list_costs(spec: ModelSpec, slots: Iterable[tuple[str, float]]) -> tuple[list[float], float]:
    """What each layer costs, and the head, given the cost of each slot.  Of experts, those count
    that a token takes.
    """
    costs, head = [0.0] * len(spec.layers), 0.0
    for name, cost in slots:
        if name == ("embed" if spec.tie else "head"):
            head = cost
        elif name.startswith("layers."):
            _, i, part = name.split(".", 2)
            moe = spec.layers[int(i)].moe
            is_expert = moe is not None and part.startswith(("up.", "down."))
            share = moe.route.top / moe.route.experts if moe and is_expert else 1.0
            costs[int(i)] += cost * share
    return costs, head
