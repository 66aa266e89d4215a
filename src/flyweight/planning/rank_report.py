"""The report of `plan parallel --ranks`: a decode step and a prompt, in one process and divided.

Invariant: whether ranks can gain anything is said of the machine that was measured, by its NUMA
nodes.
"""

from flyweight.plan.memory import format_size
from flyweight.planning.calibration import LocalEngine
from flyweight.planning.outline import ModelOutline
from flyweight.planning.predict import shorten_name
from flyweight.planning.rank_cost import DividedModel, RankCost
from flyweight.planning.rank_plan import RankAnswer, RankPlan
from flyweight.planning.report import Column, Report, ReportTable, Value
from flyweight.planning.units import write_count, write_seconds

COLUMNS = (
    Column("tp", "tp"),
    Column("pp", "pp"),
    Column("micro", "micro"),
    Column("bubble", "bubble", lambda share: f"{100 * share:.1f} %"),
    Column("exchange_seconds", "exchange", write_seconds),
    Column("seconds", "at least", write_seconds),
    Column("speedup", "speed-up", lambda value: f"{value:.2f}x"),
    Column("weight_bytes", "weights each", format_size),
)
NOTES = (
    "Times at the machine's limits, by counting; `flyweight prove tensor-parallel` and "
    "`pipeline-parallel` measure them.",
    "Micro-batches are those of a whole step. Bubble = (pp - 1) / (micro + pp - 1) of the time, in "
    "which a stage waits.",
)


def report_ranks(one: ModelOutline, engine: LocalEngine, plan: RankPlan) -> Report:
    ranks = len(plan.answers[0].costs[1][0].stages) * plan.answers[0].costs[1][0].tensor
    name = shorten_name(one)
    tables = [
        ReportTable(
            answer.work.key, f"{name}, {answer.work.name}: one process and {ranks} ranks", COLUMNS,
            make_rows(answer), strong=frozenset({0}),
        )
        for answer in plan.answers
    ]  # fmt: skip
    basis = (
        f"{one.name}, from {one.basis}; {engine.ops.threads} threads ({engine.ops.isa}) in all, "
        f"K/V in {engine.kv_dtype}."
    )
    return Report("Parallelism", tables, [judge_nodes(plan), *NOTES, basis, describe(plan)])


def make_rows(answer: RankAnswer) -> list[tuple[Value, ...]]:
    """One process first."""
    tokens = answer.work.steps[0].tokens
    pairs = zip(answer.costs, answer.speeds, strict=True)
    return [make_rank_row(model, cost, speed, tokens) for (model, cost), speed in pairs]


def make_rank_row(
    model: DividedModel, cost: RankCost, speed: float, tokens: int
) -> tuple[Value, ...]:
    split = model.split(tokens)
    return (split.tp, split.pp, split.micro, split.bubble, cost.exchange, cost.seconds, speed,
            model.nbytes)  # fmt: skip


def judge_nodes(plan: RankPlan) -> str:
    """What tensor parallelism can gain here."""
    limits = plan.machine.limits
    if plan.nodes == 1:
        return (
            "This machine has one NUMA node: one memory controller serves all cores, so tensor "
            "parallelism gains nothing. All ranks together read as many bytes as one process does, "
            "at the same bandwidth, and exchange arrays too."
        )
    return (
        f"This machine has {plan.nodes} NUMA nodes, each with memory of its own: ranks, each bound "
        f"to a node, read {limits.read / 1e9:.3g} GB/s together, one process "
        f"{limits.whole.read / 1e9:.3g} GB/s."
    )


def describe(plan: RankPlan) -> str:
    """The limits and where they come from."""
    whole, alone, link = plan.machine.limits.whole, plan.machine.limits.alone, plan.machine.link
    return (
        f"Limits, measured now: {whole.read / 1e9:.3g} GB/s and int8 {write_count(whole.int8)}OP/s "
        f"with all threads, {alone.read / 1e9:.3g} GB/s and {write_count(alone.int8)}OP/s with "
        f"those of a rank. Exchange of two ranks, {plan.source}: {write_seconds(link.latency)} and "
        f"{link.rate / 1e9:.3g} GB/s."
    )
