"""`flyweight eval compare MODEL`: which quantisation, as a table, JSON or a plot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flyweight.cli import options as opt
from flyweight.cli.eval import Context, KldTokens
from flyweight.cli.parameters import Values, expand
from flyweight.config import whole
from flyweight.errors import ConfigError

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.comparison import ComparedModel, KVTypeCost

Model = Annotated[str, typer.Argument(metavar="MODEL", help="The full model: a folder or a file.")]
Text = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Text to measure on.  [default: that of `eval ppl`]"),
]
Calibration = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Text to calibrate the methods on.  [default: Python's help texts]"
    ),
]
Rounds = Annotated[int, typer.Option(metavar="N", help="Rounds of timing, all candidates in turn.")]
Only = Annotated[
    str | None,
    typer.Option(metavar="NAMES", help="Compare some of them only, such as Q8_0,Q4_K_M."),
]
Keep = Annotated[
    str | None, typer.Option(metavar="DIR", help="Keep the files that are made in a new folder.")
]
Plot = Annotated[
    str | None, typer.Option(metavar="FILE", help="Draw quality against speed as SVG.")
]


@expand
def compare(
    *,
    model: Model,
    text: Text = None,
    calibration: Calibration = None,
    context: Context = 512,
    limit_tokens: KldTokens = 10_000,
    rounds: Rounds = 3,
    only: Only = None,
    keep: Keep = None,
    plot: Plot = None,
    engine: Annotated[Values, opt.select_settings("memory_limit", "threads")],
    as_json: opt.AsJson = False,
) -> None:
    """Compare quantisations of a model on this machine.

    Each is made, compared with the full model, and timed in turn with the others.
    """
    from flyweight.cli.quantize import show_job
    from flyweight.comparison import Comparison, ComparisonPlan, choose_candidates
    from flyweight.eval.windows import EvalText, WindowPlan
    from flyweight.plot import draw_front

    whole("rounds", rounds, 1, 1000)
    if keep is not None and Path(keep).expanduser().exists():
        raise ConfigError("exists already; give another name", "keep", value=keep)
    if plot is not None and not Path(plot).expanduser().parent.is_dir():
        raise ConfigError("has no folder to be in", "plot", value=plot)
    plan = ComparisonPlan(
        EvalText.read(text), WindowPlan(context, None, limit_tokens), calibration, rounds,
        engine=engine, candidates=choose_candidates(only),
    )  # fmt: skip
    if keep is not None:
        Path(keep).expanduser().mkdir(parents=True)
    place = nullcontext(keep) if keep else TemporaryDirectory(prefix="flyweight-compare-")
    with place as folder, show_job(not as_json) as (_, report):
        comparison = Comparison(model, Path(str(folder)).expanduser(), plan, report)
        rows, kinds = comparison.run()
    if plot is not None:
        points = [
            (row.name, row.decode, row.found.mean.mean, row.best) for row in rows if row.found
        ]
        axes = "tokens/s, one sequence", "mean KLD, nats a token"
        Path(plot).expanduser().write_text(draw_front(points, axes), encoding="utf-8")
    if as_json:
        print(json.dumps(make_document(rows, kinds, comparison.prompt)))
        return
    print_tables(rows, kinds, comparison.prompt)


def make_document(
    rows: Sequence[ComparedModel], kinds: Sequence[KVTypeCost], prompt: int
) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "models": [
            {
                "name": row.name,
                "bytes": row.nbytes,
                "tokens_per_s": row.decode,
                "tokens_per_s_16": row.batch,
                "ttft_s": row.ttft,
                "perplexity": row.found.perplexity.value if row.found else None,
                "kld_mean": row.found.mean.mean if row.found else None,
                "top1_agreement": row.found.agreement.mean if row.found else None,
                "made_s": row.made,
                "best": row.best,
                "problem": row.problem,
            }
            for row in rows
        ],
        "kv_cache": [
            {"type": one.kind, "bytes_per_token": one.nbytes, "kld_mean": one.found.mean.mean}
            for one in kinds
        ],
    }


def print_tables(rows: Sequence[ComparedModel], kinds: Sequence[KVTypeCost], prompt: int) -> None:
    from flyweight.cli.show import make_console, make_table
    from flyweight.plan.memory import format_size

    console = make_console()
    first = f"TTFT {prompt}"
    head = ("", "size", "tok/s", "tok/s x16", first, "perplexity", "KLD", "top 1", "made")
    table = make_table("Quantisations (* no other is nearer and faster)", *head)
    for row in rows:
        if row.found is None:
            table.add_row(f"  {row.name}", *[""] * 7, f"not made: {row.problem}")
            continue
        found = row.found
        table.add_row(
            f"{'*' if row.best else ' '} {row.name}",
            format_size(row.nbytes),
            f"{row.decode:.0f}",
            f"{row.batch:.0f}",
            f"{1000 * row.ttft:.0f} ms",
            f"{found.perplexity.value:.3f}",
            f"{found.mean.mean:.5f}",
            f"{100 * found.agreement.mean:.1f} %",
            f"{row.made:.1f} s",
        )
    console.print(table)
    table = make_table("K/V types (of the full model)", "", "bytes a token", "KLD", "top 1")
    for one in kinds:
        share = f"{100 * one.found.agreement.mean:.1f} %"
        table.add_row(one.kind, str(one.nbytes), f"{one.found.mean.mean:.5f}", share)
    console.print(table)
