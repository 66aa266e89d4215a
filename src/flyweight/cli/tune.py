"""`flyweight tune`: the settings that serve a load best within targets, found by measuring."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flyweight.cli import options as opt
from flyweight.errors import ConfigError

if TYPE_CHECKING:  # commands import what computes when they run
    from rich.table import Table

    from flyweight.tune.targets import Targets
    from flyweight.tune.trial import LoadFigures
    from flyweight.tune.tuner import Tuning

LEAST_MINUTES, MOST_MINUTES = 0.01, 24 * 60
Ttft = Annotated[
    str | None, typer.Option(metavar="TIME", help="Max time to first token (p90): 1s, 300ms.")
]
Itl = Annotated[str | None, typer.Option(metavar="TIME", help="Max time between tokens (p90).")]
MaxKld = Annotated[
    float | None,
    typer.Option(metavar="NATS", help="Max mean KLD; lets K/V types with a passport be tried."),
]
Memory = Annotated[str | None, typer.Option(metavar="SIZE", help="Memory limit: 8GiB, 50%.")]
Objective = Annotated[
    str, typer.Option(metavar="NAME", help="What to improve: throughput or latency.")
]
WorkloadName = Annotated[
    str,
    typer.Option(
        metavar="NAME|FILE", help="Load to serve: chat, rag, bulk, or a trace (.jsonl, .csv)."
    ),
]
Users = Annotated[
    int | None,
    typer.Option(metavar="N", help="Requests under way at once.  [default: the workload's]"),
]
Others = Annotated[
    list[str] | None,
    typer.Option(
        "--also",
        metavar="FILE|TYPES",
        help="Another file of the model, or types to make of it (Q4_0,Q8_0; those of `quantize "
        "--type`); may be repeated.",
    ),
]
Minutes = Annotated[float, typer.Option(metavar="N", help="Minutes to make types and to search.")]
Output = Annotated[str, typer.Option("--output", metavar="FILE", help="File for `serve --config`.")]


def tune(
    *,
    model: opt.Model = "stories",
    ttft: Ttft = None,
    itl: Itl = None,
    max_kld: MaxKld = None,
    memory: Memory = None,
    objective: Objective = "throughput",
    workload: WorkloadName = "chat",
    users: Users = None,
    also: Others = None,
    minutes: Minutes = 15.0,
    output: Output = "tuned.yaml",
    as_json: opt.AsJson = False,
) -> None:
    """Find the settings that serve a workload best within targets.

    Each candidate serves the workload on this machine.  Ctrl-C keeps what was made and measured;
    the same command goes on from there.
    """
    from flyweight.cli.bench.progress import show_measuring
    from flyweight.plan.machine import read_machine
    from flyweight.planning.quantities import check_range
    from flyweight.tune.targets import Targets
    from flyweight.tune.tuner import TuningJob
    from flyweight.tune.tuner import tune as search

    check_range(minutes, "minutes", LEAST_MINUTES, MOST_MINUTES)
    path = Path(output).expanduser()
    if not path.absolute().parent.is_dir():
        raise ConfigError("has no folder to be in", "output", value=output)
    targets = Targets.parse(ttft, itl, max_kld, memory, objective, read_machine().total)
    job = TuningJob(model, targets, workload, users, 60 * minutes, tuple(also or ()))
    with show_measuring() as listener:
        done = search(job, path.with_suffix(".evidence.jsonl"), listener)
    write_results(path, model, targets, done)
    if as_json:
        print(json.dumps(make_document(done, targets)))
        return
    print_results(path, model, targets, done)


def write_results(path: Path, model: str, targets: Targets, done: Tuning) -> None:
    """The configuration, and the plot next to it."""
    from flyweight.tune.evidence import (
        describe_program,
        draw_trials,
        list_options,
        make_config,
        write_text,
    )

    lines = (
        f"by {describe_program()} tune, for {done.load.name} with {done.load.users} users: "
        f"{targets.describe()}",
        f"measured: {describe_figures(done.figures)}",
        *([f"the defaults do not fit: {done.choice.unfit}"] if done.choice.unfit else []),
        *list_misses(done, targets),
    )
    changes = dict(done.chosen.changes)
    settings = list_options(done.chosen, done.bounds)
    write_text(path, make_config(changes.get("model", model), settings, lines))
    write_text(path.with_suffix(".svg"), draw_trials(done.seen))


def list_misses(done: Tuning, targets: Targets) -> list[str]:
    """A line for each target that is missed, with what binds."""
    least = done.choice.unreachable
    beyond = [f"out of reach of any settings: {least}"] if least else []
    return beyond + [
        f"{name.upper()} is {write_ratio(ratio)} times the target: nothing measured comes nearer; "
        f"{done.binding[name]} binds"
        for name, ratio in targets.find_excess(done.figures).items()
    ]


def write_ratio(ratio: float) -> str:
    return f"{ratio:,.2f}" if ratio < 100 else f"{ratio:,.0f}"


def describe_figures(seen: LoadFigures) -> str:
    from flyweight.planning.units import write_seconds

    return (
        f"{seen.throughput:.1f} tokens/s, TTFT {write_seconds(seen.ttft)}, "
        f"ITL {write_seconds(seen.itl)}, latency {write_seconds(seen.latency)}"
    )


def make_document(done: Tuning, targets: Targets) -> dict[str, Any]:
    return {
        "targets": asdict(targets),
        "load": {"name": done.load.name, "users": done.load.users, "prompt": done.load.prompt,
                 "output": done.load.output, "scaled": done.load.scaled or None},
        "chosen": dict(done.chosen.changes),
        "missed": targets.find_excess(done.figures),
        "binding": done.binding,
        "unreachable": done.choice.unreachable or None,
        "base": dict(done.choice.base.changes),
        "defaults_unfit": done.choice.unfit or None,
        "made": [
            {"type": one.name, "path": str(one.path), "seconds": round(one.seconds, 3),
             "quality": one.quality}
            for one in done.made
        ],
        "measured": done.measured,
        "finalists": [
            {"settings": dict(one.changes)} | asdict(seen) for one, seen in done.seen.items()
        ],
        "rejected": [
            {"settings": dict(one.changes), "reason": why}
            for one, why in done.choice.rejected.items()
        ],
    }  # fmt: skip


def print_results(path: Path, model: str, targets: Targets, done: Tuning) -> None:
    from flyweight.cli.show import make_console

    load = done.load
    print(f"Model:    {model}")
    print(f"Load:     {load.name}, {load.users} users, {load.prompt} + {load.output} tokens")
    if load.scaled:
        print(f"          {load.scaled}")
    print(f"Targets:  {targets.describe()}")
    for one in done.made:
        how = f"made in {one.seconds:.1f} s" if one.seconds else "used again"
        print(f"Type:     {one.path}, {how}; {one.quality}")
    make_console().print(make_table(done, targets))
    choice = done.choice
    if choice.unfit:
        print(f"Defaults: not started: {choice.unfit}")
        print(f"          {choice.base.name} is compared with in their place")
    for trial, why in choice.rejected.items():
        print(f"Not tried: {trial.name}: {why}")
    for line in list_misses(done, targets):
        print(f"Missed:   {line}")
    chosen = done.chosen.name if done.chosen.changes else "the defaults"
    print(f"Chosen:   {chosen}{'; nothing measured is better' * (done.chosen == choice.base)}")
    print(f"Written:  {path}, with the evidence and a plot next to it")
    print(f"Serve:    flyweight serve --config {shlex.quote(str(path))}")


def make_table(done: Tuning, targets: Targets) -> Table:
    """The finalists, the chosen one marked."""
    from flyweight.cli.show import make_table as make_plain_table
    from flyweight.planning.units import write_seconds

    table = make_plain_table(
        "finalists", "settings", "tokens/s", "TTFT", "ITL", "latency", "in targets"
    )
    for one, seen in done.seen.items():
        mark = "* " if one == done.chosen else "  "
        times = (write_seconds(at) for at in (seen.ttft, seen.itl, seen.latency))
        met = "no" if targets.find_excess(seen) else "yes"
        table.add_row(mark + one.label, f"{seen.throughput:.1f}", *times, met)
    return table
