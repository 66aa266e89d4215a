"""Outcomes as tables: the verdicts, and both sides of each technique.

Invariant: a figure that was not measured is "unavailable", never 0.
"""

from collections.abc import Sequence

from flyweight.planning.report import Column, Report, ReportTable, Value
from flyweight.prove.baseline import ComparedOutcome
from flyweight.prove.figures import ENOUGH_PAIRS, find_most_confidence
from flyweight.prove.outcome import PairedAccuracy, ProveOutcome
from flyweight.prove.proved import ProvedSuite
from flyweight.prove.technique import CHANCE, LIMIT, SIDES, Technique

UNAVAILABLE = "unavailable"


def show_times(value: float) -> str:
    return f"{show_bound(value)}x"


def show_bound(value: float) -> str:
    """With three digits or more."""
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


def show_metric(metric: str) -> str:
    """What is compared: throughput is, by the seconds of the whole workload."""
    return "seconds" if metric == "throughput" else metric


def show_ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.{0 if seconds >= 0.1 else 2}f}"


def show_mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):,.0f}"


def show_equal(share: float) -> str:
    return "yes" if share == 1 else f"{100 * share:.1f} %"


def show_share(share: float) -> str:
    return "all" if share == 1 else f"1/{1 / share:g}"


VERDICT_COLUMNS = (
    Column("technique", "technique"),
    Column("metric", "metric", show_metric),
    Column("speedup", "speed-up", show_times),
    Column("low", "95 %", show_bound),
    Column("high", "to", show_bound),
    Column("equal_tokens", "equal", show_equal),
    Column("verdict", "verdict"),
    Column("seed", "course"),
)
SIDE_COLUMNS = (
    Column("technique", "technique"),
    Column("side", ""),
    Column("seconds", "s"),
    Column("requests_per_s", "req/s"),
    Column("ttft_p50", "TTFT ms", show_ms),
    Column("itl_p50", "ITL ms", show_ms),
    Column("peak_bytes", "MiB", show_mib, UNAVAILABLE),
    Column("joules", "joules", unknown=UNAVAILABLE),
)
WORK_COLUMNS = (
    Column("technique", "technique"),
    Column("requests", "requests"),
    Column("share", "of all", show_share),
    Column("prompt_tokens", "prompt tokens"),
    Column("output_tokens", "output tokens"),
    Column("pairs", "pairs"),
    Column("certain", "enough"),
)
CHANGE_COLUMNS = (
    Column("technique", "technique"),
    Column("before_speedup", "speed-up then", show_times),
    Column("now_speedup", "now", show_times),
    Column("time_ratio", "time now/then", show_bound),
    Column("low", "95 %", show_bound),
    Column("high", "to", show_bound),
    Column("verdict", "verdict"),
    Column("quiet", "quiet"),
)
TECHNIQUE_COLUMNS = (Column("technique", "technique"), Column("what", "what it is"))


def report_suite(suite: ProvedSuite, changes: Sequence[ComparedOutcome] = ()) -> Report:
    """Verdicts, both sides and their work, what changed since a baseline, and in words how each
    off was made and what was scaled.
    """
    found = suite.outcomes
    tables = [
        ReportTable(
            "verdicts", "What each technique does on this machine", VERDICT_COLUMNS,
            [make_verdict_row(one) for one in found], list_doubts(found),
        ),
        ReportTable(
            "sides", "Medians, off and on", SIDE_COLUMNS,
            [row for one in found for row in make_side_rows(one)],
        ),
        ReportTable(
            "work", "Work of a run that is on", WORK_COLUMNS,
            [make_work_row(one) for one in found],
        ),
    ]  # fmt: skip
    if changes:
        tables.append(make_change_table(changes))
    notes = [line for one in found for line in describe_outcome(one)]
    for one in suite.failures:
        word = "skipped" if one.skipped else "failed"
        notes.append(f"{one.technique.name}: {word}: {one.problem}")
    return Report("flyweight prove", tables, [*notes, describe_machine(suite)])


def list_doubts(outcomes: Sequence[ProveOutcome]) -> list[str]:
    """What a question mark means, where there is one."""
    if all(one.certain for one in outcomes):
        return []
    return [
        f"? fewer than {ENOUGH_PAIRS} pairs: the interval holds with less than 95 %; give more "
        "--minutes"
    ]


def describe_machine(suite: ProvedSuite) -> str:
    """Processor, memory and version."""
    around = suite.around
    commit = f" ({around.commit})" if around.commit else ""
    return (
        f"{around.cpu}, {around.cores} cores, {around.memory / (1 << 30):.0f} GiB; "
        f"flyweight {around.version}{commit}"
    )


def make_change_table(changes: Sequence[ComparedOutcome]) -> ReportTable:
    rows: list[list[Value]] = [
        [one.technique, one.before, one.speed.median * one.before, one.time.median, one.time.low,
         one.time.high, one.verdict, one.quiet]
        for one in changes
    ]  # fmt: skip
    notes = (
        "Times are judged where other processes were quiet in both runs; speed-ups always are.",
    )
    return ReportTable("changes", "Compared with the baseline", CHANGE_COLUMNS, rows, notes)


def make_verdict_row(outcome: ProveOutcome) -> list[Value]:
    speed = outcome.speed
    return [
        outcome.technique.name, outcome.metric, speed.median, speed.low, speed.high,
        outcome.equal, outcome.shown_verdict, outcome.seed or None,
    ]  # fmt: skip


def make_work_row(outcome: ProveOutcome) -> list[Value]:
    """The first run that is on: a technique may be to save tokens."""
    run = outcome.pairs[0][1]
    return [outcome.technique.name, run.requests, outcome.share, run.prompt_tokens,
            run.output_tokens, len(outcome.pairs), outcome.certain]  # fmt: skip


def make_side_rows(outcome: ProveOutcome) -> list[list[Value]]:
    rows: list[list[Value]] = []
    for side in SIDES:
        one = outcome.summarize(side)
        rows.append(
            [outcome.technique.name, side, one.seconds, one.requests_per_s, one.ttft, one.itl,
             one.peak, one.joules]
        )  # fmt: skip
    return rows


def describe_outcome(outcome: ProveOutcome) -> list[str]:
    """The workload, how off and on are made, the technique's own figures, and what was scaled."""
    technique = outcome.technique
    basis = technique.instead or f"on {outcome.model}"
    lines = [
        f"{technique.name}: {technique.workload}; {len(outcome.pairs)} pairs {basis}",
        f"  off: {technique.off}",
        f"  on: {technique.on}",
    ]
    off, on = (outcome.summarize(side).figures for side in SIDES)
    lines += [
        f"  {name}: {off[name]:,.6g} off, {on[name]:,.6g} on"
        for name in off
        if off[name] != on[name]
    ]
    pairs = len(outcome.pairs)
    if pairs < ENOUGH_PAIRS:
        most = f"{100 * find_most_confidence(pairs):.0f} %"
        lines.append(
            f"  {pairs} pairs fit the time: the interval holds with {most} at most; give more "
            "--minutes"
        )
    if outcome.accuracy is not None:
        lines += describe_accuracy(outcome.accuracy, on[CHANCE])
    if outcome.ceiling is not None:
        lines += describe_ceiling(outcome, outcome.ceiling)
    if outcome.others is not None:
        lines.append(f"  other processes used {outcome.others:.2f} cores meanwhile")
    return [*lines, *(f"  {note}" for note in outcome.notes)]


def describe_ceiling(outcome: ProveOutcome, ceiling: float) -> list[str]:
    """What the roofline allows, and how far off is from its own limit: that is part of it."""
    off, on = (outcome.summarize(side) for side in SIDES)
    lines = [
        f"  at most {ceiling:.2f}x: at the machine's limits, on takes {on.figures[LIMIT]:.3g} s; "
        f"off took {off.seconds / off.figures[LIMIT]:.2f} times its own least"
    ]
    if outcome.speed.median > ceiling:
        lines.append(
            "  more than that was measured: weights in caches are read faster than from memory, or "
            "the limits were sampled while other processes ran"
        )
    return lines


def describe_accuracy(found: PairedAccuracy, chance: float) -> list[str]:
    """What the verdict is by, and whether the model can do the task at all."""
    off, on = (
        f"{100 * one.value:.1f} % [{100 * one.low:.1f}, {100 * one.high:.1f}]"
        for one in (found.off, found.on)
    )
    change = found.difference
    lines = [
        f"  accuracy: {off} off, {on} on",
        f"  the verdict is by the difference on the same {found.count} texts: "
        f"{100 * change.value:+.1f} points [{100 * change.low:+.1f}, {100 * change.high:+.1f}]",
    ]
    if found.on.low <= chance:
        lines.append(
            f"  on is not better than chance ({100 * chance:.0f} %): the model is too small for "
            "the task, or the texts are too few"
        )
    return lines


def report_techniques(techniques: Sequence[Technique]) -> Report:
    """What can be proved."""
    rows: list[list[Value]] = [[one.name, one.what] for one in techniques]
    title = "Techniques of flyweight prove"
    return Report(title, [ReportTable("techniques", title, TECHNIQUE_COLUMNS, rows)])
