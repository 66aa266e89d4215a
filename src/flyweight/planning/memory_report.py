"""The report of `plan memory MODEL`: the course's figure next to the exact one, part by part, and
the devices it fits.

Invariant: every row is bytes that `plan/memory.py` counts; the groups of weights add up to them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from flyweight.plan.memory import MemoryPlan, format_size
from flyweight.planning.estimate import FORMULA, estimate_memory
from flyweight.planning.memory import MemoryPlanner, PlannedUse
from flyweight.planning.outline import KINDS_BY_BITS
from flyweight.planning.plots import Limit, LinePlot, Series
from flyweight.planning.quantities import write_params
from flyweight.planning.report import Column, Report, ReportTable, Value

GIB = 1 << 30
GROUPS = (
    ("embedding", re.compile(r"embed|positions")),
    ("head", re.compile(r"head")),
    ("experts", re.compile(r"layers\.\d+\.(up|down)\.\d+")),
    ("router", re.compile(r"layers\.\d+\.router")),
    ("MLP", re.compile(r"layers\.\d+\.(shared_)?(up|down)")),
    ("attention", re.compile(r"layers\.\d+\.(qkv|q|k|v|out|q_down|kv_down|[kv]_up(\.\d+)?)")),
)
VECTORS = "norms, biases"
MANY = 10.0  # times as much; a percentage says less
POINTS = 8  # of a curve, at half the context each
KV_CURVES = ("f16", "int8", "int4")


@dataclass(frozen=True, slots=True)
class Place:
    """Memory that a use may fit: `allowed` of its `total` bytes."""

    name: str
    total: int
    allowed: int


def report_memory(
    planner: MemoryPlanner,
    use: PlannedUse,
    places: Sequence[Place],
    measured: Mapping[str, int] | None = None,
) -> Report:
    """The exact figure of a use, next to the course's, on every place; and what was `measured`."""
    plan = planner.plan(use)
    tables = [
        compare_estimate(planner, use, plan),
        *([] if measured is None else [check_prediction(planner, use, measured)]),
        list_weights(planner, use),
        list_parts(plan),
        list_places(planner, use, plan, places),
    ]
    tight = [place for place in places if plan.need > place.allowed]
    if tight:
        tables.append(list_suggestions(planner, use, tight))
    basis = planner.outline.basis
    kinds = f"; every matrix taken as {KINDS_BY_BITS[use.bits]}" if use.bits else ""
    notes = [
        f"Known from {basis}{kinds}. No weight was read.",
        "The plan is a CPU's; a row of a GPU compares the same bytes with its memory.",
    ]
    tokenizer = planner.outline.tokenizer
    if tokenizer is None or not tokenizer.vocab_size:
        notes.append("What is held already leaves out the model's tokenizer, which is not here.")
    title = f"Memory of {planner.outline.name}"
    return Report(title, tables, notes, plot_context(planner, use, places))


def compare_estimate(planner: MemoryPlanner, use: PlannedUse, plan: MemoryPlan) -> ReportTable:
    params = planner.outline.params
    bits = use.bits or 8 * plan.weights / params
    seed = estimate_memory(params, bits)
    rows = [
        (f"course: {write_params(params)} at {bits:.3g} bits, 20 % more", round(seed), None),
        (f"exact: {describe_use(use, plan)}", plan.need, (plan.need - seed) / seed),
        ("likely: the engine's process alone", planner.expect_peak(use), None),
    ]
    notes = (f"{FORMULA}.", "Exact: a bound for all processes of a server and any request.")
    columns = (
        Column("figure", "figure"),
        Column("bytes", "memory", format_size),
        Column("difference", "difference", _write_difference, ""),
    )
    name = planner.outline.name
    return ReportTable("comparison", f"Memory of {name}", columns, rows, notes)


def check_prediction(
    planner: MemoryPlanner, use: PlannedUse, measured: Mapping[str, int]
) -> ReportTable:
    """The likely peak, for what that process held before its weights, next to the measured one."""
    likely = planner.expect_peak(use) + measured["held"] - planner.held
    peak = measured["peak"]
    rows = [
        ("held before the weights", measured["held"], None),
        ("likely peak", likely, (likely - peak) / peak),
        ("measured peak (PSS)", peak, None),
    ]
    columns = (
        Column("figure", "the engine's process"),
        Column("bytes", "memory", format_size),
        Column("difference", "difference", lambda share: f"{100 * share:+.1f} %", ""),
    )
    return ReportTable("check", "Predicted and measured", columns, rows)


def describe_use(use: PlannedUse, plan: MemoryPlan) -> str:
    sequences = "1 sequence" if use.sequences == 1 else f"{use.sequences} sequences"
    return f"{sequences} of {use.context:,} tokens, K/V {plan.sizing.kv_dtype}"


def list_weights(planner: MemoryPlanner, use: PlannedUse) -> ReportTable:
    """Weights by group of tensors, as packed."""
    needs = planner.get_needs(use.bits)
    found: dict[str, list[int]] = {}
    for slot in planner.outline.plan.slots:
        group = found.setdefault(name_group(slot.name, slot.kind), [0, 0])
        for shape, kind in needs.kinds[slot.name]:
            if len(shape) == 2:
                group[0] += shape[0] * shape[1]
                group[1] += planner.ops.count_packed_bytes((shape[0], shape[1]), kind)
            else:
                group[0] += shape[0]
                group[1] += 4 * shape[0]
    rows = [(name, count, 8 * size / count, size) for name, (count, size) in found.items()]
    columns = (
        Column("group", "weights"),
        Column("params", "parameters"),
        Column("bits", "bits", lambda bits: f"{bits:.2f}"),
        Column("bytes", "memory", format_size),
    )
    return ReportTable("weights", "Weights", columns, rows)


def name_group(name: str, kind: str) -> str:
    if kind == "vector":
        return VECTORS
    return next((group for group, pattern in GROUPS if pattern.fullmatch(name)), "other")


def list_parts(plan: MemoryPlan) -> ReportTable:
    """Everything the processes hold at their peak; the parts add up."""
    rows: list[tuple[Value, ...]] = [(what, amount) for what, amount in plan.list_rows()]
    rows.append(("planned peak", plan.need))
    columns = (Column("part", "part"), Column("bytes", "memory", format_size))
    return ReportTable("parts", "Parts", columns, rows, strong=frozenset({len(rows) - 1}))


def list_places(
    planner: MemoryPlanner, use: PlannedUse, plan: MemoryPlan, places: Sequence[Place]
) -> ReportTable:
    rows = [
        (
            place.name,
            place.total,
            place.allowed,
            plan.need <= place.allowed,
            planner.find_longest_context(use, place.allowed),
        )
        for place in places
    ]
    columns = (
        Column("device", "device"),
        Column("memory_bytes", "memory", format_size),
        Column("allowed_bytes", "allowed", format_size),
        Column("fits", "fits"),
        Column("longest_context", "longest context", unknown="none"),
    )
    return ReportTable("devices", f"Does {format_size(plan.need)} fit?", columns, rows)


def list_suggestions(
    planner: MemoryPlanner, use: PlannedUse, places: Sequence[Place]
) -> ReportTable:
    """The three nearest settings that fit, for every place that this use does not."""
    rows: list[tuple[Value, ...]] = []
    without = []
    for place in places:
        found = planner.suggest(use, place.allowed)
        for one in found:
            need = planner.count_needed(one)
            rows.append((place.name, one.context, one.sequences, one.kv_dtype, one.bits, need))
        if not found:
            without.append(place.name)
    none = f"Nothing fits, also with 2 bits a weight: {', '.join(without)}."
    notes = (none,) if without else ()
    columns = (
        Column("device", "device"),
        Column("context", "context"),
        Column("sequences", "sequences"),
        Column("kv_dtype", "K/V"),
        Column("bits", "bits", lambda bits: f"{bits:g}", "as now"),
        Column("bytes", "memory", format_size),
    )
    return ReportTable("settings", "Nearest settings that fit", columns, rows, notes)


def plot_context(planner: MemoryPlanner, use: PlannedUse, places: Sequence[Place]) -> LinePlot:
    """Memory against context, a line for each type of K/V."""
    most = max(use.context, planner.outline.spec.context)
    lengths = sorted({max(16, most * i // POINTS) for i in range(POINTS + 1)})
    series = [
        Series(
            f"K/V {kv}",
            [
                (n, planner.count_needed(replace(use, context=n, kv_dtype=kv)) / GIB)
                for n in lengths
            ],
        )
        for kv in KV_CURVES
    ]
    limits = [Limit(place.name, place.allowed / GIB) for place in places]
    title = f"Memory of {planner.outline.name} against context"
    return LinePlot(title, "context, tokens", "memory, GiB", series, limits)


def _write_difference(share: float) -> str:
    """+43.9 %; of a small model, whose process is many times its weights, 76 times."""
    return f"{100 * share:+.1f} %" if share < MANY else f"{1 + share:.0f} times"
