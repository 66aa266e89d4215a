"""The report of `plan parallel`: ways to split a model over GPUs, the fastest first.

Invariant: a way that does not fit the memory of a GPU is ranked after all that do.
"""

from dataclasses import dataclass

from flyweight.errors import ConfigError
from flyweight.plan.memory import format_size
from flyweight.planning.estimate import count_weight_bytes
from flyweight.planning.outline import ModelOutline
from flyweight.planning.parallel import (
    GpuLink,
    SplitCost,
    StepLoad,
    compute_cost,
    list_splits,
)
from flyweight.planning.report import Column, Report, ReportTable, Value

NOTES = (
    "Bubble = (pp - 1) / (micro + pp - 1) of the time, for so many micro-batches.",
    "As in Megatron-LM, QKV, gate and up are split by columns, out and down by rows: each layer "
    "has two all-reduces.",
    "The head is split by columns of the vocabulary; an all-gather joins its logits once a step.",
    "The least times that peaks, bandwidth and links allow, by counting; nothing was measured.",
)


@dataclass(frozen=True, slots=True)
class ParallelUse:
    """`gpus` devices named `device`; a step of `tokens`; weights of `bits`; only ways with `tp`
    GPUs a layer (None: all); so many `rows`.
    """

    gpus: int
    device: str
    tokens: int
    bits: float
    tp: int | None
    rows: int


def report_parallel(one: ModelOutline, use: ParallelUse, gpu: GpuLink) -> Report:
    nbytes = count_weight_bytes(one.params, use.bits)
    load = StepLoad(use.tokens, nbytes, 2 * one.active_params)
    splits = list_splits(use.gpus, one.spec, use.tokens)
    chosen = [split for split in splits if use.tp in (None, split.tp)]
    if not chosen:
        raise ConfigError(
            "are more groups than the model has layers",
            "gpus",
            value=use.gpus,
            hint=f"nearest valid: {len(one.spec.layers)}",
        )
    costs = [compute_cost(split, one.spec, load, gpu) for split in chosen]
    ranked = sorted(costs, key=lambda cost: (cost.weights > gpu.memory, cost.seconds))
    rows = [make_row(cost, gpu) for cost in ranked[: use.rows]]
    columns = (
        Column("tp", "tp"),
        Column("pp", "pp"),
        Column("micro", "micro"),
        Column("bubble", "bubble", lambda share: f"{100 * share:.1f} %"),
        Column("reduce_ms", "all-reduce ms"),
        Column("step_ms", "step ms"),
        Column("weight_bytes", "weights each", format_size),
        Column("fits", "fits"),
    )
    title = f"{one.name} on {use.gpus} x {use.device}, steps of {use.tokens} tokens"
    table = ReportTable("splits", title, columns, rows, NOTES, frozenset({0}))
    return Report("Parallelism", [table])


def make_row(cost: SplitCost, gpu: GpuLink) -> tuple[Value, ...]:
    split = cost.split
    return (
        split.tp,
        split.pp,
        split.micro,
        split.bubble,
        1000 * cost.reduce,
        1000 * cost.seconds,
        int(cost.weights),
        cost.weights <= gpu.memory,
    )
