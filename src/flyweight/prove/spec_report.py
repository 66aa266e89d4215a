"""The report of `bench spec`: for each workload and drafter, acceptance, speed-up and decisions.
Drafters are named by their labels; a table lists the configuration of each.

Invariant: a speed-up is the median of ratios of runs of the same round on the same engine, with its
interval; a side that drafted nothing has no acceptance.  Measures nothing.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flyweight.planning.plots import LinePlot, Series
from flyweight.planning.report import Column, Report, ReportTable, Value
from flyweight.prove.figures import bootstrap, compute_ratios
from flyweight.prove.spec_drafters import Drafters, count_places
from flyweight.prove.spec_runs import OFF, PLAIN, SpecRun

Runs = Mapping[str, Mapping[str, Sequence[SpecRun]]]  # by workload and side
PARTS = 8  # of an answer, of which the decisions are shown


@dataclass(frozen=True, slots=True)
class SpecSetting:
    """What was measured."""

    model: str
    drafters: Drafters
    answer: int
    rounds: int
    replayed: bool
    whats: Mapping[str, str]  # workloads in words


def report_spec(runs: Runs, setting: SpecSetting) -> Report:
    source = (
        "Answers are the workload's own text, whatever the model computes: acceptance is that of "
        "the drafter on this text, the time is the model's."
        if setting.replayed
        else "Answers are what the model writes."
    )
    notes = [
        f"{setting.model}; {setting.answer} tokens an answer, {setting.rounds} rounds in turns "
        "after one that is not counted.",
        source,
        "Speed-up: time a token after the first without drafts over with, the median of ratios of "
        "the same round, with its interval at 95 %.",
        *(f"{name}: {what}." for name, what in setting.whats.items()),
    ]
    tables = [
        make_speed_table(runs),
        make_position_table(runs, setting.drafters),
        make_step_table(runs),
        make_drafter_table(setting.drafters),
    ]
    return Report("Speculative decoding", tables, notes, make_plot(runs))


def make_speed_table(runs: Runs) -> ReportTable:
    columns = [
        Column("workload", "workload"),
        Column("drafter", "drafter"),
        Column("pace", "ms a token", lambda pace: f"{1e3 * pace:.3g}"),
        Column("proposed", "draft tokens"),
        Column("accepted", "accepted", lambda share: f"{share:.0%}"),
        Column("length", "tokens a draft", lambda mean: f"{mean:.2f}"),
        Column("speedup", "speed-up", lambda times: f"{times:.2f}x"),
        Column("low", "from", lambda times: f"{times:.2f}"),
        Column("high", "to", lambda times: f"{times:.2f}"),
    ]
    rows: list[list[Value]] = []
    for work, sides in runs.items():
        for side, found in sides.items():
            paces = sorted(run.pace for run in found)
            drafts, proposed, accepted = (
                sum(getattr(run, name) for run in found)
                for name in ("drafts", "proposed", "accepted")
            )
            row: list[Value] = [work, side, paces[len(paces) // 2], proposed]
            row += [accepted / proposed, 1 + accepted / drafts] if drafts else [None, None]
            if side == OFF:
                row += [1.0, None, None]
            else:
                without = [run.without for run in found]
                speed = bootstrap(compute_ratios(without, [run.pace for run in found]))
                row += [speed.median, speed.low, speed.high]
            rows.append(row)
    notes = ("tokens a draft: accepted draft tokens of a verified draft, and the model's own one.",)
    return ReportTable("speed", "Speed-up", columns, rows, notes)


def make_position_table(runs: Runs, drafters: Drafters) -> ReportTable:
    """Of all verified drafts, how many had their token there accepted; None for a position that
    drafts do not have.
    """
    lengths = {label: count_places(config) for label, config in drafters.items()}
    positions = range(max(lengths.values()))
    columns = [Column("workload", "workload"), Column("drafter", "drafter")]
    columns += [
        Column(f"position_{i}", f"{i + 1}", lambda share: f"{share:.0%}") for i in positions
    ]
    rows: list[list[Value]] = []
    for work, side, found in list_drafting(runs):
        drafts = sum(run.drafts for run in found)
        shares: list[Value] = [
            sum(run.places[i] for run in found if i < len(run.places)) / drafts
            if i < lengths[side]
            else None
            for i in positions
        ]
        rows.append([work, side, *shares])
    return ReportTable("positions", "Accepted, by position in the draft", columns, rows)


def make_step_table(runs: Runs) -> ReportTable:
    columns = [Column("workload", "workload"), Column("drafter", "drafter")]
    columns += [
        Column(f"part_{i}", f"{i + 1}/{PARTS}", lambda mean: f"{mean:.1f}") for i in range(PARTS)
    ]
    rows: list[list[Value]] = []
    for work, sides in runs.items():
        for side, found in sides.items():
            if side not in PLAIN:
                rows.append([work, side, *average_parts(found)])
    notes = ("Draft tokens verified in a step for a sequence, by parts of the answer.",)
    return ReportTable("decisions", "Decisions over time", columns, rows, notes)


def make_drafter_table(drafters: Drafters) -> ReportTable:
    """The configuration of each label."""
    columns = [Column("drafter", "drafter"), Column("config", "speculative_config")]
    rows = [[label, json.dumps(config.write())] for label, config in drafters.items()]
    return ReportTable("drafters", "Drafters", columns, rows)


def list_drafting(runs: Runs) -> list[tuple[str, str, Sequence[SpecRun]]]:
    """Those of which drafts were verified."""
    return [
        (work, side, found)
        for work, sides in runs.items()
        for side, found in sides.items()
        if any(run.drafts for run in found)
    ]


def average_parts(found: Sequence[SpecRun]) -> list[float | None]:
    """Mean draft tokens of the steps in each part of the answers."""
    parts: list[list[float]] = [[] for _ in range(PARTS)]
    for run in found:
        whole = run.steps[-1][0]
        for made, verified in run.steps:
            if made:
                parts[min(PARTS - 1, PARTS * (made - 1) // whole)].append(verified)
    return [sum(part) / len(part) if part else None for part in parts]


def make_plot(runs: Runs) -> LinePlot | None:
    """Decisions of every side over its answers."""
    series: list[Series] = []
    for work, sides in runs.items():
        for side, found in sides.items():
            means = average_parts(found)
            points = [((i + 0.5) / PARTS, mean) for i, mean in enumerate(means) if mean is not None]
            if side not in PLAIN and points:
                series.append(Series(f"{work}, {side}", points))
    if not series:
        return None
    return LinePlot("Draft tokens a step", "part of the answer", "draft tokens", series)
