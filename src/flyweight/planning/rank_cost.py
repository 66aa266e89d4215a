"""Ranks of one machine: the least time of steps that several processes compute, by counting.

Stages compute in rounds: for p stages and m micro-batches there are m + p - 1, and in each round a
stage computes one micro-batch or waits.  Tensor-parallel ranks compute a part of every layer at the
same time; a layer has two all-reduces, the embedding one more, and the head an all-gather.

Invariant: ranks that compute at the same time share the machine's bandwidth and its operations a
second evenly; a rank alone has what its own threads reach.  A step is cut as `parallel.pipeline`
cuts it.  Measures nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from flyweight.bench.rank_link import FLOAT, LinkSpeed
from flyweight.parallel.pipeline import count_parts
from flyweight.plan.roofline import (
    UNITS,
    MachineLimits,
    OpCost,
    Shape,
    StepShape,
    make_attention_cost,
)
from flyweight.planning.parallel import REDUCES, Split

BROADCASTS = 2  # of a step: how long its arrays are, then the arrays


@dataclass(frozen=True, slots=True)
class SharedLimits:
    """Limits of all threads in one process (`whole`), and of a rank's threads while no other rank
    computes (`alone`); all ranks together read `read` bytes a second.
    """

    whole: MachineLimits
    alone: MachineLimits
    read: float

    def divide(self, active: int) -> MachineLimits:
        """The limits of each of so many ranks that compute at the same time."""
        peaks = (
            min(self.alone.get_peak(unit), self.whole.get_peak(unit) / active) for unit in UNITS
        )
        return MachineLimits(min(self.alone.read, self.read / active), *peaks)


@dataclass(frozen=True, slots=True)
class StageShape:
    """What the layers of a stage require of a step, and the head where it has it; `nbytes` are
    those of its matrices.
    """

    shape: Shape
    layers: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class DividedModel:
    """`tensor` ranks share each of the `stages`."""

    tensor: int
    stages: tuple[StageShape, ...]
    hidden: int
    vocab: int

    @property
    def nbytes(self) -> int:
        """Bytes of the matrices of the rank that has most."""
        return max(stage.nbytes for stage in self.stages) // self.tensor

    def split(self, tokens: int) -> Split:
        """How a step of so many tokens is divided; one stage does not cut it."""
        stages = len(self.stages)
        return Split(self.tensor, stages, count_parts(tokens, stages) if stages > 1 else 1)


@dataclass(frozen=True, slots=True)
class RankCost:
    """Seconds of steps; in `exchange` of them the ranks compute nothing."""

    seconds: float
    exchange: float


@dataclass(frozen=True, slots=True)
class RankMachine:
    """What ranks compute with, and what an exchange between two of them takes."""

    limits: SharedLimits
    link: LinkSpeed

    def compute_cost(self, model: DividedModel, steps: Sequence[StepShape]) -> RankCost:
        """Of steps one after another."""
        costs = [self._compute_step(model, seen) for seen in steps]
        return RankCost(sum(one.seconds for one in costs), sum(one.exchange for one in costs))

    def _compute_step(self, model: DividedModel, seen: StepShape) -> RankCost:
        parts = cut_step(seen, model.split(seen.tokens).micro)
        work = exchange = 0.0
        for active in list_rounds(model.stages, parts):
            limits = self.limits.divide(model.tensor * len(active))
            costs = [
                (sum_seconds(stage.shape, part, model.tensor, limits),
                 self._exchange_layers(model, stage, part.tokens))
                for stage, part in active
            ]  # fmt: skip
            slowest = max(costs, key=lambda pair: pair[0] + pair[1])
            work, exchange = work + slowest[0], exchange + slowest[1]
        head = StepShape((), seen.rows, 0)
        limits = self.limits.divide(model.tensor)
        work += sum_seconds(model.stages[0].shape, head, model.tensor, limits)
        exchange += self._exchange_step(model, seen.rows)
        return RankCost(work + exchange, exchange)

    def _exchange_layers(self, model: DividedModel, stage: StageShape, tokens: int) -> float:
        """All-reduces of a stage, and sending what it has computed to the next or the first."""
        nbytes = FLOAT * tokens * model.hidden
        embeds = stage is model.stages[0]
        seconds = (REDUCES * stage.layers + embeds) * self._compute_turns(model, nbytes)
        if len(model.stages) > 1:
            seconds += self.link.compute_seconds(nbytes)
        return seconds

    def _exchange_step(self, model: DividedModel, rows: int) -> float:
        """What a step is begun with, and the logits of its rows."""
        ranks = model.tensor * len(model.stages)
        begin = BROADCASTS * self.link.latency if ranks > 1 else 0.0
        width = -(-model.vocab // model.tensor)
        return begin + (self._compute_turns(model, FLOAT * rows * width) if rows else 0.0)

    def _compute_turns(self, model: DividedModel, nbytes: float) -> float:
        """Every tensor-parallel rank sends its array to all others, in turns of a ring."""
        return (model.tensor - 1) * self.link.compute_seconds(nbytes)


def list_rounds(
    stages: Sequence[StageShape], parts: Sequence[StepShape]
) -> Iterator[list[tuple[StageShape, StepShape]]]:
    """The stages that compute in each round, with their micro-batches."""
    for at in range(len(parts) + len(stages) - 1):
        yield [(stage, parts[at - i]) for i, stage in enumerate(stages) if 0 <= at - i < len(parts)]


def cut_step(seen: StepShape, count: int) -> list[StepShape]:
    """A step in `count` parts of about equal numbers of tokens, as `models.stages.split_batch` cuts
    them; none has rows, as the head comes after all.
    """
    ends = [seen.tokens * (i + 1) // count for i in range(count)]
    return [
        _take_tokens(seen, start, stop)
        for start, stop in zip([0, *ends], ends, strict=False)
        if start < stop
    ]


def _take_tokens(seen: StepShape, start: int, stop: int) -> StepShape:
    chunks, at = [], 0
    for count, context in seen.chunks:
        first, last = max(start - at, 0), min(stop - at, count)
        if first < last:
            chunks.append((last - first, context - count + last))
        at += count
    return StepShape(tuple(chunks), 0, sum(context for _, context in chunks))


def sum_seconds(shape: Shape, seen: StepShape, tensor: int, limits: MachineLimits) -> float:
    """What one of `tensor` ranks takes for its part of a step."""
    return sum(op.compute_seconds(limits) for op in list_rank_ops(shape, seen, tensor))


def list_rank_ops(shape: Shape, seen: StepShape, tensor: int) -> Iterator[OpCost]:
    """Each matrix is divided evenly; K/V heads are on several ranks where there are fewer."""
    for layer, times in shape.layers:
        op = make_attention_cost(layer, seen, shape.kv_type, times)
        stored = min(tensor, layer.kv.heads)
        yield replace(op, operations=op.operations / tensor, nbytes=op.nbytes / stored)
    for matrix, times in shape.matrices:
        op = matrix.make_op(seen.rows if matrix.head else seen.tokens)
        share = times / tensor
        yield replace(op, operations=share * op.operations, nbytes=share * op.nbytes)
