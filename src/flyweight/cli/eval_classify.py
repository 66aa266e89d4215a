"""`flyweight eval classify MODEL FILE`: accuracy and time without and with examples in the prompt.

Invariant: the file is read and checked before the model is loaded.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from flyweight.cli import options as opt
from flyweight.cli.eval import show_progress
from flyweight.cli.parameters import Values, expand
from flyweight.cli.reports import ReportOutput
from flyweight.errors import ConfigError, nearest

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.eval.classify import Classification, ShotResult
    from flyweight.eval.labelled import ClassifyPlan
    from flyweight.planning.report import Report, ReportTable, Value

File = Annotated[
    str, typer.Argument(metavar="FILE", help="Objects with text and label in .jsonl, one a line.")
]
Shots = Annotated[int, typer.Option(metavar="N", help="Examples before each text.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Seed that the examples are drawn with.")]
Labels = Annotated[
    str | None,
    typer.Option(metavar="NAME,...", help="Labels there are.  [default: those in the file]"),
]
By = Annotated[
    str,
    typer.Option(
        metavar="METHOD",
        help="Method: likelihood (of each label) or choice (generate one, and nothing else).",
    ),
]
Limit = Annotated[
    int | None, typer.Option(metavar="N", help="Max texts, from the first one on.  [default: all]")
]
Engine = Annotated[
    Values,
    opt.select_settings(
        "memory_limit", "threads", "activations", "kv_cache_dtype", "max_model_len", "revision",
        "offline", max_num_seqs=16,
    ),
]  # fmt: skip


@expand
def classify(
    *,
    model: opt.Model,
    file: File,
    shots: Shots = 2,
    seed: Seed = 0,
    labels: Labels = None,
    by: By = "likelihood",
    limit: Limit = None,
    engine: Engine,
    out: ReportOutput,
) -> None:
    """Compare zero-shot and few-shot classification of labelled texts.

    The examples of a text are other texts of the file.
    """
    from flyweight.eval.classify import ENOUGH, METHODS, run_classification
    from flyweight.eval.labelled import ClassifyPlan, read_labelled

    method = next((one for one in METHODS if one == by), None)
    if method is None:
        allowed = f"{', '.join(METHODS)}{nearest(by, METHODS)}"
        raise ConfigError("is not valid", "by", value=by, allowed=allowed)
    known = tuple(name.strip() for name in (labels or "").split(",") if name.strip())
    if limit is not None and limit < 1:
        raise ConfigError("is not valid", "limit", value=limit, allowed="1 or more")
    samples = read_labelled(file, tuple(dict.fromkeys(known)))[:limit]
    plan = ClassifyPlan.of(samples, tuple(dict.fromkeys(known)), shots, seed)
    if len(samples) < ENOUGH:
        few = f"{len(samples)} texts are few; with {ENOUGH} or more the intervals say something"
        print(f"warning: {few}", file=sys.stderr)
    with show_progress(not out.as_json) as tell:
        found = run_classification(model, plan, method, engine, tell)
    out.show(make_report(found, plan, by))


def make_report(found: Classification, plan: ClassifyPlan, by: str) -> Report:
    from flyweight.planning.report import Report

    results = [found.zero] if found.few is None else [found.zero, found.few]
    tables = [make_accuracies(results), make_labels(results, plan)]
    if found.few is not None:
        tables.insert(1, make_difference(found))
    notes = [
        f"{len(plan.samples)} texts, {len(plan.labels)} labels, by {by}, seed {plan.seed}.",
        "Intervals are of 95 %. Times are of one text at a time, with the prefix cache.",
    ]
    return Report("Classification", tables, notes)


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def make_accuracies(results: list[ShotResult]) -> ReportTable:
    from flyweight.planning.report import Column, ReportTable

    columns = [
        Column("shots", "shots"),
        Column("correct", "correct"),
        Column("accuracy", "accuracy", percent),
        Column("low", "low", percent),
        Column("high", "high", percent),
        Column("prompt_tokens", "prompt tokens", lambda mean: f"{mean:.1f}"),
        Column("ms", "ms a text", lambda ms: f"{ms:.2f}"),
    ]
    rows: list[list[Value]] = []
    for one in results:
        share, mean = one.accuracy, sum(one.tokens) / len(one.tokens)
        row: list[Value] = [one.shots, sum(one.right), share.value, share.low, share.high]
        rows.append([*row, mean, one.ms])
    return ReportTable("accuracy", "Accuracy", columns, rows)


def make_difference(found: Classification) -> ReportTable:
    """Of the same texts: examples against none."""
    from flyweight.planning.report import Column, ReportTable

    difference = found.difference
    assert difference is not None

    def points(share: float) -> str:
        return f"{100 * share:+.1f} points"

    columns = [
        Column("difference", "accuracy", points),
        Column("low", "low", points),
        Column("high", "high", points),
        Column("time_ratio", "time", lambda ratio: f"{ratio:.2f} times"),
    ]
    row: list[Value] = [difference.value, difference.low, difference.high, found.time_ratio]
    return ReportTable("difference", "Few-shot compared with zero-shot", columns, [row])


def make_labels(results: list[ShotResult], plan: ClassifyPlan) -> ReportTable:
    from flyweight.planning.report import Column, ReportTable

    columns = [Column("label", "label"), Column("texts", "texts")]
    columns += [Column(f"correct_{one.shots}", f"correct, {one.shots} shots") for one in results]
    rows: list[list[Value]] = []
    for label in plan.labels:
        own = [i for i, sample in enumerate(plan.samples) if sample.label == label]
        rows.append([label, len(own), *(sum(one.right[i] for i in own) for one in results)])
    return ReportTable("labels", "Labels", columns, rows)
