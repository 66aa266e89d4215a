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
    from rich.console import Console

    from flyweight.comparison import ComparedModel, Comparison, KVTypeCost

# Speeds in the founding documents: of methods against FP16, and of INT4 against FP32 (5 and 15
# tokens a second).  They name no model and no machine.
SEED_FP16 = {
    "BF16": "1", "INT8 dynamic": "1.5-2", "INT8 static": "1.5-2", "INT4 GPTQ": "2-3",
    "INT4 AWQ": "2-3",
}  # fmt: skip
SEED_FP32 = {"FP32": "1", "INT4 RTN": "3", "INT4 GPTQ": "3", "INT4 AWQ": "3"}
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
        note = describe_input(comparison)
        if note and not as_json:
            print(note)
        rows, kinds = comparison.run()
    if plot is not None:
        points = [
            (row.name, row.decode, row.found.mean.mean, row.best) for row in rows if row.found
        ]
        axes = "tokens/s, one sequence", "mean KLD, nats a token"
        Path(plot).expanduser().write_text(draw_front(points, axes), encoding="utf-8")
    if as_json:
        quantised = {"quantised_input": comparison.quantised or None}
        print(json.dumps(quantised | make_document(rows, kinds, comparison.prompt)))
        return
    print_tables(rows, kinds, comparison.prompt)


def describe_input(comparison: Comparison) -> str:
    """What a user should know of a model that is quantised already; "" of a full one."""
    from flyweight.validation.untrusted import printable

    if not comparison.quantised:
        return ""
    return (
        f"Note: {printable(comparison.source)} is quantised already ({comparison.quantised}). "
        "Candidates are made of\nits values and compared with them, not with the model before that."
    )


def find_times(rows: Sequence[ComparedModel], base: str) -> dict[str, float]:
    """Decoding speeds, with that of the candidate `base` as 1; none where it was not made."""
    speeds = {row.name: row.decode for row in rows if row.found is not None}
    return {name: speed / speeds[base] for name, speed in speeds.items()} if base in speeds else {}


def make_document(
    rows: Sequence[ComparedModel], kinds: Sequence[KVTypeCost], prompt: int
) -> dict[str, Any]:
    fp32, bf16 = find_times(rows, "FP32"), find_times(rows, "BF16")
    return {
        "prompt_tokens": prompt,
        "models": [
            {
                "name": row.name,
                "bytes": row.nbytes,
                "tokens_per_s": row.decode,
                "tokens_per_s_16": row.batch,
                "ttft_s": row.ttft,
                "times_fp32": fp32.get(row.name),
                "times_bf16": bf16.get(row.name),
                "seed_times_fp32": SEED_FP32.get(row.name),
                "seed_times_fp16": SEED_FP16.get(row.name),
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
    head = ("", "size", "tok/s", "of 16", "TTFT", "perpl.", "KLD", "top 1", "made")
    title = f"Quantisations (* no other is nearer and faster); TTFT of {prompt} tokens"
    table = make_table(title, *head)
    table.padding, table.show_edge = (0, 1, 0, 0), False  # nine columns in 80 characters
    for row in rows:
        found = row.found
        if found is None:
            continue
        table.add_row(
            f"{'*' if row.best else ' '} {row.name}",
            format_size(row.nbytes),
            f"{row.decode:.0f}",
            f"{row.batch:.0f}",
            f"{1000 * row.ttft:.0f} ms",
            write_perplexity(found.perplexity.value),
            f"{found.mean.mean:.5f}",
            f"{100 * found.agreement.mean:.1f}%",
            f"{row.made:.1f} s",
        )
    console.print(table, "", sep="\n")
    for row in rows:
        if row.found is None:
            console.print(f"Not made: {row.name}: {row.problem}", markup=False)
    print_times(rows, console)
    table = make_table("K/V types (of the full model)", "", "bytes a token", "KLD", "top 1")
    for one in kinds:
        share = f"{100 * one.found.agreement.mean:.1f} %"
        table.add_row(one.kind, str(one.nbytes), f"{one.found.mean.mean:.5f}", share)
    console.print(table)


def write_perplexity(value: float) -> str:
    """23.09, 1823."""
    return f"{value:.2f}" if value < 1000 else f"{value:.0f}"


def print_times(rows: Sequence[ComparedModel], console: Console) -> None:
    """Speeds as multiples of the float models', next to the course's."""
    from flyweight.cli.show import make_table

    fp32, bf16 = find_times(rows, "FP32"), find_times(rows, "BF16")
    names = [row.name for row in rows if row.name in fp32 or row.name in bf16]
    if not names:
        return
    head = ("", "x FP32", "course x FP32", "x BF16", "course x FP16")
    table = make_table("Decoding, one sequence, as a multiple", *head)
    for name in names:
        ours = [f"{times[name]:.2f}" if name in times else "" for times in (fp32, bf16)]
        table.add_row(name, ours[0], SEED_FP32.get(name, ""), ours[1], SEED_FP16.get(name, ""))
    console.print(table)
    console.print("The course names no model or machine.  FP16 is its float model; ours is BF16.")
