"""A walkthrough as a report: shapes of every op, then what each step costs and took.

Invariant: values are seconds, bytes and operations; only columns write them in other units.
"""

from flyweight.planning.report import Column, Report, ReportTable, Value
from flyweight.planning.units import (
    TimeUnit,
    write_binary,
    write_count,
    write_ratio,
    write_seconds,
    write_share,
)
from flyweight.planning.walkthrough import OpTotal, WalkedStep, Walkthrough
from flyweight.validation.untrusted import printable

SHOWN = 12  # pieces of the prompt
CACHED = 32 << 20  # bytes of weights that may stay in the processor's caches
SHAPES = (
    Column("op", "op"),
    Column("matrix", "matrix"),
    Column("prefill_in", "prefill: in"),
    Column("prefill_out", "out"),
    Column("decode_in", "decode: in"),
    Column("decode_out", "out"),
)


def report_walkthrough(walked: Walkthrough) -> Report:
    """The tables of `flyweight explain`."""
    prompt, spec = walked.prefill, walked.spec
    title = f"{spec.family}: {len(spec.layers)} layers, {spec.hidden} wide, vocabulary {spec.vocab}"
    prefill = f"Prefill: {prompt.tokens} tokens of the prompt in one step"
    decode = f"Decode: one token, which sees {walked.decode.context} positions"
    tables = [
        make_shape_table(walked),
        make_cost_table("prefill", prefill, prompt, walked),
        make_cost_table("decode", decode, walked.decode, walked),
    ]
    return Report(title, tables, describe_method(walked))


def make_shape_table(walked: Walkthrough) -> ReportTable:
    """What goes into each op and comes out; ops are matched by their names."""
    decode = {op.label: op for op in walked.decode.ops}
    rows = []
    for op in walked.prefill.ops:
        other = decode.get(op.label)
        known = (write_shape(other.given), write_shape(other.result)) if other else (None, None)
        shapes = write_shape(op.weight), write_shape(op.given), write_shape(op.result)
        rows.append((op.label, *shapes, *known))
    text = "|".join(walked.pieces[:SHOWN]) + ("|..." if len(walked.pieces) > SHOWN else "")
    notes = (
        f"The prompt's tokens: {printable(text)}",
        f"The likeliest next token: {printable(walked.answer)!r}",
    )
    return ReportTable("shapes", "Shapes, of the first layer", SHAPES, rows, notes)


def make_cost_columns(unit: TimeUnit) -> tuple[Column, ...]:
    """All times of a table in one unit."""
    return (
        Column("op", "op"),
        Column("calls", "n"),
        Column("operations", "FLOP", write_count),
        Column("bytes", "bytes", write_count),
        Column("intensity", "FLOP/B", write_ratio),
        Column("limit", "limit"),
        Column("least_seconds", "least", unit.write),
        Column("seconds", "took", unit.write),
        Column("share", "share", write_share),
    )


def make_cost_table(name: str, title: str, step: WalkedStep, walked: Walkthrough) -> ReportTable:
    """The ops of a step, and their sum."""
    rows = [make_row(op) for op in step.ops]
    share = step.least / step.seconds
    intensity = step.operations / step.nbytes
    total = (step.operations, step.nbytes, intensity, None, step.least, step.seconds, share)
    rows.append(("sum", sum(op.calls for op in step.ops), *total))
    rate, limit = step.nbytes / step.whole, walked.machine.limits.read
    notes = (
        f"As the engine runs it, without sampling: {write_seconds(step.whole)}, "
        f"{rate / 1e9:.3g} GB/s of {limit / 1e9:.3g} GB/s ({write_share(rate / limit)}), "
        f"{step.operations / step.whole / 1e9:.3g} GFLOP/s.",
    )
    unit = TimeUnit.of(step.seconds)
    columns = make_cost_columns(unit)
    title = f"{title}; times in {unit.name}"
    return ReportTable(name, title, columns, rows, notes, frozenset((len(rows) - 1,)))


def make_row(op: OpTotal) -> tuple[Value, ...]:
    """What is not counted, such as a copy of rows, has neither limit nor share."""
    counted = op.least > 0
    return (
        op.label,
        op.calls,
        op.operations if counted else None,
        op.nbytes if counted else None,
        op.operations / op.nbytes if counted else None,
        op.binds or None,
        op.least if counted else None,
        op.seconds,
        op.least / op.seconds if counted else None,
    )


def describe_method(walked: Walkthrough) -> tuple[str, ...]:
    """Where limits come from, and what a share above 100 % means."""
    machine, limits = walked.machine, walked.machine.limits
    peaks = ", ".join(
        f"{unit} {limits.get_peak(unit) / 1e9:.3g} GFLOP/s" for unit in ("int8", "bf16", "f32")
    )
    notes = [
        f"Limits of {machine.threads} threads ({machine.isa}): {limits.read / 1e9:.3g} GB/s, "
        f"{peaks}. They come from a micro-benchmark just before and after: "
        "no performance counter is read.",
        "n is calls; FLOP, bytes and times are their sums, each op timed alone; "
        "share is least ÷ took.",
    ]
    if machine.weight_bytes < CACHED:
        notes.append(
            f"Weights of {write_binary(machine.weight_bytes)} may stay in the processor's caches, "
            "which are faster than memory: shares may be above 100 %."
        )
    return tuple(notes)


def write_shape(shape: tuple[int, ...]) -> str | None:
    """7×192; None of no array."""
    return "×".join(map(str, shape)) or None
