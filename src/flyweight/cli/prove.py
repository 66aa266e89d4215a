"""`flyweight prove NAME [MODEL]`: techniques off and on, measured in turn on this machine."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flyweight.cli import options as opt
from flyweight.cli.bench.options import find_writable, name_errors
from flyweight.cli.parameters import Values, expand
from flyweight.cli.reports import ReportOutput
from flyweight.errors import ConfigError

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.cli.proving import ProvingDisplay

LIST, ALL = "list", "all"
LONGEST = 24 * 60  # minutes
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="A technique; list names them, all runs them all.  [default: all]",
        show_default=False,
    ),
]
ProvedModel = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="A .gguf file, a folder, or org/name.  [default: the model inside, or a stand-in]",
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        metavar="N",
        help="Time for everything together.  [default: 2 for a technique, 20 for all]",
        show_default=False,
    ),
]
Html = Annotated[
    str | None, typer.Option(metavar="FILE", help="Write a page with tables and plots.")
]
SaveBaseline = Annotated[
    str | None, typer.Option(metavar="FILE", help="Keep all figures, for a later --compare.")
]
Compare = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Compare with figures that were kept; the exit code is 1 where one is slower.",
    ),
]
Metric = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Compare ttft, throughput or itl.  [default: each technique's own]"
    ),
]


@expand
def prove(
    *,
    name: Name = ALL,
    model: ProvedModel = None,
    minutes: Minutes = None,
    metric: Metric = None,
    engine: Annotated[Values, opt.select_settings("threads")],
    html: Html = None,
    save_baseline: SaveBaseline = None,
    compare: Compare = None,
    out: ReportOutput,
) -> int:
    """Measure a technique off and on, in turn, on this machine.

    A speed-up comes with its 95 % interval, and answers are compared token for token.
    """
    from flyweight.bench.facts import Surroundings
    from flyweight.prove import baseline as kept
    from flyweight.prove.page import write_page
    from flyweight.prove.registry import find_technique, list_techniques
    from flyweight.prove.report import report_suite, report_techniques
    from flyweight.prove.runner import ProvePlan
    from flyweight.prove.suite import Suite, SuiteRequest

    if name == LIST:
        given: Values = {"MODEL": model, "--minutes": minutes, "--metric": metric, "--html": html}
        given |= {"--save-baseline": save_baseline, "--compare": compare, **name_given(engine)}
        refuse_with_list([option for option, value in given.items() if value is not None])
        out.show(report_techniques(list_techniques()))
        return 0
    techniques = list_techniques() if name == ALL else [find_technique(name)]
    check_metric(metric)
    seconds = 60 * check_minutes(minutes, 20 if name == ALL else 2)
    page, saved = find_writable("html", html), find_writable("save_baseline", save_baseline)
    before = kept.read_baseline(Path(compare).expanduser()) if compare else None
    if before is not None:
        before.check_machine(Surroundings.here())
    plan = ProvePlan(metric=metric)
    request = SuiteRequest(techniques, seconds, model, engine["threads"], plan, before)
    with show_proving(len(techniques)) as display:
        suite = Suite(request, display).run(strict=name != ALL)
    changes = kept.compare_suite(suite, before) if before else []
    report = report_suite(suite, changes)
    out.show(report)
    with name_errors("html", page):
        if page is not None:
            page.write_text(write_page(suite, report, spell_command(name, model)), encoding="utf-8")
    with name_errors("save_baseline", saved):
        if saved is not None:
            kept.save_baseline(saved, suite)
    if suite.stopped:
        raise KeyboardInterrupt
    failed = any(not one.skipped for one in suite.failures)
    return 1 if failed or any(one.verdict == kept.SLOWER for one in changes) else 0


def name_given(engine: Values) -> Values:
    """Settings by their options."""
    return {f"--{key.replace('_', '-')}": value for key, value in engine.items()}


def refuse_with_list(given: Sequence[str]) -> None:
    """Raises `ConfigError` for what a list would ignore."""
    if given:
        raise ConfigError(f"{', '.join(given)} cannot be given with list, which measures nothing")


def spell_command(name: str, model: str | None) -> str:
    """The command without the folders of files, which are private where a page is published."""
    words = ["flyweight", "prove", name, *([Path(model).name] if model else [])]
    return shlex.join(words)


@contextmanager
def show_proving(total: int) -> Iterator[ProvingDisplay]:
    """The display of a run on stderr, which goes when the block ends."""
    from flyweight.cli.proving import ProvingDisplay
    from flyweight.cli.show import make_console

    display = ProvingDisplay(make_console(stderr=True), total)
    try:
        yield display
    finally:
        display.stop()


def check_metric(metric: str | None) -> None:
    """Raises `ConfigError` for a metric that there is not."""
    from flyweight.errors import nearest
    from flyweight.prove.technique import METRICS

    if metric is not None and metric not in METRICS:
        raise ConfigError(
            f"is not a metric{nearest(metric, METRICS)}", "metric", value=metric,
            allowed=", ".join(METRICS),
        )  # fmt: skip


def check_minutes(minutes: float | None, default: float) -> float:
    if minutes is None:
        return default
    if not 0 < minutes <= LONGEST:
        near = LONGEST if minutes > LONGEST else default
        raise ConfigError(
            "is out of range", "minutes", value=minutes, allowed=f"above 0 to {LONGEST}",
            hint=f"nearest valid: {near}",
        )  # fmt: skip
    return minutes
